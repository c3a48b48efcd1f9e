"""Several outcome rewards added up with weights, each logged by its name.

    reward:
      functions: [{name: reward_fn:correct}, {name: reward_fn:format_ok, weight: 0.2}]

gives `correct + 0.2 * format_ok`, logged as `reward/outcome`, and each value as `reward/correct` and
`reward/format_ok`. What a function reports beside its score is logged as `reward/<function>/<name>`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from agent_r1.errors import ConfigError
from agent_r1.metric_names import REWARD_FIGURES
from agent_r1.rewards.outcome import RewardFunction, Score, reward_functions, score_episode
from agent_r1.types import Episode, Task


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightedReward:
    """One term of the sum."""

    name: str
    """What it is logged as."""
    function: RewardFunction
    """Scores an episode."""
    weight: float = 1.0
    """What its value is multiplied by."""


@dataclass(frozen=True, slots=True)
class RewardSum:
    """A reward function that adds several up. The first is the main one: its `answer` and its `success` count.

    Of `correct` (1) and `format_ok` (0.5) with weights 1 and 0.2 the sum is 1.1.
    """

    terms: tuple[WeightedReward, ...]
    """In the order in which they were given."""

    async def __call__(self, task: Task, episode: Episode) -> Score:
        """The sum, with the value of each term among its parts."""
        scores = [await score_episode(term.function, task, episode) for term in self.terms]
        parts = {
            label: value
            for term, score in zip(self.terms, scores, strict=True)
            for label, value in _label_parts(term.name, score)
        }
        main = scores[0]
        return Score(
            value=math.fsum(term.weight * score.value for term, score in zip(self.terms, scores, strict=True)),
            answer=main.answer,
            parts={**parts, "success": main.parts.get("success", float(main.value >= 1.0))},
        )

    def with_functions(self, change: Callable[[RewardFunction], RewardFunction]) -> RewardSum:
        """The sum with each function replaced by what `change` makes of it."""
        return RewardSum(tuple(replace(term, function=change(term.function)) for term in self.terms))


def find_reward(function: str, weighted: Sequence[tuple[str, float]] = ()) -> RewardFunction:
    """The reward function that a configuration names: the sum of the weighted ones when there are any."""
    if not weighted:
        return reward_functions.get(function)
    terms = [
        WeightedReward(name=name.rpartition(":")[2], function=reward_functions.get(name), weight=weight)
        for name, weight in weighted
    ]
    for term in terms:
        if not math.isfinite(term.weight):
            raise ConfigError(f"the weight of the reward function '{term.name}' is {term.weight}; it must be finite")
        if term.name in REWARD_FIGURES:
            raise ConfigError(f"a reward function may not be named '{term.name}': reward/{term.name} is logged already")
    names = [term.name for term in terms]
    if len(set(names)) < len(names):
        raise ConfigError(f"reward.functions has one name twice: {', '.join(names)}; each is logged by its name")
    return RewardSum(tuple(terms))


def terms_of(reward: RewardFunction) -> tuple[RewardFunction, ...]:
    """The functions a reward calls: those of a sum, or itself."""
    return tuple(term.function for term in reward.terms) if isinstance(reward, RewardSum) else (reward,)


def _label_parts(name: str, score: Score) -> Iterator[tuple[str, float]]:
    yield name, score.value
    for part, value in score.parts.items():
        if part != "success":
            yield f"{name}/{part}", value
