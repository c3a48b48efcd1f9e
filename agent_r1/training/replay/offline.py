"""One offline update from recorded rollouts, for debugging: its metrics, and how far it moved the policy.

The weights are those that sampled the rollouts: the model that the run started from for step 1, and a checkpoint of the
step before for any other. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from agent_r1.algorithms import Algorithm, engine_divergence
from agent_r1.chat import ChatRenderer
from agent_r1.config import Config
from agent_r1.console import RunConsole
from agent_r1.errors import CheckpointError, ConfigError, DataError
from agent_r1.images import is_image_id, pictures_in
from agent_r1.learner import CriticView, Experience, TorchLearner, gather_experience, make_learner, score_samples
from agent_r1.models import restore_state
from agent_r1.runs import RunFolder, fingerprint_differences, list_checkpoints, read_fingerprints, run_fingerprints
from agent_r1.training.checkpoints.files import load_checkpoint
from agent_r1.training.components import load_run_policy, make_shaping
from agent_r1.training.model_check import check_model_exists, renderer_of
from agent_r1.training.oom import explain_cuda_oom
from agent_r1.training.replay.record import RecordedStep, in_words
from agent_r1.types import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class OfflineUpdate:
    """What one update from recorded rollouts did."""

    step: int
    """The training step whose rollouts it was made from."""
    weights: str
    """What it started from."""
    metrics: Mapping[str, float]
    """What the learner measured: loss, gradient norm, entropy and so on."""
    recorded: Mapping[str, float]
    """These metrics as the run logged them at this step, where it did."""
    kl_before: float
    """KL between the policy that sampled and the policy before the update, per token: 0 up to rounding for the same
    weights."""
    kl_after: float
    """KL between the policy that sampled and the policy after the update, per token."""
    kl_update: float
    """KL between the policy before and after the update, per token."""
    moved: float
    """The norm of the change of the trained weights, relative to their norm."""


def check_weights(folder: RunFolder, config: Config, steps: Sequence[int], *, model: str | None) -> int:
    """The last of some steps whose weights are there. With a `model`, the last step."""
    if model is not None:
        check_model_exists(replace(config, model=replace(config.model, path=model)))
        return steps[-1]
    saved = [number for number, _ in list_checkpoints(folder.checkpoints)]
    possible = [step for step in steps if step == 1 or step - 1 in saved]
    if not possible:
        raise ConfigError(
            f"the weights that sampled {in_words(steps)} of {folder.path} are not kept. Those of step 1 are the model "
            f"that the run started from; it has checkpoints of {in_words(saved) if saved else 'no step'}, each of "
            "which sampled the step after it. Choose another with --step, name weights with --model FOLDER, or train "
            "with trainer.save_every=1 trainer.keep_checkpoints=1000"
        )
    check_model_exists(config)
    changed = [
        line
        for line in fingerprint_differences(read_fingerprints(folder.path), run_fingerprints(config))
        if line.startswith("model.path")
    ]
    if changed:
        raise ConfigError(
            f"the model that {folder.path} started from has changed since:\n  - " + "\n  - ".join(changed[:5]) + "\n"
            "Restore it, or name the weights to start from with --model FOLDER"
        )
    return possible[-1]


def offline_update(
    folder: RunFolder,
    config: Config,
    algorithm: Algorithm,
    steps: Sequence[RecordedStep],
    *,
    step: int,
    model: str | None,
    console: RunConsole,
) -> OfflineUpdate:
    """Make all updates of one training step from its recorded rollouts. `steps` are that step and those before it whose
    statistics it needs."""
    if model is not None:
        config = replace(config, model=replace(config.model, path=model, prepare=None))
    config = replace(config, algorithm=algorithm.settings)
    renderer = renderer_of(config.model)
    _check_tokens(steps[-1], renderer, config.model.path)
    _encode_pictures(steps[-1], renderer, config.model.path)
    torch.manual_seed(config.trainer.seed)
    policy = load_run_policy(config)
    _check_vocabulary(steps[-1], policy, config.model.path)
    learner = make_learner(config, policy, algorithm)
    weights = config.model.path
    if model is None and step > 1:
        weights = _load_checkpoint(folder, learner, step - 1, console)
    shaping = make_shaping(config)
    view = CriticView(config.algorithm.critic.privileged, renderer.encode, max_tokens=config.trainer.micro_batch_tokens)
    for earlier in steps[:-1]:
        shaping(earlier.groups)
    experience = gather_experience(steps[-1].groups, shaping, view)
    if not experience.table.num_tokens:
        raise DataError(f"step {step} of {folder.path} has no trajectory to train on: all failed or were dropped")
    with explain_cuda_oom(config):
        return _update_once(learner, experience, folder, step=step, weights=weights)


def _update_once(
    learner: TorchLearner, experience: Experience, folder: RunFolder, *, step: int, weights: str
) -> OfflineUpdate:
    weights_before = [weight.detach().clone() for weight in _trained_weights(learner)]
    before_N = _scores(learner, experience)
    metrics = learner.learn_sync(experience, step=step - 1)
    learner.check_growth()
    after_N = _scores(learner, experience)
    pairs = zip(_trained_weights(learner), weights_before, strict=True)
    change = sum(float((now.detach() - then).square().sum()) for now, then in pairs)
    size = sum(float(then.square().sum()) for then in weights_before)
    sampled_N = experience.rollout_logprobs_N
    logged = next((line for line in folder.read_metrics() if line["step"] == step and "loss/policy" in line), {})
    return OfflineUpdate(
        step=step,
        weights=weights,
        metrics=metrics,
        recorded={name: float(logged[name]) for name in metrics if name in logged},
        kl_before=float(engine_divergence(before_N, sampled_N).mean()),
        kl_after=float(engine_divergence(after_N, sampled_N).mean()),
        kl_update=float(engine_divergence(after_N, before_N).mean()),
        moved=(change / size) ** 0.5 if size else 0.0,
    )


def _scores(learner: TorchLearner, experience: Experience) -> Tensor:
    return score_samples(learner.policy, experience.samples, learner.models.compute).float().cpu()


def _trained_weights(learner: TorchLearner) -> list[nn.Parameter]:
    return [weight for weight in learner.policy.parameters() if weight.requires_grad]


def _load_checkpoint(folder: RunFolder, learner: TorchLearner, step: int, console: RunConsole) -> str:
    """Load the weights of a checkpoint, and the state of the optimizer where the algorithm is the same."""
    path = folder.checkpoints / f"step_{step}"
    state: Any = load_checkpoint(step, path).state.get("learner")
    try:
        if state.keys() == learner.state_dict().keys():
            learner.load_state_dict(state)
        else:
            restore_state(learner.policy, state["policy"])
            console.info(f"{path} was written with another algorithm: critic and optimizer start new")
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"the checkpoint {path} does not fit the run's model; name weights with --model FOLDER. "
            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        ) from error
    return str(path)


def _check_tokens(step: RecordedStep, renderer: ChatRenderer, path: str) -> None:
    """Refuse tokens that do not spell the recorded text: of another tokenizer, or changed in the file."""
    for group in step.groups:
        for trajectory in group.learnable:
            for number, turn in enumerate(trajectory.steps, start=1):
                text = renderer.text_of(turn.action_ids)
                if not text.startswith(turn.action.text):
                    raise DataError(
                        f"the tokens of task '{trajectory.task_id}', member {trajectory.member}, turn {number}, do not "
                        f"spell its text: {path} reads {text!r:.60}, recorded is {turn.action.text!r:.60}. The model "
                        "has another tokenizer than the one that sampled, or the file was changed"
                    )


def _encode_pictures(step: RecordedStep, renderer: ChatRenderer, path: str) -> None:
    """Make the pictures of recorded prompts known, as rendering them does in a run."""
    seen: set[str] = set()
    for turn in _turns(step):
        for picture in pictures_in(turn.observation.messages or ()):
            if renderer.processor is None:
                raise DataError(f"the recorded prompts have images, and the model {path} reads text only")
            if picture.content_hash not in seen:
                seen.add(picture.content_hash)
                renderer.processor.encode(picture)


def _check_vocabulary(step: RecordedStep, policy: nn.Module, path: str) -> None:
    """Refuse ids that the model has no embedding for."""
    vocabulary = int(cast(Any, policy).get_input_embeddings().num_embeddings)
    ids = (token for turn in _turns(step) for token in (*turn.prompt_ids, *turn.action_ids) if not is_image_id(token))
    largest = max(ids, default=0)
    if largest >= vocabulary:
        raise DataError(
            f"a recorded token has the id {largest}, and the model {path} knows {vocabulary} tokens: it is another "
            "model than the one that sampled"
        )


def _turns(step: RecordedStep) -> Iterator[Step]:
    return (turn for group in step.groups for trajectory in group.learnable for turn in trajectory.steps)
