"""Checks of a run's model before its weights are loaded: it exists, and every first prompt fits its context."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent_r1.chat import ChatRenderer, Prompt, load_renderer, read_context_length, read_renderer, server_renderer
from agent_r1.config import Config, ModelConfig, presets
from agent_r1.engines import takes_messages
from agent_r1.errors import ConfigError, DataError, ImageError, UnsupportedMediaError, raising
from agent_r1.images import pictures_in
from agent_r1.training.plan import RunPlan, first_observation
from agent_r1.types import Task

_UNBOUNDED = 2**31 - 1
"""The context of a model at a server, which refuses what does not fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedModel:
    """What is known of a run's model before its weights are loaded."""

    renderer: ChatRenderer
    """Its chat template and tokenizer."""
    context_length: int
    """The run's context, in tokens."""


def check_model(plan: RunPlan, *, from_files: bool = False) -> CheckedModel:
    """Check that the model exists and that every first prompt fits its context; reads its tokenizer and its
    configuration, not its weights. With `from_files`, for a check that no run follows, both are read without
    `transformers` and torch where the folder's files suffice."""
    config = plan.config
    if takes_messages(config):
        return CheckedModel(renderer=server_renderer(), context_length=_UNBOUNDED)
    check_model_exists(config)
    if config.model.lora.rank > 0:
        from agent_r1.models import check_targets

        check_targets(config.model)
    folder = Path(config.model.path)
    from_folder = read_renderer(folder, config.model.tool_format) if from_files and folder.is_dir() else None
    renderer = from_folder or renderer_of(config.model)
    context = context_length_of(config, read_context_length(folder) if from_folder is not None else None)
    if config.rollout.max_tokens >= context:
        raise ConfigError(
            f"rollout.max_tokens={config.rollout.max_tokens} leaves no room for a prompt in a context of {context}"
        )
    too_long, limits = [], _image_limits(config)
    for task in [*plan.train_tasks, *plan.eval_tasks]:
        prompt = _first_prompt(plan, task, renderer, context)
        length = len(prompt.token_ids)
        if length >= context:
            too_long.append(f"task '{task.task_id}': a prompt of {length} tokens")
        num_images = sum(1 for _ in pictures_in(prompt.observation.messages or ()))
        for key, limit in limits.items():
            if num_images > limit:
                raise DataError(f"the first prompt of task '{task.task_id}' has {num_images} images; {key}={limit}")
    if too_long:
        first_ones = "\n".join(f"  - {entry}" for entry in too_long[:10])
        raise DataError(
            f"{len(too_long)} prompts do not fit the context of {context} tokens; shorten them or raise "
            f"rollout.context_length:\n{first_ones}"
        )
    return CheckedModel(renderer=renderer, context_length=context)


def _image_limits(config: Config) -> dict[str, int]:
    """How many images a first prompt may have, by key."""
    limits = {
        "rollout.max_images": config.rollout.max_images,
        "rollout.max_episode_images": config.rollout.max_episode_images,
    }
    return {key: limit for key, limit in limits.items() if limit is not None}


def _first_prompt(plan: RunPlan, task: Task, renderer: ChatRenderer, context: int) -> Prompt:
    try:
        return renderer.render_to_check(first_observation(plan, task), room=context, trusted=task.trusted)
    except (ImageError, UnsupportedMediaError) as error:
        raise type(error)(f"task '{task.task_id}' and the model {plan.config.model.path}: {error}") from error


def renderer_of(model: ModelConfig) -> ChatRenderer:
    """The renderer of a run's model, within the limits for images."""
    return load_renderer(
        model.path,
        model.tool_format,
        trust_remote_code=model.trust_remote_code,
        max_image_tokens=model.max_image_tokens,
        max_image_pixels=model.max_image_pixels,
    )


def context_length_of(config: Config, model_length: int | None = None) -> int:
    """The run's context: the configured one, at most the model's own and what one micro-batch holds. `model_length` is
    the model's own, where it is known."""
    of_model = _length_of_model(config) if model_length is None else model_length
    requested, trainable = config.rollout.context_length, config.trainer.micro_batch_tokens
    if requested is not None and requested > of_model:
        raise ConfigError(f"rollout.context_length={requested} is more than the model's own {of_model}")
    if requested is not None and requested > trainable:
        raise ConfigError(
            f"rollout.context_length={requested} is more than trainer.micro_batch_tokens={trainable}: a step that long "
            "could not be trained"
        )
    return requested or min(of_model, trainable)


def _length_of_model(config: Config) -> int:
    from transformers import AutoConfig

    with raising(ConfigError, f"the configuration of the model '{config.model.path}' cannot be read"):
        model_config = AutoConfig.from_pretrained(config.model.path, trust_remote_code=config.model.trust_remote_code)
    return int(model_config.get_text_config().max_position_embeddings)


def check_model_exists(config: Config) -> None:
    """Raise `ConfigError` when `model.path` is no model folder and cannot be fetched from the hub."""
    path = Path(config.model.path)
    if path.is_dir():
        if not (path / "config.json").is_file():
            run = f". It holds a run, whose model is {path / 'hf'}" if (path / "hf" / "config.json").is_file() else ""
            raise ConfigError(f"model.path={path} is a folder without config.json: not a Hugging Face model{run}")
        return
    looks_like_hub_id = config.model.path.count("/") == 1 and not path.is_absolute() and not path.parent.is_dir()
    if not looks_like_hub_id:
        preset = f", or write model={path} for the preset of that name" if str(path) in presets("model") else ""
        raise ConfigError(f"model.path={path} does not exist; give a Hugging Face folder or id, or a GGUF file{preset}")
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(config.model.path, trust_remote_code=config.model.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path={path} is not a folder and cannot be fetched from the hub: {error}") from error
