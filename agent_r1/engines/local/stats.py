"""Counters of the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """Counts since the engine was made.

    Of 8 members with the same prompt of 33 tokens, the first computes 33 tokens and the other 7 find 32:
    `prompt_tokens` is 264, `prefix_tokens` 224, and `computed_tokens` 40 before anything is generated.
    """

    prompt_tokens: int = 0
    """Tokens of all started requests; a preempted request counts again, with what it had sampled."""
    prefix_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    computed_tokens: int = 0
    """Tokens that went through the model, padding left out."""
    generated_tokens: int = 0
    """Tokens that were sampled."""
    preemptions: int = 0
    """How often a request lost its blocks, while it ran or while it waited, and was recomputed."""
    steps: int = 0
    """Forward passes."""
    encoded_images: int = 0
    """Images that went through the vision tower."""

    def since(self, before: EngineStats) -> dict[str, float]:
        """What a training step logs of the counts since `before`.

        >>> now = EngineStats(prompt_tokens=300, prefix_tokens=250, preemptions=2)
        >>> now.since(EngineStats(prompt_tokens=100, prefix_tokens=100))
        {'perf/preemptions': 2.0, 'perf/prefix_hits': 0.75}
        """
        counts = {"perf/preemptions": float(self.preemptions - before.preemptions)}
        prompt_tokens = self.prompt_tokens - before.prompt_tokens
        if prompt_tokens > 0:
            counts["perf/prefix_hits"] = (self.prefix_tokens - before.prefix_tokens) / prompt_tokens
        return counts
