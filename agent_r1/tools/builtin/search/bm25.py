"""BM25 over words, through `bm25s`: scores are computed when the index is built, a query only adds them up.

Words are runs of letters and digits after Unicode normalisation (NFKC) and case folding; characters of scripts that are
written without spaces are words of their own. There is no stemming.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_r1.errors import DataError, MissingExtraError
from agent_r1.tools.builtin.search.index import Hit, Progress, counted, hits, new_index, read_manifest
from agent_r1.tools.builtin.search.passages import Passage, StoredPassages, write_passages
from agent_r1.tools.builtin.search.postings import Postings

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
WORD = rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+"


class BM25Index:
    """Ranks passages by the words they share with a query; rare words count more, long passages less."""

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        postings: Postings,
        passages: StoredPassages,
        split: Callable[[str], list[str]],
    ) -> None:
        self._vocabulary = vocabulary
        self._postings = postings
        self._passages = passages
        self._split = split

    @classmethod
    def build(cls, passages: Iterable[Passage], folder: str | Path, *, progress: Progress | None = None) -> BM25Index:
        """Index passages into `folder`, replacing an index that is there."""
        bm25s = _bm25s()
        from bm25s.stopwords import STOPWORDS_EN

        split = split_into_words(WORD, STOPWORDS_EN)
        folder = Path(folder)
        manifest: dict[str, Any] = {"kind": "bm25"}
        with new_index(folder, manifest) as partial:
            vocabulary: dict[str, int] = {}
            word_ids = [
                [vocabulary.setdefault(word, len(vocabulary)) for word in split(passage.searchable)]
                for passage in counted(write_passages(passages, partial), "splitting into words", progress)
            ]
            if not vocabulary:
                raise DataError(f"none of the {len(word_ids)} passages has a word in it")
            manifest["passages"] = len(word_ids)
            manifest["words"] = {"pattern": WORD, "stopwords": list(STOPWORDS_EN)}
            if progress is not None:
                progress("scoring words", 0)
            scorer = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
            scorer.index((word_ids, vocabulary), create_empty_token=False, show_progress=False)
            scorer.save(partial, show_progress=False)
        return cls.load(folder)

    @classmethod
    def load(cls, folder: str | Path) -> BM25Index:
        """The index in `folder`. Scores and passages stay on disk and are read as they are needed."""
        folder = Path(folder)
        manifest = read_manifest(folder, "bm25")
        scorer = _bm25s().BM25.load(folder, mmap=True)
        scores, words = scorer.scores, manifest["words"]
        postings = Postings(scores["indptr"], scores["indices"], scores["data"], scores["num_docs"])
        split = split_into_words(words["pattern"], words["stopwords"])
        return cls(scorer.vocab_dict, postings, StoredPassages(folder), split)

    def __len__(self) -> int:
        return len(self._passages)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The `k` best passages of each query; none for a query without a word that any passage has."""
        return [hits(self._passages, self.rank(query, k)) for query in queries]

    def rank(self, query: str, k: int) -> list[tuple[int, float]]:
        """The numbers of the `k` best passages, in the order of the build, with their scores; no passage is read."""
        word_ids = [self._vocabulary[word] for word in self._split(query) if word in self._vocabulary]
        return self._postings.rank(word_ids, k)


def split_into_words(pattern: str, stopwords: Iterable[str]) -> Callable[[str], list[str]]:
    """A function from text to words.

    "The Köln-Bonn line" -> ["köln", "bonn", "line"]
    """
    find, ignored = re.compile(pattern).findall, frozenset(stopwords)

    def split(text: str) -> list[str]:
        return [word for word in find(unicodedata.normalize("NFKC", text).casefold()) if word not in ignored]

    return split


def _bm25s() -> Any:
    """Import bm25s without JAX: it would initialise JAX, which reserves most of a GPU's memory."""
    try:
        with _hidden("jax"):
            import bm25s
    except ModuleNotFoundError as error:
        raise MissingExtraError("bm25s", "search", "search by words") from error
    return bm25s


@contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Within the block, importing the package fails as if it were not installed."""
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == package}
    for name in modules:
        del sys.modules[name]
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]
        sys.modules.update(modules)
