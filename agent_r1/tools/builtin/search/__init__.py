"""Search: indexes of passages, and the tool that searches them.

`agent-r1 index` builds an index; the tool `search` uses it. Importing this loads neither numpy nor an index library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agent_r1.tools.builtin.search.answers import shorten
from agent_r1.tools.builtin.search.searcher import close_searchers
from agent_r1.tools.builtin.search.tool import SearchTool

if TYPE_CHECKING:
    from agent_r1.tools.builtin.search.bm25 import BM25Index
    from agent_r1.tools.builtin.search.dense import DenseIndex
    from agent_r1.tools.builtin.search.index import Hit, PassageIndex, open_index
    from agent_r1.tools.builtin.search.passages import Passage, PassageFields, read_passages

_HOMES = {
    "bm25": ("BM25Index",),
    "dense": ("DenseIndex",),
    "index": ("Hit", "PassageIndex", "open_index"),
    "passages": ("Passage", "PassageFields", "read_passages"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)


__all__ = [
    "BM25Index",
    "DenseIndex",
    "Hit",
    "Passage",
    "PassageFields",
    "PassageIndex",
    "SearchTool",
    "close_searchers",
    "open_index",
    "read_passages",
    "shorten",
]
