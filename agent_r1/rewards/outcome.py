"""Outcome rewards: one number per episode, at its end.

    def score(task: Task, episode: Episode) -> float:
        return float(episode.answer == task.ground_truth)

`episode.answer` is the text of a finished last turn: "" when the episode was cut, or ended in a tool call. A reward
that compares with the row's ground truth declares it, and a run refuses rows without one before it trains:

    @needs_ground_truth("number")
    def score(task: Task, episode: Episode) -> float:
        return float(number_matches(find_last_number(episode.answer), task.ground_truth))

A reward function may be async, and may return a mapping instead of a number: `score` is the reward, `answer` (text) is
what majority votes count, every other entry is logged as `reward/<name>`; `success` (0 or 1) says what counts as solved
when that is not a reward of 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from agent_r1.constraints import reward_number
from agent_r1.errors import DataError, boundary
from agent_r1.registry import Registry, takes
from agent_r1.rewards.matching import (
    TruthKind,
    accepted_answers,
    exact_match,
    normalise_text,
    number_matches,
    truth_problem,
)
from agent_r1.rewards.number_reading import find_last_number, number_text
from agent_r1.types import Episode, StopReason, Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """An episode's outcome reward with what the reward function reported beside it."""

    value: float
    """The outcome reward."""
    answer: str
    """What a majority vote counts; "" is no vote."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Everything else it reported, by name."""


RewardValue = float | Mapping[str, Any] | Score
RewardFunction = Callable[[Task, Episode], RewardValue | Awaitable[RewardValue]]
"""`def score(task: Task, episode: Episode) -> float`, or async, or with a mapping as its result."""

_OF_BATCHES = {"prompts", "completions"}
"""Arguments of TRL's reward functions, which score a whole batch."""


def _takes_task_and_episode(function: Any) -> bool:
    """Whether it takes two arguments, and they are not those of a reward function for TRL."""
    if not takes(2)(function):
        return False
    try:
        return not _OF_BATCHES & inspect.signature(function).parameters.keys()
    except ValueError:  # a function written in C, without a signature
        return True


reward_functions: Registry[RewardFunction] = Registry(
    "reward function",
    accepts=_takes_task_and_episode,
    expected="a function of a task and an episode (one that takes prompts and completions scores a batch)",
)

_ROUNDING = 1e-6
"""By how much a share that is a sum of parts may miss 0 or 1."""

_FunctionT = TypeVar("_FunctionT", bound=RewardFunction)


def needs_ground_truth(kind: TruthKind) -> Callable[[_FunctionT], _FunctionT]:
    """Declare that a reward function compares with `task.ground_truth`: "text" by its normal form, "exact" letter for
    letter, "number" by its value. A run refuses the rows that no answer can match before it trains."""

    def mark(function: _FunctionT) -> _FunctionT:
        function.needs_ground_truth = kind  # type: ignore[attr-defined]
        return function

    return mark


def row_problem(function: RewardFunction, task: Task) -> str | None:
    """Why a reward function cannot score a row; None when it can, or when it does not declare what it needs."""
    kind: TruthKind | None = getattr(function, "needs_ground_truth", None)
    return None if kind is None else truth_problem(task.ground_truth, kind)


async def score_episode(function: RewardFunction, task: Task, episode: Episode) -> Score:
    """Score one episode; a reward that raises or is not a finite number fails the rollout, it is never 0.

    `lambda task, episode: {"score": 0.5, "answer": "12", "format": 1}` gives Score(value=0.5, answer="12",
    parts={"format": 1.0}).
    """
    with boundary(StopReason.REWARD_ERROR, f"the reward function on task '{task.task_id}'"):
        problem = row_problem(function, task)
        if problem is not None:
            raise DataError(f"row '{task.task_id}' cannot be scored: {problem}")
        returned: Any = function(task, episode)
        if inspect.isawaitable(returned):
            returned = await returned
        if isinstance(returned, Score):
            checked = {name: _number(name, value) for name, value in returned.parts.items()}
            _check_success(checked)
            return replace(returned, value=_number("score", returned.value), parts=checked)
        parts = dict(returned) if isinstance(returned, Mapping) else {"score": returned}
        if "score" not in parts:
            raise ValueError(f"a reward mapping needs the key 'score', found {sorted(parts)}")
        answer = parts.pop("answer", episode.answer)
        numbers = {name: _number(name, value) for name, value in parts.items()}
        _check_success(numbers)
        return Score(value=numbers.pop("score"), answer="" if answer is None else str(answer), parts=numbers)


def _number(name: str, value: Any) -> float:
    try:
        return reward_number(value)
    except ValueError as error:
        raise ValueError(
            f"the reward's '{name}' {error}. A reward function returns a number, or a mapping with 'score'"
        ) from None


def _check_success(parts: Mapping[str, float]) -> None:
    """`success` is counted as a share of tasks solved, so it lies between 0 and 1, but for rounding."""
    success = parts.get("success", 0.0)
    if not -_ROUNDING <= success <= 1.0 + _ROUNDING:
        raise ValueError(
            f"the reward's 'success' is {success:g}: it says what counts as solved, 1 or 0 (or a share between them). "
            "Report another number under another name"
        )


@reward_functions.register("none")
def no_outcome_reward(task: Task, episode: Episode) -> float:
    """0: all reward comes from the environment's steps."""
    return 0.0


@reward_functions.register("exact_match")
@needs_ground_truth("text")
def exact_match_reward(task: Task, episode: Episode) -> RewardValue:
    """1 when the answer equals the ground truth, or one of a list, up to case, punctuation, articles and spaces."""
    matches = exact_match(episode.answer, accepted_answers(task.ground_truth))
    return {"score": float(matches), "answer": normalise_text(episode.answer)}


@reward_functions.register("last_number")
@needs_ground_truth("number")
def last_number_reward(task: Task, episode: Episode) -> RewardValue:
    """1 when the last number of the answer equals the ground truth."""
    number = find_last_number(episode.answer)
    return {
        "score": float(number_matches(number, task.ground_truth)),
        "answer": "" if number is None else number_text(number),
    }
