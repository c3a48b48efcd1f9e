"""What a plan is made from: the calls of recorded episodes, and what updates cost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agent_r1.planning.engine import EngineRates


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One model call of an episode, and what happened around it."""

    wait: float
    """Seconds before it: rendering the prompt, making the environment."""
    prompt_tokens: int
    """Tokens of the whole prompt."""
    new_tokens: int
    """Tokens of the prompt that neither the call before nor, in a first call, another member of the group had."""
    action_tokens: int
    """Sampled tokens."""
    env: float
    """Seconds after it: tools and environment; in the last call also the reward function."""
    generate: float = 0.0
    """Seconds that the call itself took."""
    over_update: bool = False
    """The weights changed during the call, so that `generate` has the time of an update in it."""

    def tokens_to_compute(self, *, is_first: bool, is_cached: bool) -> int:
        """Tokens of the prompt to compute; `is_cached` when the prefix cache has the call before, or for a first call
        the prompt of the group.

        The first call of the member that computed the prompt of its group has all of it as new tokens; in a group in
        which another member did, it computes none.
        """
        if not is_cached:
            return self.prompt_tokens
        return 0 if is_first and self.new_tokens == self.prompt_tokens else self.new_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedEpisode:
    """The calls of one recorded rollout."""

    calls: tuple[Call, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of the conversation, each counted once."""
        return sum(call.new_tokens + call.action_tokens for call in self.calls)


RecordedGroup = tuple[RecordedEpisode, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateCost:
    """Seconds of an update, on one learner."""

    base: float
    """Seconds of every update, however many learners share it."""
    per_token: float
    """Per trained token; this part is shared by the learners."""

    def seconds(self, tokens: float, learners: int, efficiency: float) -> float:
        """On `learners`, each further one adding `efficiency` of a learner.

        >>> UpdateCost(base=1.0, per_token=0.01).seconds(900, learners=3, efficiency=0.5)
        5.5
        """
        return self.base + self.per_token * tokens / (1 + (learners - 1) * efficiency)


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A recorded run as the simulation sees it."""

    groups: tuple[RecordedGroup, ...]
    """Recorded groups, to be drawn from."""
    rates: EngineRates
    """The rates of one engine."""
    update: UpdateCost
    """The cost of an update on one learner."""
    trained_share: float
    """Trained tokens per token of an episode: groups without spread are not trained."""
    weight_sync: float
    """Seconds to give the engines new weights."""
    other: float = 0.0
    """Seconds of a step that are none of these: recording."""
    groups_factor: float = 1.0
    """Groups rolled out per group trained, above 1 where groups without spread are refilled."""

    def draw_group(self, size: int, rng: random.Random) -> RecordedGroup:
        """A group of `size`: one that was recorded, with members drawn from it when it has another size."""
        group = rng.choice(self.groups)
        return group if len(group) == size else tuple(rng.choices(group, k=size))

    def with_tools(self, factor: float) -> Workload:
        """The workload with tools, environments and rewards that take `factor` times as long."""
        return self._with_calls(lambda call: replace(call, env=call.env * factor))

    def with_waits(self, factor: float) -> Workload:
        """The workload with `factor` times the time before and around calls."""
        slower = self._with_calls(lambda call: replace(call, wait=call.wait * factor))
        return replace(slower, rates=replace(self.rates, per_call=self.rates.per_call * factor))

    def without_stragglers(self) -> Workload:
        """The workload in which every call takes the mean of the calls with its place in the episode, and every episode
        has the mean number of calls. As in a record, the first member of a group computes the prompt that all share."""
        episodes = [episode for group in self.groups for episode in group]
        length = max(1, round(sum(len(episode.calls) for episode in episodes) / len(episodes)))
        calls = [call for episode in episodes for call in episode.calls]
        opening, *rest = (
            _mean([episode.calls[place] for episode in episodes if place < len(episode.calls)] or calls)
            for place in range(length)
        )
        others = [episode.calls[0] for group in self.groups for episode in group[1:]]
        first = RecordedEpisode(calls=(replace(opening, new_tokens=opening.prompt_tokens), *rest))
        other = (
            RecordedEpisode(calls=(replace(opening, new_tokens=_mean(others).new_tokens), *rest)) if others else first
        )
        return replace(self, groups=tuple((first, *(other,) * (len(group) - 1)) for group in self.groups))

    def _with_calls(self, change: Callable[[Call], Call]) -> Workload:
        groups = tuple(
            tuple(RecordedEpisode(calls=tuple(change(call) for call in episode.calls)) for episode in group)
            for group in self.groups
        )
        return replace(self, groups=groups)


def _mean(calls: Sequence[Call]) -> Call:
    count = len(calls)
    return Call(
        wait=sum(call.wait for call in calls) / count,
        prompt_tokens=round(sum(call.prompt_tokens for call in calls) / count),
        new_tokens=round(sum(call.new_tokens for call in calls) / count),
        action_tokens=round(sum(call.action_tokens for call in calls) / count),
        env=sum(call.env for call in calls) / count,
        generate=sum(call.generate for call in calls) / count,
    )
