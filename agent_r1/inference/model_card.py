"""The model card of an exported model: README.md with the front matter that the Hugging Face hub reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agent_r1.config import Config, algorithm_name, config_differences, load_config
from agent_r1.errors import AgentR1Error
from agent_r1.metric_names import EVAL_PREFIX
from agent_r1.runs import RunFolder
from agent_r1.shipped import shipped_recipes
from agent_r1.version import __version__

_FIGURES = ("greedy", "reward", "mean", "best", "maj", "tool_calls", "rows")
"""Figures of an evaluation that the card shows, in this order; `best` stands for best@k."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """What a card is written from."""

    name: str
    """The exported folder's name."""
    run: RunFolder | None
    """The run that trained the model; None for a model from elsewhere."""
    step: int | None
    """The training step of the weights; None: the end of the run."""
    adapters: bool
    """Whether the folder holds LoRA adapters and not the whole model."""
    base: str
    """The model it was trained from, or that was exported."""
    licence: str | None = None
    """The identifier of its licence, if the user stated one."""
    reads_images: bool = False
    """Whether it is a vision-language model."""


def model_card(facts: CardFacts) -> str:
    """The text of README.md."""
    config = None if facts.run is None else facts.run.read_config()
    sections = [_front_matter(facts, config), f"# {facts.name}\n", _opening(facts, config)]
    if facts.run is not None and config is not None:
        tuned = is_warm_start(facts.run)
        sections += (
            [_demonstrations(config)] if tuned else [_task(config), _training(config, facts), _figures(facts, config)]
        )
    sections += [_loading(facts, config), _licence(facts)]
    return "\n".join(section for section in sections if section)


def _front_matter(facts: CardFacts, config: Config | None) -> str:
    tags = ["agent-r1"]
    if config is not None:
        tags += ["reinforcement-learning", "tool-use", *filter(None, [config.algorithm.preset])]
    entries: dict[str, Any] = {
        "library_name": "peft" if facts.adapters else "transformers",
        "pipeline_tag": "text-generation",
        "tags": tags,
    }
    if _is_hub_id(facts.base):
        entries["base_model"] = facts.base
    if facts.licence is not None:
        entries["license"] = facts.licence
    return f"---\n{yaml.safe_dump(entries, sort_keys=False, allow_unicode=True)}---\n"


def _opening(facts: CardFacts, config: Config | None) -> str:
    if config is None:
        return f"The model `{_short_path(facts.base)}`, exported with Agent-R1 {__version__}.\n"
    if facts.run is not None and is_warm_start(facts.run):
        return (
            f"A language model tuned on demonstrations with Agent-R1 {__version__}, from `{_short_path(facts.base)}`.\n"
        )
    what = "LoRA adapters" if facts.adapters else "A language model"
    step = "" if facts.step is None else f", as it was after training step {facts.step}"
    return (
        f"{what} trained with Agent-R1 {__version__} by reinforcement learning over whole multi-turn episodes, from "
        f"`{_short_path(facts.base)}`{step}.\n"
    )


def is_warm_start(run: RunFolder) -> bool:
    """Whether a run tuned its model on demonstrations (`agent-r1 sft`)."""
    return any("loss/sft" in line for line in run.read_metrics())


def _demonstrations(config: Config) -> str:
    sft = config.sft
    lines = [
        "## Training\n",
        f"- demonstrations: {_codes([_short_path(path) for path in sft.data])}",
        f"- {sft.steps} steps of {sft.batch_size} conversations, learning rate {sft.learning_rate:g}, seed "
        f"{config.trainer.seed}",
    ]
    return "\n".join(lines) + "\n"


def _task(config: Config) -> str:
    tools = [
        str(entry.get("name")) if isinstance(entry, Mapping) else str(entry) for entry in config.env.get("tools") or ()
    ]
    rewards = [part.name for part in config.reward.functions] or [config.reward.function]
    lines = [
        "## Task and data\n",
        f"- recipe: `{_recipe_name(config.recipe)}`" if config.recipe else "- no recipe: settings given in Python",
        f"- environment: `{config.env.get('name', 'tool')}`" + (f" with the tools {_codes(tools)}" if tools else ""),
        f"- reward: {_codes(rewards)}",
        f"- training data: {_codes([_short_path(path) for path in config.data.train]) or 'none'}",
        f"- held-out data: {_codes([_short_path(path) for path in config.data.eval]) or 'none'}",
    ]
    return "\n".join(lines) + "\n"


def _training(config: Config, facts: CardFacts) -> str:
    rollout, lora = config.rollout, config.model.lora
    steps = config.trainer.steps if facts.step is None else facts.step
    lines = [
        "## Training\n",
        f"- started from: `{_short_path(config.model.path)}`",
        f"- algorithm: {algorithm_name(config)}",
        f"- {steps} steps of {rollout.groups_per_step} tasks with {rollout.group_size} episodes each, seed "
        f"{config.trainer.seed}",
        f"- learning rate {config.optimizer.learning_rate:g}"
        + (f", LoRA of rank {lora.rank} and alpha {lora.alpha:g}" if lora.rank else ""),
    ]
    if config.recipe is not None:
        lines.append(f"\n    agent-r1 train {_recipe_name(config.recipe)}\n")
        changes = _changes(config)
        if changes:
            lines += ["with these changes of the recipe's settings:\n", *(f"    {change}" for change in changes)]
    return "\n".join(lines) + "\n"


def _changes(config: Config) -> list[str]:
    """What differs from the recipe as it is; nothing when the recipe cannot be read any more."""
    try:
        recipe = load_config(str(config.recipe))
    except AgentR1Error:
        return []
    ignored = ("recipe", "run.", "algorithm.preset", "model.prepare", "sft.")
    return [line for line in config_differences(recipe, config) if not line.startswith(ignored)]


def _figures(facts: CardFacts, config: Config) -> str:
    before, after = evaluations(facts.run, facts.step) if facts.run is not None else ({}, {})
    names = _figure_names(after or before)
    if not names:
        return "## Figures\n\nThe model was not evaluated at this step.\n"
    rows = [
        f"| {name.removeprefix(EVAL_PREFIX)} | {_figure(before.get(name))} | {_figure(after.get(name))} |"
        for name in names
    ]
    table = "\n".join(["| held-out tasks | before training | after |", "|---|---:|---:|", *rows])
    recipe = _recipe_name(config.recipe) if config.recipe else "RECIPE"
    command = f"    agent-r1 eval {recipe} --model {facts.name}"
    note = "`greedy` is the share of tasks solved without sampling, `reward` the mean outcome reward. The command:"
    return f"## Figures\n\n{table}\n\n{note}\n\n{command}\n"


def evaluations(run: RunFolder, step: int | None) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """The evaluations before training and at a step; by default at the end of the run, from its summary."""
    lines = [line for line in run.read_metrics() if any(name.startswith(EVAL_PREFIX) for name in line)]
    before = next((line for line in lines if line["step"] == 0), {})
    if step is not None:
        return _only_figures(before), _only_figures(next((line for line in lines if line["step"] == step), {}))
    summary = run.read_summary() or {}
    return _only_figures(summary.get("metrics_before") or before), _only_figures(summary.get("metrics") or {})


def _only_figures(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith(EVAL_PREFIX)}


def _figure_names(metrics: Mapping[str, float]) -> list[str]:
    def order(name: str) -> tuple[bool, str, int]:
        source, _, figure = name.removeprefix(EVAL_PREFIX).rpartition("/")
        return source == "all", source, _FIGURES.index(figure.partition("@")[0])

    return sorted((name for name in metrics if name.rpartition("/")[2].partition("@")[0] in _FIGURES), key=order)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _loading(facts: CardFacts, config: Config | None) -> str:
    auto = "AutoModelForImageTextToText" if facts.reads_images else "AutoModelForCausalLM"
    if facts.adapters:
        code = (
            f"from peft import PeftModel\nfrom transformers import {auto}, AutoTokenizer\n\n"
            f'base = {auto}.from_pretrained("{_short_path(facts.base)}")\n'
            f'model = PeftModel.from_pretrained(base, "{facts.name}")\n'
            f'tokenizer = AutoTokenizer.from_pretrained("{facts.name}")'
        )
        served = f"vllm serve {_short_path(facts.base)} --enable-lora --lora-modules agent={facts.name}"
    else:
        code = (
            f"from transformers import {auto}, AutoTokenizer\n\n"
            f'model = {auto}.from_pretrained("{facts.name}")\n'
            f'tokenizer = AutoTokenizer.from_pretrained("{facts.name}")'
        )
        served = f"vllm serve {facts.name}"
    lines = ["## How to load it\n", f"```python\n{code}\n```\n", f"    {served}"]
    if config is not None and config.recipe and not facts.adapters:
        lines.append(f"    agent-r1 chat {facts.name} --recipe {_recipe_name(config.recipe)}")
    if config is not None:
        lines.append(
            f"\nThe chat template is in the tokenizer. Tool calls are written in the format "
            f"`{config.model.tool_format}`, one action has at most {config.rollout.max_tokens} tokens, and an "
            f"episode at most {config.rollout.max_steps} steps. It was trained at temperature "
            f"{config.rollout.temperature:g}."
        )
    return "\n".join(lines) + "\n"


def _licence(facts: CardFacts) -> str:
    if facts.licence is not None:
        return f"## Licence\n\n{facts.licence}\n"
    return (
        f"## Licence\n\nNot stated. The licence of `{_short_path(facts.base)}` applies to this model too: state it "
        "here, and as `license` at the top of this file, before you publish it.\n"
    )


def _recipe_name(recipe: str) -> str:
    """What readers elsewhere call a recipe: one that comes with Agent-R1 by its name, and one that was the current
    folder by that folder's name."""
    folder = Path(recipe)
    if any(folder.resolve() == shipped.folder.resolve() for shipped in shipped_recipes()):
        return folder.resolve().name
    if not folder.name and (folder / "base.yaml").is_file():
        return folder.resolve().name
    return _short_path(recipe)


def _short_path(path: object) -> str:
    """A path for readers elsewhere: relative ones and hub ids as they are, of an absolute one its last parts."""
    text = str(path)
    return "/".join(Path(text).parts[-2:]) if Path(text).is_absolute() else text


def _codes(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _is_hub_id(base: str) -> bool:
    return (
        base.count("/") == 1 and not Path(base).exists() and not Path(base).is_absolute() and not base.startswith(".")
    )
