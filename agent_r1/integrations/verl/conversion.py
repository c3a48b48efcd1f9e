"""From the steps of an episode to the sequences that verl trains on: one prompt, one response, one mask.

verl knows no steps. A response of verl is everything after the first prompt: sampled ids, which its mask marks with 1,
and what tools and users wrote in between, marked with 0. That holds an episode exactly when each prompt begins with all
ids before it:

    step 0: prompt (1, 2), action (3)          one sequence: prompt (1, 2)
    step 1: prompt (1, 2, 3, 7), action (4, 5)               response (3, 7, 4, 5), mask (1, 0, 1, 1)

Where the history was rewritten, or the episode branches, a step extends no sequence and begins another. Every sampled
id is in exactly one sequence with mask 1, after exactly the ids it was sampled after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from agent_r1.errors import ConfigError, DataError
from agent_r1.types import Step, TokenIds


@dataclass(frozen=True, kw_only=True, slots=True)
class VerlSequence:
    """One sequence, in verl's terms. Mask, log-probs and rewards have one entry per response id."""

    prompt_ids: TokenIds
    """What the model saw before the first action."""
    response_ids: TokenIds
    """Everything after it."""
    response_mask: tuple[int, ...]
    """1: sampled. 0: written by anything but the model."""
    response_logprobs: tuple[float, ...]
    """The engine's log-probability of each sampled id; 0 for others."""
    response_rewards: tuple[float, ...]
    """The reward of each step on its last sampled id; 0 elsewhere."""
    steps: tuple[int, ...]
    """Which steps of the episode it holds."""
    runs_are_steps: bool
    """Each run of 1s in the mask is one step. False where a step sampled nothing, or follows another directly."""


@dataclass(slots=True)
class _Chain:
    """A sequence while it grows."""

    prompt_ids: TokenIds
    ids: list[int]
    """Prompt and response."""
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    """Sampled ids of each step."""
    steps: list[int] = field(default_factory=list)
    owed: float = 0.0
    """Rewards of steps that sampled nothing, before anything was sampled."""

    def add(self, index: int, step: Step, reward: float) -> None:
        """Append a step whose prompt begins with `ids`."""
        between = step.prompt_ids[len(self.ids) :]
        self.ids += [*between, *step.action_ids]
        self.mask += [0] * len(between) + [1] * len(step.action_ids)
        self.logprobs += [0.0] * len(between) + list(step.rollout_logprobs)
        self.rewards += [0.0] * (len(between) + len(step.action_ids))
        self.lengths.append(len(step.action_ids))
        self.steps.append(index)
        sampled = [place for place, marked in enumerate(self.mask) if marked] if reward or self.owed else []
        if sampled:
            self.rewards[sampled[-1]] += reward + self.owed
            self.owed = 0.0
        else:
            self.owed += reward

    def finished(self) -> VerlSequence:
        """The sequence; ids after the last sampled one are cut, since nothing follows them."""
        size = max((place + 1 for place, marked in enumerate(self.mask) if marked), default=0)
        first = len(self.prompt_ids)
        return VerlSequence(
            prompt_ids=self.prompt_ids,
            response_ids=tuple(self.ids[first : first + size]),
            response_mask=tuple(self.mask[:size]),
            response_logprobs=tuple(self.logprobs[:size]),
            response_rewards=tuple(self.rewards[:size]),
            steps=tuple(self.steps),
            runs_are_steps=self.lengths == mask_runs(self.mask),
        )


def mask_runs(mask: Sequence[int]) -> list[int]:
    """The lengths of the runs of 1s.

    >>> mask_runs([1, 1, 0, 1])
    [2, 1]
    """
    return [len(list(run)) for marked, run in groupby(mask) if marked]


def sequences_of(steps: Sequence[Step], rewards: Sequence[float] | None = None) -> list[VerlSequence]:
    """The sequences that hold an episode, the one with the last step last. `rewards` replace those of the steps.

    A step extends the longest sequence whose ids its prompt begins with, else it begins one. Raises `DataError` for an
    episode in which nothing was sampled.
    """
    earned = [step.reward for step in steps] if rewards is None else list(rewards)
    if len(earned) != len(steps):
        raise ValueError(f"{len(earned)} rewards for {len(steps)} steps; give one per step")
    chains: list[_Chain] = []
    for index, (step, reward) in enumerate(zip(steps, earned, strict=True)):
        prompt = list(step.prompt_ids)
        extended = [chain for chain in chains if prompt[: len(chain.ids)] == chain.ids]
        chain = max(extended, key=lambda chain: len(chain.ids), default=None)
        if chain is None:
            chain = _Chain(prompt_ids=tuple(prompt), ids=prompt)
            chains.append(chain)
        chain.add(index, step, reward)
    sampled = [chain for chain in chains if any(chain.mask)]
    if not sampled:
        raise DataError(f"an episode of {len(steps)} steps has no sampled id; verl cannot train on an empty response")
    lost = sum(chain.owed for chain in chains if not any(chain.mask))
    sampled.sort(key=lambda chain: chain.steps[-1])
    if lost:  # steps without a sampled id in a sequence of their own: the episode's last id earns what they did
        sampled[-1].rewards[max(place for place, marked in enumerate(sampled[-1].mask) if marked)] += lost
    return [chain.finished() for chain in sampled]


def check_lengths(sequence: VerlSequence, *, prompt_length: int, response_length: int) -> None:
    """Refuse what does not fit verl's lengths; verl itself would cut it and train on the rest."""
    lengths = (len(sequence.prompt_ids), len(sequence.response_ids))
    for name, length, limit in zip(("prompt", "response"), lengths, (prompt_length, response_length), strict=True):
        if length > limit:
            raise ConfigError(
                f"a {name} of {length} tokens does not fit data.max_{name}_length={limit}; raise that key, or shorten "
                "the episodes (rollout.max_steps, rollout.max_tokens of the recipe)"
            )
