"""What a run makes before it starts: data files, the model, its conversion from GGUF, its warm start; and the dry run,
which makes and checks data alone.

A dry run imports no torch, so it is imported where a model is made. An algorithm whose parts are not those of a preset,
LoRA, a model of the hub and code of the recipe may import it.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_r1.config import Config, RewardConfig, to_yaml
from agent_r1.console import RunConsole
from agent_r1.data import row_files
from agent_r1.engines import takes_messages
from agent_r1.envs import kind_of, ready_env
from agent_r1.errors import CheckpointError, ConfigError, no_exit, report_problems
from agent_r1.event_loop import run_cancelling
from agent_r1.files import is_gguf
from agent_r1.registry import find_module, load_function
from agent_r1.rollout import make_sampler
from agent_r1.runs import (
    RunFolder,
    check_reads_outside,
    find_model_damage,
    lock_folder,
    plan_opening,
    remove_stale_lock,
)
from agent_r1.training.model_check import CheckedModel, check_model
from agent_r1.training.plan import RunPlan, check_config, check_learns, check_trainable, make_plan, missing_data


def prepare_run(config: Config, console: RunConsole) -> tuple[RunPlan, CheckedModel]:
    """The plan of a run and its checked model, after everything that was missing has been made."""
    plan = ensure_model(prepare_plan(config, console), console)
    return plan, check_model(plan)


def prepare_plan(config: Config, console: RunConsole | None = None) -> RunPlan:
    """The plan of a run, after its recipe has made the data files that were missing, which `console` says."""
    config = expand_env(config)
    if config.data.prepare is not None:
        check_config(config)
        missing = missing_data(config)
        if missing:
            if console is not None:
                console.info(f"{missing[0]} is not there yet: making the data with {config.data.prepare}")
            _call_preparation(config.data.prepare, "data preparation", config)
    plan = make_plan(config)
    if plan.train_tasks:
        make_sampler(config, plan.train_tasks)  # raises when rows do not fit the curriculum
    return plan


def expand_env(config: Config) -> Config:
    """The configuration that `env=KIND:NAME` stands for: an ordinary environment, data files with its tasks, its
    reward. The user's own data and reward have precedence. Any other configuration is returned as it is."""
    name = config.env.get("name")
    if isinstance(name, str) and ":" in name and kind_of(name) is None:
        for module in config.imports:  # one of them may register the kind
            find_module(str(module), f"module '{module}' of imports")
    if kind_of(name) is None:
        return config
    ready = ready_env(config.env)
    has_reward = bool(config.reward.functions) or config.reward.function != RewardConfig().function
    problems = []
    if not config.data.train and not ready.train:
        problems.append(f"env={name} brings no tasks: give data.train=[tasks.jsonl]")
    if not has_reward and ready.reward is None:
        problems.append(f"env={name} brings no reward: give reward.function=module:function, or the name of one")
    report_problems(problems, ConfigError, "the configuration cannot be used:")
    folder = Path(config.run.folder) / ".data"
    data = config.data
    if not data.train:
        held_out = data.eval or (row_files(ready.eval, folder, "eval") if ready.eval else [])
        data = replace(data, train=row_files(ready.train, folder, "train"), eval=held_out)
    reward = config.reward if has_reward or ready.reward is None else replace(config.reward, function=ready.reward)
    return replace(config, env=dict(ready.env), tools=merged(config.tools, ready.tools), data=data, reward=reward)


def merged(section: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A section with changes, in which mappings are merged key by key.

    >>> merged({"mcp": {"a": 1}}, {"mcp": {"b": 2}})
    {'mcp': {'a': 1, 'b': 2}}
    """
    result = dict(section)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def ensure_model(plan: RunPlan, console: RunConsole) -> RunPlan:
    """The plan with the model that its run starts from: made and warm-started where the recipe says so. An engine
    behind a chat API has its own."""
    if takes_messages(plan.config):
        return plan
    from agent_r1.training.sft import ensure_warm_start

    return replace(plan, config=ensure_warm_start(prepare_model(plan.config, console), console))


def prepare_model(config: Config, console: RunConsole) -> Config:
    """Make the model if it is missing and the configuration says how. Returns the configuration to continue with, in
    which the converted folder replaces a GGUF file."""
    if config.model.prepare is not None:
        # Of several runs that start together, one makes the model. This is not the lock of the model's folder, which
        # the preparation may lock itself.
        place = Path(config.run.folder) / f"prepare-{hashlib.sha256(config.model.path.encode()).hexdigest()[:12]}"
        if Path(config.model.path).exists():
            remove_stale_lock(place)
        else:
            with lock_folder(place, wait=True, on_wait=console.info):
                if not Path(config.model.path).exists():
                    console.info(f"{config.model.path} is not there yet: making it with {config.model.prepare}")
                    _call_preparation(config.model.prepare, "model preparation", config)
    if not is_gguf(config.model.path):
        _check_undamaged(config)
        return config
    from agent_r1.models import convert_gguf, gguf_folder

    folder = gguf_folder(Path(config.model.path))
    if not folder.is_dir():
        console.info(f"{config.model.path} is converted once, into {folder}")
        convert_gguf(Path(config.model.path), folder)
    return replace(config, model=replace(config.model, path=str(folder)))


def _check_undamaged(config: Config) -> None:
    """Refuse a warm start whose files are damaged: training would start from other weights."""
    run = RunFolder.of_model(Path(config.model.path))
    damage = None if run is None else find_model_damage(run)
    if run is not None and damage is not None:
        again = "run the same command again" if config.model.prepare is not None else "make it again with agent-r1 sft"
        raise CheckpointError(
            f"the warm start {config.model.path} is damaged: {damage}. Restore it, or delete {run.path} and {again}; "
            f"if you changed its files yourself, delete {run.model_checksums}"
        )


def warm_started_config(config: Config) -> Config:
    """The configuration of a run that starts from the finished model in `sft.folder`."""
    if config.sft.folder is None:
        return config
    return replace(
        config,
        model=replace(config.model, path=str(RunFolder(Path(config.sft.folder)).model), prepare=None),
        sft=replace(config.sft, folder=None),
    )


def dry_run(config: Config, console: RunConsole) -> RunPlan:
    """Check configuration, data and names, print the resolved configuration, load no model."""
    check_trainable(config)
    plan = prepare_plan(config, console)
    check_learns(plan)
    config = plan.config
    check_reads_outside(config)
    if config.model.prepare is not None and not Path(config.model.path).exists():
        model_note = f"will be made by {config.model.prepare}"
    elif is_gguf(config.model.path):
        model_note = "a GGUF file, which a run converts"
    else:
        check_model(plan, from_files=True)
        model_note = "found; every first prompt fits its context"
    if config.sft.folder is not None:
        model_note += f", warm-started in {config.sft.folder}"
    console.info(to_yaml(config).rstrip())
    if not is_gguf(config.model.path):
        opening = plan_opening(warm_started_config(config))
        if opening.story:
            console.info(opening.story)
    console.info(f"train: {len(plan.train_tasks)} tasks   eval: {len(plan.eval_tasks)} tasks   model: {model_note}")
    return plan


def _call_preparation(reference: str, kind: str, config: Config) -> None:
    """Call a recipe's preparation, `def` or `async def`, with the configuration."""
    preparation = load_function(reference, kind=kind)
    with no_exit(f"the {kind} '{reference}'"):
        returned = preparation(config)
        if inspect.iscoroutine(returned):
            run_cancelling(lambda: returned)
