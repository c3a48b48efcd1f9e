"""A request to an engine and its completion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agent_r1.types.messages import TokenIds
from agent_r1.types.pickling import quickly_pickled

FinishReason = Literal["stop", "length"]


@quickly_pickled
@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How an engine samples one completion."""

    max_tokens: int = 256
    """Maximum tokens."""
    temperature: float = 1.0
    """0 is greedy. Log-probs are those of softmax(logits / temperature) (temperature 1 when greedy)."""
    top_p: float = 1.0
    """Nucleus sampling: keep the smallest set of tokens whose probability reaches this."""
    top_k: int = 0
    """Keep this many most likely tokens; 0 keeps all."""
    stop: TokenIds = ()
    """Any of these ids ends the completion; the stop id is part of it."""
    seed: int = 0
    """The same seed, prompt and weights give the same tokens."""


@quickly_pickled
@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What an engine returns for one request."""

    token_ids: TokenIds
    """The sampled ids, including the stop id when one was sampled."""
    logprobs: tuple[float, ...]
    """The engine's log-probability of each sampled id."""
    finish_reason: FinishReason
    """`stop`: a stop id was sampled. `length`: `max_tokens` was reached."""
    policy_versions: tuple[int, ...]
    """Per sampled id: the version of the weights that sampled it. It rises where an update came in between."""
    usage: Mapping[str, int] | None = None
    """What a server behind a chat API says the request took, such as `prompt_tokens`."""
