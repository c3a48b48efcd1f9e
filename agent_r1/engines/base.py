"""The `Engine` protocol: token ids in, token ids and log-probs out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from agent_r1.types import Completion, SamplingParams


class Engine(Protocol):
    """Anything that can sample from the policy.

    `generate` may be called by any number of episodes at once; an engine batches them as it likes. A request depends
    only on its prompt, its sampling parameters (the seed among them) and the weights.

    Weights may change while requests are under way. What was sampled stays; what is sampled from then on is what the
    new weights say after the prompt and all that was sampled, and `Completion.policy_versions` tells the two apart:

        4 ids sampled at version 0, then `update_weights(..., version=1)`, then 2 more: (0, 0, 0, 0, 1, 1)
    """

    @property
    def policy_version(self) -> int:
        """The version given with the latest weight update."""
        ...

    @property
    def context_length(self) -> int:
        """Prompt and completion together may not be longer than this."""
        ...

    @property
    def adapters(self) -> Collection[str]:
        """Layers whose LoRA adapters the engine applies itself: for these `update_weights` brings the plain weight,
        `<layer>.lora_A` and `<layer>.lora_B` (scaled). All others come merged."""
        ...

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Sample one completion. Raises `EngineError` when the prompt does not fit or the engine is broken."""
        ...

    async def update_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Take over the trainer's weights (name, tensor). Every id sampled from here on carries `version`, those of
        requests under way too."""
        ...

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Inside, an engine that shares the learner's device computes nothing and requests wait; another engine may
        continue. Weights may be updated inside."""
        ...

    async def close(self) -> None:
        """Stop and free what the engine holds."""
        ...
