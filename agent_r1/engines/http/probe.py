"""The probe: whether a server samples from the weights it was given. A 200 proves nothing.

A server can answer 200 to an update and keep its old language-model head, its old prefix cache or all of its old
weights. So after every update it samples one token after each of a few prefixes of a fixed random text, and its
log-probs are compared with the trainer's own; for a model that reads images, also after an image. How far they may
differ depends on the number type, and on how far the update moved the log-probs: a server that is nearer to the old
weights than to the new ones has not taken the update.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from statistics import fmean
from typing import TYPE_CHECKING

from agent_r1.types import SamplingParams, TokenIds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NUM_PREFIXES = 16
PROBE_TOKENS = 160
"""Longer than what prefix caches leave out: an old cache shows too."""

ROUNDING = {"float32": 1e-3, "bfloat16": 0.1}
"""Mean difference of log-probs that rounding explains."""

DISTINGUISHABLE = {"float32": 5e-5, "bfloat16": 0.1}
"""Mean change of log-probs by an update that is far above the noise of a server."""


IMAGE_TEXT_TOKENS, IMAGE_LENGTHS = 16, (1, 2, 4, 8)
"""Tokens of text before and after the image, and how many of those after it the prefixes have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeText:
    """A fixed random text and the lengths of its prefixes."""

    token_ids: TokenIds
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, *, vocabulary: int, context_length: int, omitted: Collection[int] = ()) -> ProbeText:
        """The text for a model: the same for the same sizes. It has none of the ids `omitted`, such as placeholders."""
        rng = random.Random(0)
        size = min(PROBE_TOKENS, context_length - 1)
        count = min(NUM_PREFIXES, size)
        lengths = tuple(round((number + 1) * size / count) for number in range(count))
        return cls(token_ids=_random_ids(rng, size, vocabulary, omitted), lengths=lengths)

    @classmethod
    def with_image(
        cls, image_ids: TokenIds, *, vocabulary: int, context_length: int, omitted: Collection[int]
    ) -> ProbeText | None:
        """A text with these ids of an image in its middle; None when the context has no room for it."""
        rng = random.Random(1)
        before, after = (_random_ids(rng, IMAGE_TEXT_TOKENS, vocabulary, omitted) for _ in range(2))
        token_ids, end = (*before, *image_ids, *after), len(before) + len(image_ids)
        if len(token_ids) >= context_length:
            return None
        return cls(token_ids=token_ids, lengths=tuple(end + length for length in IMAGE_LENGTHS))

    def requests(self) -> list[tuple[TokenIds, SamplingParams]]:
        """What a server is asked: one token after each prefix."""
        return [
            (self.token_ids[:length], SamplingParams(max_tokens=1, temperature=1.0, seed=number))
            for number, length in enumerate(self.lengths)
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What the trainer says about the texts."""

    texts: tuple[ProbeText, ...]
    logprobs: NDArray[np.float32]
    """[prefixes of all texts, vocabulary]: the trainer's log-prob of every next token."""
    tolerance: float
    """How far a server may be from it on average."""

    def requests(self) -> list[tuple[TokenIds, SamplingParams]]:
        """What a server is asked: one token after each prefix of each text."""
        return [request for text in self.texts for request in text.requests()]

    def differences(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> list[float]:
        """For each text: the mean absolute difference to what a server sampled, one token per prefix."""
        expected = (float(self.logprobs[row, token]) for row, token in enumerate(token_ids))
        differences = iter([abs(ours - theirs) for ours, theirs in zip(expected, logprobs, strict=True)])
        return [fmean(islice(differences, len(text.lengths))) for text in self.texts]


def _random_ids(rng: random.Random, count: int, vocabulary: int, omitted: Collection[int]) -> TokenIds:
    random_ids = (rng.randrange(vocabulary) for _ in repeat(None))
    return tuple(islice((token for token in random_ids if token not in omitted), count))


def make_probe(
    texts: tuple[ProbeText, ...],
    logprobs: NDArray[np.float32],
    *,
    before: Probe | None,
    dtype: str,
    tolerance: float | None,
) -> Probe:
    """The probe of new weights. `before` is that of the weights they replace: the tolerance is at most half of what the
    update changed in the log-prob of a sampled token, where that is more than noise.

    With float32 weights and an update that moved log-probs by 0.0004, a server may be off by 0.0002.
    """
    allowed = tolerance or ROUNDING[dtype]
    if before is not None and tolerance is None:
        changes = abs(logprobs - before.logprobs)
        mean_change = float((2.718281828459045**logprobs * changes).sum(axis=1).mean())
        if mean_change > DISTINGUISHABLE[dtype]:
            allowed = min(allowed, mean_change / 2)
    return Probe(texts=texts, logprobs=logprobs, tolerance=allowed)
