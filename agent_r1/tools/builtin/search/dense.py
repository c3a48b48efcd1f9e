"""Search by meaning: sentence vectors in a `faiss` index of inner products (extra `dense`).

The search is exact. Vectors have length 1, so a score is the cosine between query and passage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agent_r1.errors import MissingExtraError
from agent_r1.tools.builtin.search.index import Hit, Progress, counted, hits, new_index, read_manifest
from agent_r1.tools.builtin.search.passages import Passage, StoredPassages, write_passages

_VECTORS_FILE = "vectors.faiss"
_BATCH = 256


class Encoder(Protocol):
    """Turns texts into vectors; a `SentenceTransformer` is one."""

    def encode(self, texts: list[str]) -> Any:
        """One row for each text."""
        ...


class DenseIndex:
    """Ranks passages by the angle between their vector and the query's."""

    def __init__(self, vectors: Any, passages: StoredPassages, encoder: Encoder) -> None:
        self._vectors = vectors
        self._passages = passages
        self._encoder = encoder

    @classmethod
    def build(
        cls,
        passages: Iterable[Passage],
        folder: str | Path,
        *,
        model: str,
        encoder: Encoder | None = None,
        progress: Progress | None = None,
    ) -> DenseIndex:
        """Index passages into `folder` with the sentence-transformers model of that name, or with `encoder`."""
        faiss = _faiss()
        encoder = encoder or _load_encoder(model)
        folder = Path(folder)
        manifest: dict[str, Any] = {"kind": "dense", "model": model}
        with new_index(folder, manifest) as partial:
            vectors = None
            waiting: list[str] = []

            def encode_waiting() -> None:
                nonlocal vectors
                rows = _unit_rows(encoder.encode(waiting))
                vectors = vectors or faiss.IndexFlatIP(rows.shape[1])
                vectors.add(rows)
                waiting.clear()

            for passage in counted(write_passages(passages, partial), "encoding", progress):
                waiting.append(passage.searchable)
                if len(waiting) == _BATCH:
                    encode_waiting()
            if waiting:
                encode_waiting()
            assert vectors is not None  # `counted` refuses to be empty
            faiss.write_index(vectors, str(partial / _VECTORS_FILE))
            manifest["passages"] = int(vectors.ntotal)
        return cls.load(folder, encoder=encoder)

    @classmethod
    def load(cls, folder: str | Path, *, encoder: Encoder | None = None) -> DenseIndex:
        """The index in `folder`, with the model it was built with unless another encoder is given."""
        folder = Path(folder)
        manifest = read_manifest(folder, "dense")
        vectors = _faiss().read_index(str(folder / _VECTORS_FILE))
        return cls(vectors, StoredPassages(folder), encoder or _load_encoder(manifest["model"]))

    def __len__(self) -> int:
        return len(self._passages)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The `k` nearest passages of each query; none for a blank one."""
        nonblank = [number for number, query in enumerate(queries) if query.strip()]
        results: list[list[Hit]] = [[] for _ in queries]
        if not nonblank:
            return results
        rows = _unit_rows(self._encoder.encode([queries[number] for number in nonblank]))
        scores, indices = self._vectors.search(rows, min(k, len(self)))
        for number, row_scores, row_indices in zip(nonblank, scores, indices, strict=True):
            ranked = sorted(
                zip(row_indices.tolist(), row_scores.tolist(), strict=True), key=lambda one: (-one[1], one[0])
            )
            results[number] = hits(self._passages, ranked)
        return results


def _unit_rows(vectors: Any) -> NDArray[np.float32]:
    """Rows of length 1: `[[3, 4]]` -> `[[0.6, 0.8]]`; a row of zeros stays."""
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths == 0, 1, lengths), dtype=np.float32)


def _faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError as error:
        raise MissingExtraError("faiss-cpu", "dense", "search by meaning") from error
    return faiss


def _load_encoder(model: str) -> Encoder:
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError as error:
        raise MissingExtraError("sentence-transformers", "dense", "search by meaning") from error
    encoder: Encoder = SentenceTransformer(model)
    return encoder
