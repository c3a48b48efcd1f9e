"""`train`, `sft` for a warm start before it, and `demonstrate`, which samples demonstrations for that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent_r1.api.arguments import Recipe, Reward, ToolLike, folder_of, resolve, rows_folder
from agent_r1.config import Overrides, override_texts
from agent_r1.console import RunConsole
from agent_r1.data import Rows, row_files
from agent_r1.envs import AgentEnv
from agent_r1.errors import no_exit
from agent_r1.event_loop import callable_in_event_loop
from agent_r1.registry import recipe_folder

if TYPE_CHECKING:
    from agent_r1.training import SampledDemonstrations, Summary


@callable_in_event_loop
def train(
    config_or_recipe: Recipe = None,
    *,
    model: str | Path | None = None,
    data: Rows | None = None,
    eval_data: Rows | None = None,
    tools: Sequence[ToolLike] | None = None,
    env: type[AgentEnv] | str | None = None,
    reward: Reward | None = None,
    overrides: Overrides = (),
    quiet: bool = False,
) -> Summary:
    """Train an agent. Running the same call again resumes an unfinished run.

    Args:
        config_or_recipe: A recipe folder such as `recipes/quickstart`, a `Config`, or None for the defaults.
        model: A Hugging Face folder or id, or a GGUF file.
        data: Rows to train on: a file, a list of files, or rows as dicts, `Task`s or a `datasets.Dataset`. A row has
            the columns of a data file, or just `prompt` (or `question`) and `answer`.
        eval_data: Held-out rows, in the same forms.
        tools: Tools, tool classes, typed functions or names of tools.
        env: An environment class, its name, or one that you already have: `gym:FrozenLake-v1` brings its own tasks.
        reward: A reward function, or several with weights: `[correct, (format_ok, 0.2)]` or
            `{"correct": f, "format": (g, 0.2)}`. Each is logged as `reward/<name>`.
        overrides: Changes of the configuration, `["trainer.steps=20"]` or `{"trainer.steps": 20}`.
        quiet: Print nothing; the logger `agent_r1` still receives every line.
    """
    from agent_r1.training import train_run

    config = resolve(
        config_or_recipe,
        model=model,
        data=data,
        eval_data=eval_data,
        tools=tools,
        env=env,
        reward=reward,
        overrides=overrides,
    )
    with no_exit("the code of the recipe"), recipe_folder(folder_of(config)):
        return train_run(config, RunConsole(quiet=quiet))


@callable_in_event_loop
def sft(
    config_or_recipe: Recipe = None,
    *,
    model: str | Path | None = None,
    data: Rows | None = None,
    eval_data: Rows | None = None,
    tools: Sequence[ToolLike] | None = None,
    env: type[AgentEnv] | str | None = None,
    reward: Reward | None = None,
    demonstrations: Rows | None = None,
    overrides: Overrides = (),
    quiet: bool = False,
) -> Path:
    """Warm-start a model on demonstrations; returns the folder of the tuned model.

    Args:
        config_or_recipe: As for `train`.
        model: The model to tune.
        data: As for `train`.
        eval_data: As for `train`.
        tools: As for `train`.
        env: As for `train`.
        reward: As for `train`.
        demonstrations: Rows with `messages` (a whole conversation) and optional `tools`: files or dicts (`sft.data`).
        overrides: As for `train`, for example `["sft.steps=100"]`.
        quiet: Print nothing.
    """
    from agent_r1.training import sft_run

    config = resolve(
        config_or_recipe,
        model=model,
        data=data,
        eval_data=eval_data,
        tools=tools,
        env=env,
        reward=reward,
        overrides=overrides,
    )
    if demonstrations is not None:
        config.sft.data = row_files(demonstrations, rows_folder(config), "demonstrations")
    with no_exit("the code of the recipe"), recipe_folder(folder_of(config)):
        return sft_run(config, RunConsole(quiet=quiet))


@callable_in_event_loop
def demonstrate(
    config_or_recipe: Recipe = None,
    *,
    model: str | Path | None = None,
    data: Rows | None = None,
    eval_data: Rows | None = None,
    tools: Sequence[ToolLike] | None = None,
    env: type[AgentEnv] | str | None = None,
    reward: Reward | None = None,
    out: str | Path,
    tasks: int = 512,
    samples: int = 4,
    keep: int = 2,
    temperature: float = 0.8,
    overrides: Overrides = (),
    quiet: bool = False,
) -> SampledDemonstrations:
    """Sample demonstrations from the model itself: its solved episodes on training tasks, for a warm start with `sft`.
    Held-out rows are never sampled.

    Args:
        config_or_recipe: As for `train`.
        model: The model to sample, as it is: without the recipe's warm start, unless `overrides` set `sft.folder`.
        data: As for `train`.
        eval_data: As for `train`.
        tools: As for `train`.
        env: As for `train`.
        reward: As for `train`; it decides what is solved.
        out: The file to write, `.jsonl` or `.parquet`. One that is there is replaced.
        tasks: Training tasks, drawn with `trainer.seed`.
        samples: Episodes per task.
        keep: Maximum episodes kept per task, shortest first, without duplicates.
        temperature: Sampling temperature.
        overrides: As for `train`, for example `["sft.from_episode=demos:own_episode"]`.
        quiet: Print nothing.
    """
    from agent_r1.training import Sampling, demonstrate_run

    texts = override_texts(overrides)
    if not any(text.lstrip("+~").partition("=")[0] == "sft.folder" for text in texts):
        texts = [*texts, "sft.folder=null"]
    config = resolve(
        config_or_recipe,
        model=model,
        data=data,
        eval_data=eval_data,
        tools=tools,
        env=env,
        reward=reward,
        overrides=texts,
    )
    sampling = Sampling(tasks=tasks, samples=samples, keep=keep, temperature=temperature)
    with no_exit("the code of the recipe"), recipe_folder(folder_of(config)):
        return demonstrate_run(config, Path(out), sampling, RunConsole(quiet=quiet))
