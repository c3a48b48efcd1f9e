"""`ScriptedEngine`: an engine that plays given replies. The public test double for flows, environments and rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from agent_r1.errors import EngineError
from agent_r1.types import Completion, SamplingParams, TokenIds

Script = Callable[[TokenIds, SamplingParams], Sequence[int]]
"""Maps a prompt to the ids of the reply."""


class ScriptedEngine:
    """Plays a list of replies in order, or calls a function for each.

    >>> engine = ScriptedEngine([[5, 6, 2]])
    >>> asyncio.run(engine.generate([1], SamplingParams(stop=(2,)))).token_ids
    (5, 6, 2)

    Replies are cut at the first stop id and at `max_tokens`, as a real engine would. `requests` keeps every prompt.
    """

    def __init__(
        self, replies: Sequence[Sequence[int]] | Script, *, logprob: float = -0.5, context_length: int = 4096
    ) -> None:
        self._replies = replies
        self._logprob = logprob
        self._context_length = context_length
        self._version = 0
        self.requests: list[tuple[TokenIds, SamplingParams]] = []

    @property
    def policy_version(self) -> int:
        """The version given with the latest weight update."""
        return self._version

    @property
    def context_length(self) -> int:
        """The context length given to the constructor."""
        return self._context_length

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names no layers: there are no weights."""
        return ()

    @property
    def pauses_during_update(self) -> bool:
        """True: it stands for an engine in this process."""
        return True

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """The next reply."""
        prompt = tuple(prompt_ids)
        if len(prompt) >= self._context_length:
            raise EngineError(f"a prompt of {len(prompt)} tokens does not fit a context of {self._context_length}")
        self.requests.append((prompt, sampling))
        ids = list(self._reply(prompt, sampling))
        await asyncio.sleep(0)
        stop_at = next((index for index, token in enumerate(ids) if token in sampling.stop), None)
        if stop_at is not None:
            ids = ids[: stop_at + 1]
        stopped = stop_at is not None and stop_at < sampling.max_tokens
        ids = ids[: sampling.max_tokens]
        return Completion(
            token_ids=tuple(ids),
            logprobs=(self._logprob,) * len(ids),
            finish_reason="stop" if stopped else "length",
            policy_versions=(self._version,) * len(ids),
        )

    def _reply(self, prompt: TokenIds, sampling: SamplingParams) -> Sequence[int]:
        if callable(self._replies):
            return self._replies(prompt, sampling)
        if len(self.requests) > len(self._replies):
            raise EngineError(f"the script has {len(self._replies)} replies but {len(self.requests)} were asked for")
        return self._replies[len(self.requests) - 1]

    def paused(self) -> nullcontext[None]:
        """Does nothing: nothing is computed that could disturb a learner."""
        return nullcontext()

    async def update_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Remember the version."""
        self._version = version

    async def close(self) -> None:
        """Does nothing: there is nothing to free."""
