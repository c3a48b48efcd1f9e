"""The in-process engine with a model that costs nothing: scheduler, prefix cache, bursts and futures are the real ones,
and the tokens come from a script. What such an engine takes is the host's share of a real one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch import nn

from agent_r1.engines.local import LocalEngine
from agent_r1.engines.local import engine as engine_module
from agent_r1.engines.local.batch import block_tables, step_arrays
from agent_r1.engines.local.blocks import blocks_for
from agent_r1.engines.local.request import Chunk, Request, check_request
from agent_r1.engines.local.runner import Sampled
from agent_r1.engines.local.sampling import uniforms

MODERATE_LENGTH = 2048
LOGPROB = -0.5
FILLER = 5
"""Sampled where a script has ended: what a device computes after a stop, and the engine drops."""


class _Late:
    """Tokens that are read at the second look: the next step is started before, as on a GPU."""

    def __init__(self, sampled: Sampled) -> None:
        self._sampled, self._looks = sampled, 0

    def done(self) -> bool:
        """Not at the first look."""
        self._looks += 1
        return self._looks > 1

    def result(self) -> Sampled:
        """The tokens."""
        return self._sampled


class FreeRunner:
    """Plays `replies`, by the seed of a request, in bursts of eight tokens.

    It makes the arrays that a runner sends to a GPU, since they are the host's work, and nothing else.
    """

    burst = 8

    def __init__(self, replies: Mapping[int, Sequence[int]], *, max_requests: int, context_length: int) -> None:
        self._replies = replies
        self.num_blocks = blocks_for(max_requests * min(context_length, MODERATE_LENGTH))
        self.vocabulary = 1 << 30
        self.num_encoded_images = 0

    def check(self, request: Request, context_length: int) -> None:
        """Requests are checked as they always are: that is the host's work too."""
        check_request(request, context_length=context_length, num_blocks=self.num_blocks, vocabulary=self.vocabulary)

    def read_metrics(self) -> dict[str, float]:
        """There is nothing to count."""
        return {}

    def finish(self) -> None:
        """Nothing is computed."""

    def clear_cache(self) -> None:
        """There is none."""

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """There are none."""

    def sample(self, chunks: list[Chunk], after: list[Chunk] | None = None) -> _Late:
        """The next tokens of each script."""
        sampling = [chunk for chunk in chunks if chunk.samples]
        if all(chunk.length == 1 for chunk in sampling) and len(sampling) == len(chunks):
            block_tables(chunks)
        else:
            step_arrays(chunks)
        if sampling:
            uniforms([c.request.sampling.seed for c in sampling], [c.num_sampled for c in sampling], self.burst)
        tokens = [self._next(chunk) for chunk in sampling]
        return _Late(Sampled(tokens, [[LOGPROB] * len(some) for some in tokens]))

    def _next(self, chunk: Chunk) -> list[int]:
        first = chunk.num_sampled
        some = list(self._replies[chunk.request.sampling.seed][first : first + chunk.new_tokens])
        return some + [FILLER] * (chunk.new_tokens - len(some))


@contextmanager
def free_engine(
    replies: Mapping[int, Sequence[int]], *, max_requests: int, context_length: int
) -> Iterator[LocalEngine]:
    """A `LocalEngine` on a `FreeRunner`."""
    model = nn.Module()
    model.config = SimpleNamespace(  # type: ignore[assignment]
        get_text_config=lambda: SimpleNamespace(max_position_embeddings=context_length)
    )
    runner = FreeRunner(replies, max_requests=max_requests, context_length=context_length)
    with mock.patch.object(engine_module, "make_runner", return_value=runner):
        engine = LocalEngine(model, max_requests=max_requests, context_length=context_length)
    yield engine
