"""What an engine counted up to one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """Counts since the engine was made.

    Of 8 members with the same prompt of 33 tokens, the first computes 33 and 7 find 32: `prompt_tokens` is 264,
    `prefix_tokens` 224, and `computed_tokens` 40 before anything is generated.
    """

    prompt_tokens: int = 0
    """Tokens of the requests that were started (again, with what they had sampled, after a preemption)."""
    prefix_tokens: int = 0
    """Those of them found in the prefix cache."""
    computed_tokens: int = 0
    """Tokens that went through the model, padding left out."""
    generated_tokens: int = 0
    """Tokens that were sampled."""
    preemptions: int = 0
    """How often a request gave its blocks back and was computed again."""
    steps: int = 0
    """Forward passes."""
