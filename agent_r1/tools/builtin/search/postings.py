"""The scores of a BM25 index, and ranking by them.

A word's postings are the passages that have it, each with the score that the word adds. A query adds up the postings of
its words in float32, word by word in the order of the query, so that scores and ties are the same to the last bit
whichever process computes them. Passages without any of the words are not looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SPARSE = 8
"""With fewer than one posting per so many passages, only the passages in them are looked at."""
_MAX_CHUNK = 1 << 20
"""Maximum postings added at once, unless a word has more: a query of a megabyte must not take gigabytes."""


class Postings:
    """For each word the passages it is in, with the score it adds to each. Several threads may rank at once.

    Args:
        starts: Where the postings of each word begin; one more entry than words.
        passages: Passage numbers, word after word; no passage twice for one word.
        scores: What the word adds to each of them, in float32.
        num_passages: How many passages there are.
    """

    def __init__(self, starts: Any, passages: Any, scores: Any, num_passages: int) -> None:
        # Plain views of memory-mapped arrays: slicing the mapped ones costs several times as much.
        self._starts = np.asarray(starts).view(np.ndarray)
        self._passages = np.asarray(passages).view(np.ndarray)
        self._scores = np.asarray(scores).view(np.ndarray)
        self._num_passages = num_passages
        self._own = threading.local()

    def rank(self, word_ids: list[int], k: int) -> list[tuple[int, float]]:
        """The `k` best passages for these words, with their scores above 0: best first, equal scores by number."""
        if not word_ids or k < 1:
            return []
        start = self._starts.item
        parts = [slice(start(number), start(number + 1)) for number in word_ids]
        num_postings = sum(part.stop - part.start for part in parts)
        is_sparse = num_postings * _SPARSE < self._num_passages and num_postings <= _MAX_CHUNK
        sums, touched = self._zeros(), np.empty(0, np.intp)
        try:
            for some in _chunks(parts):
                touched = np.concatenate([self._passages[part] for part in some])
                np.add.at(sums, touched, np.concatenate([self._scores[part] for part in some]))
            enough = self._kth_score(sums, parts, k)
            candidates = np.unique(touched[sums[touched] >= enough]) if is_sparse else np.flatnonzero(sums >= enough)
            return _rank(candidates, sums[candidates], k)
        finally:
            if is_sparse:
                sums[touched] = 0
            else:
                sums.fill(0)

    def _kth_score(self, sums: NDArray[np.float32], parts: list[slice], k: int) -> Any:
        """A score above 0 that at least `k` passages reach: the `k`-th best of those that have the rarest word which
        `k` passages have. Without such a word, the least score above 0."""
        counts = [part.stop - part.start for part in parts]
        large_enough = [count for count in counts if count >= k]
        least = np.nextafter(np.float32(0), np.float32(1))
        if not large_enough:
            return least
        with_word = sums[self._passages[parts[counts.index(min(large_enough))]]]
        return max(np.partition(with_word, len(with_word) - k)[len(with_word) - k], least)

    def _zeros(self) -> NDArray[np.float32]:
        """This thread's array of zeros, one per passage; it must be left as it was."""
        if not hasattr(self._own, "zeros"):
            self._own.zeros = np.zeros(self._num_passages, dtype=self._scores.dtype)
        zeros: NDArray[np.float32] = self._own.zeros
        return zeros


def _chunks(parts: list[slice]) -> Iterator[list[slice]]:
    """The parts in their order, so many at once that they have at most `_MAX_CHUNK` postings; usually all of them."""
    chunk: list[slice] = []
    size = 0
    for part in parts:
        if chunk and size + part.stop - part.start > _MAX_CHUNK:
            yield chunk
            chunk, size = [], 0
        chunk.append(part)
        size += part.stop - part.start
    yield chunk


def _rank(candidates: NDArray[Any], scores: NDArray[Any], k: int) -> list[tuple[int, float]]:
    """The `k` best of the candidates, which are in increasing order."""
    order = np.argsort(-scores, kind="stable")[:k]
    return list(zip(candidates[order].tolist(), scores[order].tolist(), strict=True))
