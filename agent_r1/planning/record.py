"""Reading a recorded run: its calls with their times, its updates, and the settings it ran with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from agent_r1.config import Config
from agent_r1.errors import DataError
from agent_r1.metric_names import STEP_SECONDS
from agent_r1.planning.rates import fit_engine, fit_update
from agent_r1.planning.simulation import Setup
from agent_r1.planning.workload import Call, RecordedEpisode, RecordedGroup, Workload
from agent_r1.runs import RunFolder, read_trajectories
from agent_r1.types import Trajectory, common_prefix

MIN_STEPS = 2
"""Steps that a plan needs, without the first one of a run, in which caches are filled and kernels are compiled."""
MAX_STEPS = 8
"""The last steps are read, at most this many."""

_ROLLOUT, _UPDATE, _SYNC, _TOKENS = "time/rollout", "time/update", "time/weight_sync", "perf/trained_tokens"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedRun:
    """What a run has recorded, for planning."""

    path: Path
    workload: Workload
    setup: Setup
    """What it ran with."""
    num_steps: int
    """Recorded steps that were read."""
    step_seconds: tuple[float, ...]
    """Their measured times."""

    @property
    def mean_step(self) -> float:
        """The mean measured time of a step."""
        return fmean(self.step_seconds)


def read_recorded_run(path: Path, *, engines: int = 1, learners: int = 1, shared: bool = True) -> RecordedRun:
    """The run in a folder, which had so many engines and learners. Raises `DataError` when it cannot be planned from.

    The setup's `efficiency` does not matter for one learner; with more, the measured updates are those of all of them.
    """
    folder = RunFolder(path)
    if not folder.metrics.is_file():
        raise DataError(
            f"no run is recorded in {path}: a plan is made from one. Record some steps with `agent-r1 train RECIPE "
            "trainer.steps=6`, or name another run with --run"
        )
    config = folder.read_config()
    lines = [line for line in folder.read_metrics() if _ROLLOUT in line and _UPDATE in line]
    recorded = [line for line in lines if folder.step_trajectories(int(line["step"])).is_file()][1:]
    # A step that was profiled took longer than the others.
    usable = [line for line in recorded if line["step"] != config.tracking.profile_step][-MAX_STEPS:]
    if len(usable) < MIN_STEPS:
        raise DataError(
            f"{path} has {len(lines)} training steps, {len(usable)} of them usable: a plan needs at least {MIN_STEPS} "
            "recorded steps after the first one. Record more with `agent-r1 train RECIPE trainer.steps=6 "
            "tracking.record_every=1`"
        )
    steps = [_read_groups(folder.step_trajectories(int(line["step"]))) for line in usable]
    if not all(steps):
        raise DataError(f"{path} has steps in which every rollout failed: there is nothing to plan from")
    setup = setup_of(config, engines=engines, learners=learners, shared=shared)
    return RecordedRun(
        path=path,
        workload=_workload(steps, usable, setup),
        setup=setup,
        num_steps=len(usable),
        step_seconds=tuple(float(line[STEP_SECONDS]) for line in usable),
    )


def setup_of(config: Config, *, engines: int, learners: int, shared: bool, efficiency: float = 0.9) -> Setup:
    """The setup of a configuration on some hardware."""
    return Setup(
        engines=engines,
        learners=learners,
        shared=shared,
        efficiency=efficiency,
        groups_per_step=config.rollout.groups_per_step,
        group_size=config.rollout.group_size,
        concurrency=config.rollout.concurrency,
        max_staleness=config.rollout.max_staleness,
    )


def _workload(steps: Sequence[Sequence[RecordedGroup]], lines: Sequence[Mapping[str, Any]], setup: Setup) -> Workload:
    groups = tuple(group for step in steps for group in step)
    recorded = sum(episode.num_tokens for group in groups for episode in group)
    trained = sum(float(line[_TOKENS]) for line in lines)
    synced = [float(line.get(_SYNC, line[STEP_SECONDS] - line[_ROLLOUT] - line[_UPDATE])) for line in lines]
    rest = [
        float(line[STEP_SECONDS] - line[_ROLLOUT] - line[_UPDATE]) - sync
        for line, sync in zip(lines, synced, strict=True)
    ]
    slots = max(1, min(setup.concurrency, max(sum(map(len, step)) for step in steps)))
    update = fit_update([float(line[_TOKENS]) for line in lines], [float(line[_UPDATE]) for line in lines])
    speedup = 1 + (setup.learners - 1) * setup.efficiency
    return Workload(
        groups=groups,
        rates=fit_engine(steps, slots, setup.engines),
        update=replace(update, per_token=update.per_token * speedup),
        trained_share=trained / max(recorded, 1),
        weight_sync=max(0.0, fmean(synced)),
        other=max(0.0, fmean(rest)),
        groups_factor=1.0 if setup.max_staleness else fmean(map(len, steps)) / setup.groups_per_step,
    )


def _read_groups(file: Path) -> list[RecordedGroup]:
    """The groups of a step, without failed rollouts."""
    by_group: dict[int, list[Trajectory]] = {}
    for trajectory in read_trajectories(file):
        if not trajectory.is_failure and trajectory.steps:
            by_group.setdefault(trajectory.group_id, []).append(trajectory)
    return [tuple(_episodes(members, file)) for members in by_group.values()]


def _episodes(members: Sequence[Trajectory], file: Path) -> Iterable[RecordedEpisode]:
    """The episodes of a group. The first member computes the prompt that the others share."""
    first_prompt: tuple[int, ...] = ()
    for trajectory in members:
        before = first_prompt
        calls: list[Call] = []
        for step in trajectory.steps:
            if "generate" not in step.timings:
                raise DataError(f"{file} has no times of model calls: record a run again, with this version")
            calls.append(
                Call(
                    wait=float(step.timings.get("wait", 0.0)),
                    prompt_tokens=len(step.prompt_ids),
                    new_tokens=len(step.prompt_ids) - common_prefix(before, step.prompt_ids),
                    action_tokens=len(step.action_ids),
                    env=float(step.timings.get("env", 0.0)) + float(step.timings.get("reward", 0.0)),
                    generate=float(step.timings["generate"]),
                    over_update=len(set(step.policy_versions)) > 1,
                )
            )
            before = step.prompt_ids + step.action_ids
        first_prompt = first_prompt or trajectory.steps[0].prompt_ids
        yield RecordedEpisode(calls=tuple(calls))
