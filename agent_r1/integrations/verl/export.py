"""A recipe as a folder that verl trains from: its configuration, its rows, the loop's file and a launch script.

FOLDER/recipe.yaml      the recipe's whole configuration, which the loop reads
       agent_loop.yaml  verl's agent_loop_config_path
       train.parquet, eval.parquet   verl's rows, each with the whole row of ours
       launch.sh        the command that trains
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_r1.config import Config, Overrides, load_config, quoted, to_yaml
from agent_r1.console import RunConsole
from agent_r1.data import write_rows
from agent_r1.files import write_atomically
from agent_r1.integrations.verl.recipe import RECIPE_VARIABLE, TASK_COLUMN, open_recipe
from agent_r1.integrations.verl.settings import ROLLOUT, VerlSettings, verl_settings
from agent_r1.training import RunPlan, check_model, ensure_model, first_observation, prepare_plan
from agent_r1.types import Task

REGISTER = "agent_r1.integrations.verl.register"
_PLAIN = re.compile(r"(?!(?:nan|inf|null|true|false)$)[A-Za-z_/][\w./-]*", re.IGNORECASE | re.ASCII)
"""Text that Hydra reads as text without quotes."""


def export_recipe(
    recipe: str | Path, folder: Path, *, overrides: Overrides = (), gpus: int = 1, console: RunConsole | None = None
) -> VerlSettings:
    """Write the folder, after the recipe's data and model have been made where they were missing."""
    console = console or RunConsole(quiet=True)
    config = load_config(recipe, overrides)
    verl_settings(config, prompt_length=1, context_length=2, gpus=gpus)  # refused before anything is made
    with open_recipe(config):
        plan = ensure_model(prepare_plan(config, console), console)
        checked = check_model(plan)
        prompt_length = max(
            len(checked.renderer.render(first_observation(plan, task), trusted=task.trusted).token_ids)
            for task in [*plan.train_tasks, *plan.eval_tasks]
        )
    settings = verl_settings(
        _with_absolute_model(plan.config), prompt_length=prompt_length, context_length=checked.context_length, gpus=gpus
    )
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "recipe.yaml", to_yaml(_inside_verl(plan.config)))
    write_atomically(folder / "agent_loop.yaml", _loop_file(folder / "recipe.yaml"))
    settings.overrides |= _rows(plan, folder)
    settings.overrides[f"{ROLLOUT}.agent.agent_loop_config_path"] = str(folder / "agent_loop.yaml")
    script = folder / "launch.sh"
    write_atomically(script, launch_script(settings, folder / "recipe.yaml"))
    script.chmod(0o755)
    return settings


def _with_absolute_model(config: Config) -> Config:
    """The configuration with the model's folder as an absolute path."""
    path = Path(config.model.path)
    return replace(config, model=replace(config.model, path=str(path.resolve()))) if path.is_dir() else config


def _inside_verl(config: Config) -> Config:
    """What the loop needs: the recipe at its absolute place, without trackers and what makes models."""
    resolved = _with_absolute_model(config)
    return replace(
        resolved,
        recipe=None if config.recipe is None else str(Path(config.recipe).resolve()),
        model=replace(resolved.model, prepare=None, lora=replace(config.model.lora, rank=0)),
        data=replace(config.data, train=[], eval=[], prepare=None),
        sft=replace(config.sft, folder=None),
        tracking=replace(config.tracking, trackers=[]),
    )


def _loop_file(recipe: Path) -> str:
    return (
        "- name: agent_r1\n"
        "  _target_: agent_r1.integrations.verl.loop.AgentR1Loop\n"
        f"  recipe: {json.dumps(str(recipe))}\n"
    )


def _rows(plan: RunPlan, folder: Path) -> dict[str, Any]:
    """verl's data keys, after the rows have been written. verl asks for validation rows in any case."""
    files = {"train": plan.train_tasks, "eval": plan.eval_tasks or plan.train_tasks[:1]}
    for name, tasks in files.items():
        write_rows(folder / f"{name}.parquet", [verl_row(task, index) for index, task in enumerate(tasks)])
    return {"data.train_files": str(folder / "train.parquet"), "data.val_files": str(folder / "eval.parquet")}


def verl_row(task: Task, index: int) -> dict[str, Any]:
    """A task of text in verl's columns. Our own row is one text, since parquet gives a column one type."""
    row = {
        "task_id": task.task_id,
        "prompt": [dict(message) for message in task.prompt],
        "agent_name": task.agent_name,
        "reward_model": dict(task.reward_model),
        "env_kwargs": dict(task.env_kwargs),
        "data_source": task.data_source,
        "extra_info": dict(task.extra_info),
        "control_tokens": task.control_tokens,
    }
    truth = task.ground_truth
    return {
        "data_source": task.data_source,
        "prompt": [{"role": str(m["role"]), "content": _text(m.get("content"))} for m in task.prompt],
        "agent_name": "agent_r1",
        "reward_model": {"style": "agent_r1", "ground_truth": _text(truth)},
        "extra_info": {"index": index, "task_id": task.task_id},
        TASK_COLUMN: json.dumps(row, ensure_ascii=False),
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def hydra_overrides(overrides: Mapping[str, Any]) -> list[str]:
    """`key=value` as verl's command line takes them."""
    return [f"{key}={_in_grammar(value)}" for key, value in overrides.items()]


def _in_grammar(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(map(_in_grammar, value)) + "]"
    if not isinstance(value, str):
        return json.dumps(value)
    return value if _PLAIN.fullmatch(value) else quoted(value)


def launch_script(settings: VerlSettings, recipe: Path) -> str:
    """The command that trains, with what verl's processes need in their environment, also on other nodes."""
    variables = {"VERL_USE_EXTERNAL_MODULES": REGISTER, RECIPE_VARIABLE: str(recipe)}
    forwarded = {f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}": value for name, value in variables.items()}
    lines: Sequence[str] = [shlex.quote(entry) for entry in hydra_overrides({**settings.overrides, **forwarded})]
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    notes = "".join(f"# Differs: {note}.\n" for note in settings.notes)
    command = " \\\n  ".join(["exec python -m verl.trainer.main_ppo", *lines, '"$@"'])
    title = f"# Trains the recipe {recipe} with verl. Further keys of verl may follow.\n"
    return f"#!/bin/sh\n{title}{notes}{exports}{command}\n"
