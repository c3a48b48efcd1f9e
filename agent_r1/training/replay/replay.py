"""`replay_run`: score the recorded rollouts of a run with another reward or estimator, and say what changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent_r1.algorithms import Algorithm, bind_algorithm
from agent_r1.config import Config, algorithm_name, config_differences, load_config, value_problems
from agent_r1.console import RunConsole
from agent_r1.errors import ConfigError, DataError, no_exit, report_problems
from agent_r1.event_loop import callable_in_event_loop, run_cancelling
from agent_r1.registry import find_module, recipe_folder
from agent_r1.rewards import RewardFunction, find_reward
from agent_r1.runs import RunFolder
from agent_r1.training.components import make_shaping
from agent_r1.training.replay.compare import (
    AdvantageChange,
    Change,
    Example,
    compare_advantages,
    compare_numbers,
    share_with_spread,
    worst_first,
)
from agent_r1.training.replay.credit import Key, ReplayedCredit, credit_without_models
from agent_r1.training.replay.offline import OfflineUpdate, check_weights, offline_update
from agent_r1.training.replay.record import (
    RecordedStep,
    TaskRows,
    choose_steps,
    in_words,
    read_step,
    recorded_steps,
)
from agent_r1.training.replay.rescore import rescore
from agent_r1.types import Trajectory

REPLAYABLE = ("reward", "algorithm", "optimizer", "trainer", "imports", "data")
"""Sections that change what is made of rollouts, not how they are made; `data` for files that were moved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reproduced:
    """How the credit that was recorded compares with the one that is computed from the recorded rewards."""

    tokens: int
    """Recorded advantages."""
    differing: int
    """Recorded advantages that differ."""
    steps: int
    """Recorded rewards of steps."""
    differing_steps: int
    """Recorded rewards of steps that differ."""
    largest: float
    """The largest difference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """What a changed reward or estimator would have changed."""

    run: Path
    """The run."""
    steps: tuple[int, ...]
    """The training steps that were replayed."""
    settings: tuple[str, ...]
    """The keys of the configuration that differ from the run's."""
    trajectories: int
    """Trajectories that were compared."""
    outcome: Change
    """The outcome reward."""
    parts: Mapping[str, Change]
    """What the reward function reports beside it; `process`, `return` and `success`."""
    spread: tuple[float, float]
    """The share of groups whose members earn different returns, before and after."""
    advantages: AdvantageChange | None
    """The advantages; None when they cannot be computed, and `notes` say why."""
    reproduced: Reproduced | None
    """Whether the recorded credit is reproduced; None for a run without `tracking.record_credit`."""
    examples: Sequence[Example]
    """Trajectories that change, those that change most first."""
    notes: Sequence[str] = field(default_factory=tuple)
    """What a reader must know."""
    update: OfflineUpdate | None = None
    """The offline update, with `train`."""


@callable_in_event_loop
def replay_run(
    path: Path,
    overrides: Sequence[str],
    console: RunConsole,
    *,
    steps: Sequence[int] = (),
    train: bool = False,
    model: str | None = None,
) -> Replay:
    """Score the recorded rollouts of a run again, with changes of its configuration, and compare.

    `steps` chooses training steps; `train` makes one update from the last of them, with the weights that sampled it or
    those of `model`, and keeps nothing of it. The folder of the run is only read.
    """
    folder = RunFolder(path)
    recorded_steps(folder)
    config = folder.read_config()
    changed = load_config(config, _check_overrides(overrides))
    if model is not None and not train:
        raise ConfigError("a model is needed for an update only: give --train (train=True) as well, or leave it out")
    with no_exit("the code of the recipe"), recipe_folder(None if config.recipe is None else Path(config.recipe)):
        algorithm, _ = _parts(config, with_reward=False)
        new_algorithm, reward = _parts(changed)
        assert reward is not None
        chosen = _chosen(folder, steps, changed, train=train, model=model)
        balances = {side.algorithm.process.normalisation for side in (config, changed)}
        before = _read(folder, chosen, changed, needs_all="running" in balances)
        with console.progress("scoring", sum(_count(step) for step in before)) as bar:
            after = run_cancelling(lambda: rescore(before, reward, changed, bar.advance))
        _newly_failed(before, after)
        replay = _compare(folder, (config, algorithm, before), (changed, new_algorithm, after), set(chosen))
        if not train:
            return replay
        update = offline_update(folder, changed, new_algorithm, after, step=chosen[-1], model=model, console=console)
        return replace(replay, update=update)


def _check_overrides(overrides: Sequence[str]) -> list[str]:
    """The overrides, all of which must concern what is made of rollouts."""
    wrong = [text for text in overrides if text.lstrip("+~").partition("=")[0].partition(".")[0] not in REPLAYABLE]
    if wrong:
        raise ConfigError(
            f"{', '.join(wrong)}: a replay does not roll out. It can change only keys of what follows the rollouts: "
            f"{', '.join(f'{section}.*' for section in REPLAYABLE)}. Train a run to see what other keys change"
        )
    return list(overrides)


def _parts(config: Config, *, with_reward: bool = True) -> tuple[Algorithm, RewardFunction | None]:
    """The algorithm and the reward of a configuration."""
    report_problems(value_problems(config), ConfigError, "the configuration cannot be used:")
    for module in config.imports:
        find_module(module, f"module '{module}' of imports")
    weighted = [(part.name, part.weight) for part in config.reward.functions]
    reward = find_reward(config.reward.function, weighted) if with_reward else None
    return bind_algorithm(config.algorithm), reward


def _chosen(folder: RunFolder, steps: Sequence[int], config: Config, *, train: bool, model: str | None) -> list[int]:
    """The steps to replay; for an update without named steps, the last one whose weights are there."""
    if not train:
        return choose_steps(folder, steps)
    return [check_weights(folder, config, choose_steps(folder, steps), model=model)]


def _read(folder: RunFolder, chosen: Sequence[int], config: Config, *, needs_all: bool) -> list[RecordedStep]:
    """The chosen steps; with running statistics of process rewards, also all that came before them."""
    numbers = list(chosen)
    if needs_all:
        numbers = list(range(1, max(chosen) + 1))
        missing = sorted(set(numbers) - set(recorded_steps(folder)))
        if missing:
            raise DataError(
                f"algorithm.process.normalisation=running depends on all steps before, and {folder.path} has not "
                f"recorded {in_words(missing)}. Train again with tracking.record_every=1"
            )
    rows = TaskRows.of(config)
    return [read_step(folder, step, rows) for step in numbers]


def _count(step: RecordedStep) -> int:
    return sum(len(group.trajectories) + (group.greedy is not None) for group in step.groups)


_Side = tuple[Config, Algorithm, list[RecordedStep]]


def _compare(folder: RunFolder, before: _Side, after: _Side, chosen: set[int]) -> Replay:
    """What changes from one side to the other in the chosen steps."""
    credits = [
        credit_without_models(steps, algorithm, make_shaping(config), recorded=before[1].settings.kl)
        for config, algorithm, steps in (before, after)
    ]
    credits = [_of_steps(credit, chosen) for credit in credits]
    old, new = credits
    recorded = {key: t for key, t in _trajectories(before[2]).items() if key in old.trajectories}
    scored = {key: t for key, t in _trajectories(after[2]).items() if key in new.trajectories}
    truths = {(step.step, group.group_id): group.task.ground_truth for step in before[2] for group in step.groups}
    parts = {
        name: compare_numbers(_numbers(recorded, name), _numbers(scored, name))
        for name in sorted({part for t in (*recorded.values(), *scored.values()) for part in t.reward_parts})
    }
    sides = ((recorded, old), (scored, new))
    for name, sums in {
        "success": [{key: t.success for key, t in side.items()} for side, _ in sides],
        "process": [{key: t.process_reward for key, t in side.items()} for side, _ in sides],
        "return": [{key: sum(t.rewards) for key, t in credit.trajectories.items()} for _, credit in sides],
    }.items():
        parts[name] = compare_numbers(*sums)
    is_missing = bool(old.missing or new.missing)
    examples = [
        Example(
            step=key[0],
            trajectory=recorded[key],
            ground_truth=str(truths[key[:2]]),
            reward=(recorded[key].outcome_reward, scored[key].outcome_reward),
            advantage=(_advantage_of(old, key, is_missing), _advantage_of(new, key, is_missing)),
        )
        for key in recorded
        if key in scored
    ]
    return Replay(
        run=folder.path,
        steps=tuple(sorted(chosen)),
        settings=_settings(before[0], after[0]),
        trajectories=len(examples),
        outcome=compare_numbers(*({key: t.outcome_reward for key, t in side.items()} for side, _ in sides)),
        parts=parts,
        spread=(share_with_spread(old), share_with_spread(new)),
        advantages=compare_advantages(old, new),
        reproduced=_compare_recorded(before[2], old),
        examples=worst_first(examples),
        notes=_notes(folder, before, after, old, new),
    )


def _advantage_of(credit: ReplayedCredit, key: Key, is_missing: bool) -> float | None:
    return None if is_missing else credit.trajectories[key].advantage


def _settings(old: Config, new: Config) -> tuple[str, ...]:
    """The keys that differ; another preset of the algorithm is one line, not one per key."""
    lines = config_differences(old, new)
    if old.algorithm.preset != new.algorithm.preset:
        lines = [line for line in lines if not line.startswith("algorithm.")]
        lines.append(f"algorithm: {algorithm_name(old)} -> {algorithm_name(new)}")
    return tuple(lines)


def _of_steps(credit: ReplayedCredit, chosen: set[int]) -> ReplayedCredit:
    return replace(credit, trajectories={key: t for key, t in credit.trajectories.items() if key[0] in chosen})


def _trajectories(steps: Sequence[RecordedStep]) -> dict[Key, Trajectory]:
    return {(step.step, t.group_id, t.member): t for step in steps for group in step.groups for t in group}


def _numbers(trajectories: Mapping[Key, Trajectory], part: str) -> dict[Key, float]:
    return {key: float(t.reward_parts[part]) for key, t in trajectories.items() if part in t.reward_parts}


def _compare_recorded(steps: Sequence[RecordedStep], credit: ReplayedCredit) -> Reproduced | None:
    """How recorded credit compares with the one that follows from the recorded rewards."""
    if credit.missing or not any(step.credit for step in steps):
        return None
    tokens, rewards = list[tuple[float | None, float | None]](), list[tuple[float | None, float]]()
    for step in steps:
        for (group, member), recorded in (step.credit or {}).items():
            replayed = credit.trajectories.get((step.step, group, member))
            if replayed is None or replayed.advantages is None:
                continue
            for step_credit, numbers, reward in zip(recorded, replayed.advantages, replayed.rewards, strict=True):
                tokens += zip(step_credit.advantages, numbers, strict=True)
                if not step_credit.penalties:  # a KL penalty is part of the recorded reward
                    rewards.append((step_credit.reward, reward))
    differences = [abs((one or 0.0) - (other or 0.0)) for one, other in (*tokens, *rewards)]
    return Reproduced(
        tokens=len(tokens),
        differing=sum(one != other for one, other in tokens),
        steps=len(rewards),
        differing_steps=sum(one != other for one, other in rewards),
        largest=max(differences, default=0.0),
    )


def _newly_failed(before: Sequence[RecordedStep], after: Sequence[RecordedStep]) -> list[Trajectory]:
    """The episodes on which the reward function failed; an error when it failed on all."""
    recorded, scored = _trajectories(before), _trajectories(after)
    scorable = [key for key, trajectory in recorded.items() if not trajectory.is_failure]
    failed = [scored[key] for key in scorable if scored[key].is_failure]
    if failed and len(failed) == len(scorable):
        raise DataError(
            f"the reward function failed on all {len(scorable)} episodes; on the first one:\n{failed[0].error}"
        )
    return failed


def _notes(folder: RunFolder, before: _Side, after: _Side, old: ReplayedCredit, new: ReplayedCredit) -> tuple[str, ...]:
    """What a reader must know about a comparison."""
    missing = [note for note in dict.fromkeys([old.missing, new.missing]) if note]
    notes = [f"advantages are not compared: {note}" for note in missing]
    notes += [note for note in dict.fromkeys([old.approximation, new.approximation]) if note]
    if after[1].settings.critic.enabled and new.missing is None:
        notes.append("the critic's values are the recorded ones; a critic fitted to changed rewards would have others")
    recorded = list(_trajectories(before[2]).values())
    failed, posted = (sum(t.is_failure for t in recorded), sum(t.posted_reward is not None for t in recorded))
    if failed:
        notes.append(f"{failed} of {len(recorded)} rollouts failed in the run and have no episode to score")
    if posted:
        notes.append(f"{posted} of {len(recorded)} rewards were posted by the agent itself and stay as they are")
    raised = _newly_failed(before[2], after[2])
    if raised:
        notes.append(
            f"the reward function failed on {len(raised)} of {len(recorded)} episodes, which are left out; on the "
            f"first one:\n{raised[0].error}"
        )
    steps = recorded_steps(folder)
    if len(steps) < max(steps):
        notes.append(f"the run has recorded {in_words(steps)}; the others cannot be replayed")
    return tuple(notes)
