"""Conversations of many turns, played on the engine's scheduler without a model: how many tokens it lets compute."""

from __future__ import annotations

import random

from agent_r1.engines.local.blocks import BLOCK_SIZE
from agent_r1.engines.local.request import Request
from agent_r1.engines.local.scheduler import Scheduler
from agent_r1.types import SamplingParams

OPENING, SAMPLED, ANSWERED = 96, 8, 24
"""Tokens with which a conversation begins; of a turn, those that the model samples and those that it reads then."""


class FirstComeFirstServed(Scheduler):
    """Serves in the order of arrival, whatever is in the cache."""

    def add(self, request: Request) -> None:
        """Wait behind all others."""
        self.waiting.append(request)


class PlayedConversations:
    """Conversations whose every turn begins when the one before is finished; all begin at once.

    A conversation begins with `opening` tokens and keeps its first `longest` ones.
    """

    def __init__(
        self, scheduler: Scheduler, *, count: int, turns: int, opening: int = OPENING, longest: int | None = None
    ) -> None:
        self.scheduler, self.turns, self.longest = scheduler, turns, longest
        self.computed = 0
        self._rng = random.Random(0)
        self.said: list[list[int]] = [self.ids(opening) for _ in range(count)]
        self.turns_of = [0] * count
        self.speaker_of: dict[Request, int] = {}

    def ids(self, count: int) -> list[int]:
        """Random tokens."""
        return self._rng.choices(range(10_000), k=count)

    def play(self, max_steps: int = 20_000) -> int:
        """Play all to their end; returns how many tokens were computed."""
        for speaker in range(len(self.said)):
            self.speak(speaker)
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                break
            self.step()
        if self.turns_of != [self.turns] * len(self.said):
            raise RuntimeError(f"after {max_steps} steps the conversations have had {self.turns_of} turns")
        return self.computed

    def speak(self, speaker: int) -> None:
        """Begin the next turn of a conversation."""
        request = Request(prompt=tuple(self.said[speaker]), sampling=SamplingParams(max_tokens=SAMPLED))
        self.speaker_of[request] = speaker
        self.scheduler.add(request)

    def step(self) -> None:
        """One step of the engine."""
        scheduler = self.scheduler
        chunks = scheduler.schedule()
        scheduler.mark_computed(chunks)
        self.computed += sum(chunk.length for chunk in chunks)
        for chunk in chunks:
            if chunk.samples:
                request = chunk.request
                count = request.append(self.ids(chunk.new_tokens), [0.0] * chunk.new_tokens, 0)
                request.num_computed += count - 1
                self.computed += count - 1
                if request.finished:
                    self._finish(request)
                else:
                    scheduler.cache_full_blocks(request)
        scheduler.release_finished()

    def _finish(self, request: Request) -> None:
        self.scheduler.finish(request)
        speaker = self.speaker_of.pop(request)
        self.said[speaker] = (request.tokens + self.ids(ANSWERED))[: self.longest]
        self.turns_of[speaker] += 1
        if self.turns_of[speaker] < self.turns:
            self.speak(speaker)


def scheduler_of(kind: type[Scheduler], *, tokens: int, max_requests: int = 32) -> Scheduler:
    """A scheduler whose cache holds so many tokens."""
    return kind(num_blocks=tokens // BLOCK_SIZE, max_requests=max_requests, prefill_tokens=2048, burst=8)


def computed_tokens(kind: type[Scheduler], *, tokens: int, count: int = 32, turns: int = 20) -> int:
    """Tokens that are computed for conversations that begin at once, in a cache of so many tokens."""
    scheduler = scheduler_of(kind, tokens=tokens, max_requests=count)
    return PlayedConversations(scheduler, count=count, turns=turns).play(max_steps=100 * count * turns)
