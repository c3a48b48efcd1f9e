"""Generation workloads and their random prompts. Only the standard library: a peer's Python may have nothing else."""

from __future__ import annotations

import random
from dataclasses import dataclass

FIRST_PLAIN_ID = 100
"""Ids below are often special tokens."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Groups of requests, all made at once; the members of a group share their whole prompt."""

    groups: int
    """Different prompts."""
    members: int = 1
    """Requests with the same prompt."""
    prompt_tokens: int
    """Length of a prompt."""
    new_tokens: int
    """Tokens every request generates."""

    @property
    def name(self) -> str:
        """`256 x (128 in + 128 out)`, or `64 x 8 sharing 512 in, 128 out` for groups."""
        if self.members == 1:
            return f"{self.groups} x ({self.prompt_tokens} in + {self.new_tokens} out)"
        return f"{self.groups} x {self.members} sharing {self.prompt_tokens} in, {self.new_tokens} out"

    @property
    def num_requests(self) -> int:
        """Requests alive at once."""
        return self.groups * self.members

    @property
    def num_new_tokens(self) -> int:
        """Tokens generated in all."""
        return self.num_requests * self.new_tokens


def random_prompts(workload: Workload, *, vocabulary: int, seed: int) -> list[tuple[int, ...]]:
    """One prompt per request, members of a group beside each other. Another seed gives prompts no cache has seen.

    2 groups of 2 give [a, a, b, b].
    """
    rng = random.Random(f"{workload.name}, round {seed}")  # no workload begins as another does
    known = range(FIRST_PLAIN_ID, vocabulary)
    prompts = [tuple(rng.choices(known, k=workload.prompt_tokens)) for _ in range(workload.groups)]
    return [prompt for prompt in prompts for _ in range(workload.members)]
