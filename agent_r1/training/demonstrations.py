"""Demonstrations from the model itself: its own solved episodes on training tasks (rejection sampling).

    agent-r1 demonstrate quickstart --out own.jsonl model.path=MODEL
    agent-r1 sft quickstart model.path=MODEL sft.data=[own.jsonl]

Held-out rows are never sampled.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from agent_r1.config import Config
from agent_r1.console import RunConsole
from agent_r1.constraints import Count
from agent_r1.data import UnfitEpisodeError, check_demonstration, conversation_key, solved_episode, write_demonstrations
from agent_r1.engines import takes_messages
from agent_r1.errors import AgentR1Error, ConfigError, DataError, EpisodeError, boundary
from agent_r1.files import PreparedFile
from agent_r1.interrupts import StopSignals, stop_signals
from agent_r1.learner.sharded import refuse_ranks
from agent_r1.registry import check_arguments, load_function
from agent_r1.seeds import Stream, mix_seed
from agent_r1.training.components import load_components
from agent_r1.training.model_check import CheckedModel
from agent_r1.training.plan import RunPlan
from agent_r1.training.prepare import prepare_run
from agent_r1.types import Group, SamplingParams, StopReason, Task, Trajectory

Row = dict[str, Any]
FromEpisode = Callable[[Task, Trajectory], Any]

_INTERRUPTED = "Demonstrations are written at the end, and none was: run the same command again to start over."


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How many episodes are sampled, and how many are kept."""

    tasks: Count = 512
    """Training tasks, drawn with `trainer.seed`."""
    samples: Count = 4
    """Episodes per task."""
    keep: Count = 2
    """Maximum episodes kept per task, shortest first."""
    temperature: Annotated[float, Field(gt=0, le=1000)] = 0.8
    """Sampling temperature."""

    def __post_init__(self) -> None:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        check_arguments(Sampling, "", values, "demonstrations cannot be sampled")


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledDemonstrations:
    """What was sampled, and the file with what was kept."""

    path: Path
    """The file that was written."""
    tasks: int
    """Training tasks that were sampled."""
    episodes: int
    """Episodes, failed ones included."""
    solved: int
    """Episodes that solved their task."""
    kept: int
    """Rows in the file."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Which episodes become demonstrations."""

    function: FromEpisode = solved_episode
    """Gives the row of an episode, or None."""
    name: str = "the default rule"
    """What errors call it."""
    folder: Path = Path()
    """Paths of images in its rows are relative to this folder."""

    async def row_of(self, task: Task, trajectory: Trajectory) -> Row | None:
        """The row that an episode becomes, checked. Raises `UnfitEpisodeError` when it is not one conversation."""
        where = f"{self.name} on task '{task.task_id}'"
        unfit: UnfitEpisodeError | None = None
        row: Any = None
        with boundary(StopReason.FLOW_ERROR, where):
            try:
                row = self.function(task, trajectory)
                row = await row if inspect.isawaitable(row) else row
            except UnfitEpisodeError as error:
                unfit = error
        if unfit is not None:
            raise unfit
        if row is None:
            return None
        try:
            check_demonstration(row, folder=self.folder)
        except ValueError as error:
            raise ConfigError(
                f"{where} returned what is not a demonstration: {error}. It returns a row with `messages` and optional "
                "`tools`, or None"
            ) from error
        return {**row, "messages": json.loads(row["messages"])} if isinstance(row["messages"], str) else dict(row)


@dataclass(slots=True)
class Choice:
    """The rows that are kept, and what was left out."""

    rows: list[Row] = field(default_factory=list)
    unfit: list[str] = field(default_factory=list)
    """Why an episode is not one conversation; one entry per episode."""
    broken: list[AgentR1Error] = field(default_factory=list)
    """Episodes on which the rule failed: what it raised, or returned in place of a demonstration."""


def demonstrate_run(config: Config, out: Path, sampling: Sampling, console: RunConsole) -> SampledDemonstrations:
    """Sample episodes of the training tasks and write those that become demonstrations, as `sft.data` reads them."""
    refuse_ranks("demonstrate")
    _check_engine(config)
    _check_place(config, out)
    rule = _find_rule(config, out.parent)
    with stop_signals(quiet=console.console.quiet) as stop, stop.leaving(_INTERRUPTED):
        plan, model = prepare_run(config, console)
        if not plan.train_tasks:
            raise ConfigError("demonstrations are sampled from training rows, and data.train is empty")
        groups, choice = asyncio.run(_sample(plan, model, sampling, rule, console, stop))
        episodes = [trajectory for group in groups for trajectory in group]
        result = SampledDemonstrations(
            path=out,
            tasks=len(groups),
            episodes=len(episodes),
            solved=sum(not episode.is_failure and episode.success >= 1 for episode in episodes),
            kept=len(choice.rows),
        )
        failed = sum(episode.is_failure for episode in episodes)
        counted = f"{result.episodes} episodes of {result.tasks} tasks: {result.solved} solved"
        counted += f", {failed} failed" if failed else ""
        if not choice.rows and choice.broken:
            raise choice.broken[0]
        if not choice.rows:
            raise DataError(f"{counted}, and none can be kept. {_advice(result, choice, plan.config)}")
        if choice.unfit:
            console.warn(f"{len(choice.unfit)} episodes are not one conversation and were left out: {choice.unfit[0]}")
        if choice.broken:
            console.warn(f"{len(choice.broken)} episodes were left out, on which {choice.broken[0]}")
        write_demonstrations(out, choice.rows)
        console.info(f"{counted}, {result.kept} kept in {out}")
        return result


async def _sample(
    plan: RunPlan,
    model: CheckedModel,
    sampling: Sampling,
    rule: Rule,
    console: RunConsole,
    stop: StopSignals,
) -> tuple[list[Group], Choice]:
    config = plan.config
    components = load_components(plan, model, announce=console.info)
    tasks = draw_tasks(plan.train_tasks, sampling.tasks, seed=config.trainer.seed)
    parameters = SamplingParams(
        max_tokens=config.rollout.max_tokens,
        temperature=sampling.temperature,
        top_p=config.rollout.top_p,
        top_k=config.rollout.top_k,
    )
    with console.progress("sampling demonstrations", len(tasks) * sampling.samples) as bar:
        async with components.opened():
            with stop.cancelling():
                groups = await components.rollout.run(
                    tasks,
                    group_size=sampling.samples,
                    sampling=parameters,
                    seed=mix_seed(config.trainer.seed, Stream.DEMONSTRATIONS),
                    on_finished=lambda trajectory: bar.advance(),
                )
                return groups, await choose_rows(groups, sampling.keep, rule)


def draw_tasks(tasks: Sequence[Task], number: int, *, seed: int) -> list[Task]:
    """`number` tasks, drawn at random; all of them where there are no more. A smaller number gives the beginning of a
    larger one."""
    return random.Random(seed).sample(tasks, len(tasks))[:number]


async def choose_rows(groups: Iterable[Group], keep: int, rule: Rule) -> Choice:
    """The demonstrations among the episodes of some groups: at most `keep` per group, shortest first, none twice."""
    choice, keys = Choice(), set[str]()
    for group in groups:
        rows: list[Row] = []
        episodes = [trajectory for trajectory in group.valid if trajectory.steps]
        for trajectory in sorted(episodes, key=lambda trajectory: trajectory.num_action_tokens):
            if len(rows) == keep:
                break
            try:
                row = await rule.row_of(group.task, trajectory)
            except UnfitEpisodeError as error:
                choice.unfit.append(str(error))
                continue
            except (EpisodeError, ConfigError) as error:  # the other episodes took long to sample
                choice.broken.append(error)
                continue
            if row is not None and (key := conversation_key(row)) not in keys:
                keys.add(key)
                rows.append(row)
        choice.rows += rows
    return choice


def _find_rule(config: Config, folder: Path) -> Rule:
    reference = config.sft.from_episode
    if reference is None:
        return Rule()
    return Rule(load_function(reference, kind="sft.from_episode"), f"sft.from_episode={reference}", folder)


def _check_engine(config: Config) -> None:
    if takes_messages(config):
        raise ConfigError(
            f"engine={config.engine.name} takes messages and tells no token ids: demonstrations are sampled from the "
            "model that is to be trained. Leave engine out, or choose engine=local"
        )


def _check_place(config: Config, out: Path) -> None:
    """Refuse a file that could not be written in the end, before anything is sampled."""
    if out.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"out={out} must be a .jsonl or .parquet file")
    if out.is_dir():
        raise ConfigError(f"out={out} is a folder; name a file in it")
    rows = [Path(path) for path in (*config.data.train, *config.data.eval, *config.data.test)]
    if out.resolve() in [path.resolve() for path in rows]:
        raise ConfigError(f"out={out} is a file of the recipe's own rows; choose another")
    PreparedFile(out, "").discard()


def _advice(result: SampledDemonstrations, choice: Choice, config: Config) -> str:
    """What to do when nothing was kept."""
    if choice.unfit:
        return (
            f"{len(choice.unfit)} of them are not one conversation: {choice.unfit[0]}. A demonstration is one whole "
            "conversation: sample with env.context=append, or write its messages in a function of your own "
            "(sft.from_episode)"
        )
    if config.sft.from_episode is not None:
        return f"sft.from_episode={config.sft.from_episode} returned None for every episode"
    if result.solved:
        return (
            "The solved ones have malformed turns, or were cut at a limit: allow longer episodes (rollout.max_steps, "
            "rollout.max_tokens), or sample more tasks or episodes per task"
        )
    return "Sample more tasks or episodes per task, or a larger or warm-started model (model.path, sft.folder)"
