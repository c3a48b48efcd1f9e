"""BM25 search in the plainest way: every score of every passage, one query after the other, in one thread.

What `agent_r1.tools.builtin.search` finds must equal what is found here: passages, order, ties and scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
from numpy.typing import NDArray

from agent_r1.tools.base import BaseTool, ToolContext, ToolResponse, ToolResult
from agent_r1.tools.builtin.search.answers import SearchRequest, answer_text
from agent_r1.tools.builtin.search.bm25 import split_into_words
from agent_r1.tools.builtin.search.index import Hit, read_manifest
from agent_r1.tools.builtin.search.passages import StoredPassages
from agent_r1.tools.policy import ToolPolicy
from agent_r1.tools.workers.threads import call_off_loop


class ReferenceIndex:
    """An index folder made by `agent-r1 index`, searched by adding up all scores."""

    def __init__(self, folder: Path) -> None:
        words = read_manifest(folder, "bm25")["words"]
        self._scorer = bm25s.BM25.load(folder, mmap=True)
        self._passages = StoredPassages(folder)
        self._split = split_into_words(words["pattern"], words["stopwords"])

    def __len__(self) -> int:
        return len(self._passages)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The `k` best passages of each query."""
        return [self._search_one(query, k) for query in queries]

    def _search_one(self, query: str, k: int) -> list[Hit]:
        word_ids = self._scorer.get_tokens_ids(self._split(query))
        if not word_ids:
            return []
        scores = self._scorer.get_scores_from_ids(word_ids)
        return [Hit(passage=self._passages[int(place)], score=float(scores[place])) for place in best(scores, k)]


def best(scores: NDArray[Any], k: int) -> NDArray[np.intp]:
    """The indices of the `k` highest scores above 0, highest first, equal scores by index.

    `best([0, 2, 1, 2, 0], 2)` -> `[1, 3]`, `best([0, 2, 1, 2, 0], 9)` -> `[1, 3, 2]`
    """
    candidates = np.flatnonzero(scores > 0)
    if len(candidates) > k:
        positive = scores[candidates]
        candidates = candidates[positive >= np.partition(positive, -k)[-k]]
    order = np.lexsort((candidates, -scores[candidates]))
    ranked: NDArray[np.intp] = candidates[order[:k]]
    return ranked


class ReferenceTool(BaseTool):
    """The tool `search` with all its searches in one thread, 64 calls at a time."""

    name = "search"
    policy = ToolPolicy(timeout=120.0, max_concurrency=1, batch_size=64)

    def __init__(self, folder: Path, *, k: int, characters: int) -> None:
        self.tool_schema = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
        self._index = ReferenceIndex(folder)
        self._k, self._characters = k, characters

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        """Search for one call."""
        [result] = await self.batch_execute([args])
        return result

    async def batch_execute(
        self, list_of_args: Sequence[Mapping[str, Any]], contexts: Sequence[ToolContext] = ()
    ) -> list[ToolResult]:
        """Many calls as one search."""
        result: list[ToolResult] = await call_off_loop(self._answer, list_of_args)
        return result

    def _answer(self, list_of_args: Sequence[Mapping[str, Any]]) -> list[ToolResult]:
        requests = [SearchRequest((args["query"],), self._k, self._characters) for args in list_of_args]
        found = self._index.search([request.queries[0] for request in requests], self._k)
        return [
            (ToolResponse(text=answer_text(request.queries, [hits], self._characters)), None, {})
            for request, hits in zip(requests, found, strict=True)
        ]
