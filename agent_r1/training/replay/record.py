"""The recorded rollouts of a run as groups of its tasks, with the credit that was recorded beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1.config import Config
from agent_r1.data import load_tasks
from agent_r1.errors import ConfigError, DataError
from agent_r1.rollout import RolloutLimits
from agent_r1.runs import RunFolder, read_credit, read_with_prompts
from agent_r1.types import Group, StepCredit, Task, Trajectory

RecordedCredit = Mapping[tuple[int, int], tuple[StepCredit, ...]]
"""By group and member; see `read_credit`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedStep:
    """One training step, as it was recorded."""

    step: int
    """Its number; the first is 1."""
    groups: tuple[Group, ...]
    """Its rollouts."""
    credit: RecordedCredit | None
    """What the learner made of them; None for a run without `tracking.record_credit`."""


def recorded_steps(folder: RunFolder) -> list[int]:
    """The training steps whose rollouts are recorded; `DataError` when there are none."""
    if not folder.config.is_file():
        raise DataError(f"{folder.path} is not the folder of a run: it has no config.yaml")
    steps = [int(file.stem) for file in folder.trajectory_files() if file.stem.isdigit()]
    if not steps:
        raise DataError(
            f"{folder.path} has no recorded rollouts in {folder.trajectories.name}/, so there is nothing to replay. "
            "`agent-r1 train` records them with tracking.record_every=1, which is the default"
        )
    return steps


def choose_steps(folder: RunFolder, chosen: Sequence[int]) -> list[int]:
    """The steps to replay: all recorded ones, or those asked for, each of which must be recorded."""
    recorded = recorded_steps(folder)
    missing = sorted(set(chosen) - set(recorded))
    if missing:
        raise DataError(
            f"{folder.path} has not recorded {in_words(missing)}; it has recorded {in_words(recorded)}. Choose among "
            "them, or train again with tracking.record_every=1, which records every step"
        )
    return sorted(set(chosen)) if chosen else recorded


def in_words(steps: Sequence[int]) -> str:
    """Steps in few words.

    >>> in_words([1, 2, 3, 7]), in_words([4])
    ('steps 1 to 3, 7', 'step 4')
    """
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][-1] + 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(parts)}"


def read_step(folder: RunFolder, step: int, rows: TaskRows) -> RecordedStep:
    """The rollouts of one step. `DataError` when they are of other rows than those of today's data files, or when the
    credit beside them is of other tokens."""
    file = folder.step_trajectories(step)
    by_group: dict[int, tuple[Task, list[Trajectory]]] = {}
    for prompt, trajectory in read_with_prompts(file):
        if trajectory.group_id not in by_group:
            by_group[trajectory.group_id] = rows.find(trajectory.task_id, prompt, file), []
        by_group[trajectory.group_id][1].append(trajectory)
    groups = tuple(make_group(task, members) for task, members in by_group.values())
    credit_file = folder.step_credit(step)
    credit = read_credit(credit_file) if credit_file.is_file() else None
    if credit is not None:
        _check_lengths(groups, credit, credit_file)
    return RecordedStep(step=step, groups=groups, credit=credit)


def make_group(task: Task, recorded: Sequence[Trajectory]) -> Group:
    """The group of the rollouts of one task; it is dropped where a run would drop it."""
    members = tuple(trajectory for trajectory in recorded if trajectory.member >= 0)
    valid = sum(not trajectory.is_failure for trajectory in members)
    return Group(
        task=task,
        group_id=recorded[0].group_id,
        trajectories=members,
        greedy=next((trajectory for trajectory in recorded if trajectory.member < 0), None),
        dropped=valid < RolloutLimits().min_group_share * len(members),
    )


class TaskRows:
    """The rows that a run trained on, found by what its trajectories say of them."""

    def __init__(self, tasks: Iterable[Task], files: Sequence[str]) -> None:
        self._files = files
        self._by_id: dict[str, list[Task]] = {}
        for task in tasks:
            self._by_id.setdefault(task.task_id, []).append(task)

    @classmethod
    def of(cls, config: Config) -> TaskRows:
        """The rows of `data.train`."""
        missing = [path for path in config.data.train if not Path(path).is_file()]
        if missing or not config.data.train:
            named = ", ".join(missing) or "none is named"
            raise ConfigError(
                f"the rows that the run trained on are not there ({named}): rewards need their ground truths. Replay "
                "from the folder in which the run was started, or give the files with data.train=[FILE,...]"
            )
        return cls(load_tasks(config.data.train, default_agent=config.data.agent_name), config.data.train)

    def find(self, task_id: str, prompt: Sequence[Mapping[str, Any]], file: Path) -> Task:
        """The row of a trajectory: the one with its id and its prompt."""
        tasks = self._by_id.get(task_id, [])
        if not tasks:
            raise DataError(f"{file} has the task '{task_id}', which is not in {', '.join(self._files)}: {_CHANGED}")
        same = [task for task in tasks if _texts(task.prompt) == _texts(prompt)]
        if not same:
            raise DataError(f"{file} has another prompt of task '{task_id}' than {', '.join(self._files)}: {_CHANGED}")
        if any(task.reward_model != same[0].reward_model for task in same):
            raise DataError(
                f"{', '.join(self._files)}: {len(same)} rows have the id '{task_id}' and the same prompt, but "
                "different ground truths, so it is unknown which of them was rolled out. Give each row its own id"
            )
        return same[0]


_CHANGED = "the data has changed since the run. Restore the files, or name them with data.train=[FILE,...]"


def _texts(prompt: Iterable[Mapping[str, Any]]) -> list[tuple[Any, str]]:
    """What a prompt says, without its pictures: they are recorded as references."""
    return [(message.get("role"), _text(message.get("content"))) for message in prompt]


def _text(content: Any) -> str:
    if not isinstance(content, list | tuple):
        return "" if content is None else str(content)
    return "\n".join(str(part["text"]) for part in content if isinstance(part, Mapping) and "text" in part)


def _check_lengths(groups: Iterable[Group], credit: RecordedCredit, file: Path) -> None:
    """Refuse credit of other tokens than those of the trajectories."""
    for trajectory in (trajectory for group in groups for trajectory in group.learnable):
        steps = credit.get((trajectory.group_id, trajectory.member))
        lengths = [len(step.action_ids) for step in trajectory.steps]
        if steps is not None and [len(step.advantages) for step in steps] != lengths:
            raise DataError(
                f"the tokens of task '{trajectory.task_id}', member {trajectory.member}, have changed: its steps have "
                f"{lengths} tokens, and {file} has credit for {[len(step.advantages) for step in steps]}. Restore both "
                "files, or delete that one to replay without the recorded credit"
            )
