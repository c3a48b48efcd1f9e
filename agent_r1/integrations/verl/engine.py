"""`VerlEngine`: verl's servers as an `Engine`, for one episode.

verl's client takes ids and gives ids with log-probs. Sampling is verl's: temperature, top_p and top_k come from its
configuration (those of `val_kwargs` in a validation), and requests have no seed of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from agent_r1.errors import ConfigError, EngineError, EngineRequestError
from agent_r1.types import Completion, SamplingParams


class VerlServer(Protocol):
    """verl's `LLMServerClient`."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **more: Any
    ) -> Any:
        """Sample one completion; returns verl's `TokenOutput`."""
        ...


@dataclass
class EngineCounts:
    """What verl's servers said about the requests of an episode."""

    num_preempted: int = -1
    """How often requests were preempted; -1: no server says."""
    min_global_steps: int | None = None
    """The oldest weights that sampled a token, as verl numbers them."""
    max_global_steps: int | None = None
    """The newest version of the weights that sampled a token."""

    def add(self, output: Any) -> None:
        """Count one `TokenOutput`."""
        if output.num_preempted is not None:
            self.num_preempted = max(0, self.num_preempted) + output.num_preempted
        fields = output.extra_fields
        oldest, newest = (fields.get(f"{end}_global_steps", fields.get("global_steps")) for end in ("min", "max"))
        if oldest is not None:
            self.min_global_steps = min(oldest, oldest if self.min_global_steps is None else self.min_global_steps)
        if newest is not None:
            self.max_global_steps = max(newest, newest if self.max_global_steps is None else self.max_global_steps)


class VerlEngine:
    """Samples from verl's servers. Its requests share one id, so that verl sends them to the same server.

    verl bounds an episode by two lengths: its first prompt, and everything after it. `context_length` follows from both
    as soon as the first prompt is known.
    """

    def __init__(
        self,
        server: VerlServer,
        *,
        request_id: str,
        sampling_params: Mapping[str, Any],
        prompt_length: int,
        response_length: int,
        priority: int = 0,
    ) -> None:
        if not sampling_params.get("logprobs"):
            raise ConfigError(
                "verl samples without log-probs, and a step needs one for each sampled id; set "
                "actor_rollout_ref.rollout.calculate_log_probs=True"
            )
        self._server = server
        self._request_id = request_id
        self._sampling_params = dict(sampling_params)
        self._prompt_length = prompt_length
        self._response_length = response_length
        self._more = {"priority": priority} if priority else {}
        self._ids: list[int] | None = None
        """Prompt and completion of the latest request."""
        self._first_prompt = 0
        """The length of the prompt that the current sequence began with."""
        self.counts = EngineCounts()

    @property
    def policy_version(self) -> int:
        """verl's number of the newest weights that sampled a token; 0 before the first."""
        return self.counts.max_global_steps or 0

    @property
    def context_length(self) -> int:
        """What prompt and completion together may have: the first prompt and verl's response length."""
        longest = self._prompt_length + self._response_length
        return longest if self._ids is None else min(longest, self._first_prompt + self._response_length)

    @property
    def adapters(self) -> tuple[str, ...]:
        """None: verl gives its servers whatever they need."""
        return ()

    @property
    def pauses_during_update(self) -> bool:
        """verl decides when its servers pause."""
        return False

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Sample one completion."""
        prompt = list(prompt_ids)
        if self._ids is None and len(prompt) > self._prompt_length:
            raise EngineRequestError(
                f"a first prompt of {len(prompt)} tokens does not fit verl's data.max_prompt_length="
                f"{self._prompt_length}; raise it, or leave the row out"
            )
        extends = self._ids is not None and prompt[: len(self._ids)] == self._ids
        room = (self.context_length if extends else self._prompt_length + self._response_length) - len(prompt)
        if room < 1:
            raise EngineRequestError(
                f"a prompt of {len(prompt)} tokens leaves no room in verl's lengths: data.max_prompt_length="
                f"{self._prompt_length} and data.max_response_length={self._response_length}"
            )
        if not extends:
            self._first_prompt = len(prompt)
        stop = sorted({*(self._sampling_params.get("stop_token_ids") or ()), *sampling.stop})
        max_tokens = min(sampling.max_tokens, room, self._response_length)
        output = await self._server.generate(
            request_id=self._request_id,
            prompt_ids=prompt,
            sampling_params={**self._sampling_params, "max_tokens": max_tokens, "stop_token_ids": stop},
            **self._more,
        )
        completion = self._completion(output, max_tokens, stop)
        self._ids = [*prompt, *completion.token_ids]
        return completion

    def _completion(self, output: Any, max_tokens: int, stop: Sequence[int]) -> Completion:
        ids, logprobs = tuple(output.token_ids), output.log_probs
        if output.stop_reason in ("aborted", "abort"):
            raise EngineError(f"verl aborted a request after {len(ids)} tokens")
        if not 0 < len(ids) <= max_tokens:
            raise EngineError(f"verl's server sampled {len(ids)} tokens; expected 1 to {max_tokens}")
        if logprobs is None or len(logprobs) != len(ids):
            count = "none" if logprobs is None else str(len(logprobs))
            raise EngineError(
                f"verl's server gave {count} log-probs for {len(ids)} tokens; each needs its own "
                "(actor_rollout_ref.rollout.calculate_log_probs=True)"
            )
        self.counts.add(output)
        return Completion(
            token_ids=ids,
            logprobs=tuple(map(float, logprobs)),
            finish_reason="stop" if ids[-1] in stop else "length",
            policy_versions=(self.policy_version,) * len(ids),
        )

    async def update_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Refused: verl updates its servers itself."""
        raise EngineError("verl updates the weights of its servers; nothing else may")

    def paused(self) -> AbstractAsyncContextManager[None]:
        """verl pauses its servers itself."""
        return nullcontext()

    async def close(self) -> None:
        """Nothing: the servers are verl's."""
