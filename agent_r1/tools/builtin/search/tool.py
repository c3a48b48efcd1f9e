"""The tool `search`: passages of an index for one or several queries.

    env.tools=[{name: search, index: indexes/wiki, k: 3}]

or `env.tools=[search]` with the folder in the variable AGENT_R1_SEARCH_INDEX.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from agent_r1.constraints import Count
from agent_r1.errors import ConfigError
from agent_r1.registry import check_arguments
from agent_r1.tools.base import BaseTool, ToolContext, ToolInputError, ToolResponse, ToolResult
from agent_r1.tools.policy import ToolPolicy
from agent_r1.tools.workers.threads import call_off_loop
from agent_r1.types import ToolSchema

if TYPE_CHECKING:
    from agent_r1.tools.builtin.search.index import Hit, PassageIndex

INDEX_VARIABLE = "AGENT_R1_SEARCH_INDEX"

_MAX_QUERIES = 8
_MAX_K = 20
_MIN_SHARE = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    """The checked arguments of one call."""

    queries: tuple[str, ...]
    k: int


@BaseTool.register("search")
class SearchTool(BaseTool):
    """Search an index made by `agent-r1 index`.

    Args:
        index: The index's folder; None: the value of AGENT_R1_SEARCH_INDEX.
        k: Passages per query when the model does not say.
        characters: Maximum length of an answer; each passage is shortened to its share.
        description: The tool's description in its schema.
    """

    name = "search"
    row_arguments = ("k",)

    def __init__(
        self,
        index: str | Path | None = None,
        k: Annotated[int, Field(ge=1, le=_MAX_K)] = 3,
        characters: Count = 4000,
        description: str = "Search a collection of passages.",
    ) -> None:
        check_arguments(SearchTool, "", {"k": k, "characters": characters}, "tool 'search'")
        self._folder = _index_folder(index)
        self._k = k
        self._characters = characters
        self.tool_schema: ToolSchema = _schema(description, k)
        # Calls that arrive during a search wait for the next one: concurrent searches would only share the processor.
        # The first search opens the index. Titles come on top of `characters`.
        self.policy = ToolPolicy(
            timeout=120.0, max_concurrency=1, batch_size=64, max_output_chars=max(20_000, 2 * characters)
        )

    def check(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """The unchanged arguments, once they are valid."""
        self._checked(args)
        return args

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        """Search for one call."""
        request = self._checked(args)
        [result] = await call_off_loop(self._answer, [request])
        return result  # type: ignore[no-any-return]

    async def batch_execute(
        self, list_of_args: Sequence[Mapping[str, Any]], contexts: Sequence[ToolContext] = ()
    ) -> list[ToolResult | Exception]:
        """Many calls, of one or many episodes, as one search. A call with wrong arguments gets its error."""
        checked = [self._checked_or_error(args) for args in list_of_args]
        requests = [entry for entry in checked if isinstance(entry, _Request)]
        answers = iter(await call_off_loop(self._answer, requests) if requests else ())
        return [next(answers) if isinstance(entry, _Request) else entry for entry in checked]

    def _answer(self, requests: Sequence[_Request]) -> list[ToolResult]:
        index = _shared_index(self._folder)
        queries = [query for request in requests for query in request.queries]
        # The best 3 are the first 3 of the best 5, so calls with different `k` still share one search.
        found = iter(index.search(queries, max(request.k for request in requests)))
        return [self._result(request, [next(found)[: request.k] for _ in request.queries]) for request in requests]

    def _result(self, request: _Request, found: list[list[Hit]]) -> ToolResult:
        info = {"passages": [[hit.passage.passage_id for hit in some] for some in found]}
        return ToolResponse(text=_answer_text(request.queries, found, self._characters)), None, info

    def _checked(self, args: Mapping[str, Any]) -> _Request:
        checked = self._checked_or_error(args)
        if isinstance(checked, ToolInputError):
            raise checked
        return checked

    def _checked_or_error(self, args: Mapping[str, Any]) -> _Request | ToolInputError:
        problems = []
        given = args.get("query")
        queries = [given] if isinstance(given, str) else given
        if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
            problems.append("query: must be text or a list of texts")
        elif not any(query.strip() for query in queries):
            problems.append("query: must not be empty")
        elif len(queries) > _MAX_QUERIES:
            problems.append(f"query: at most {_MAX_QUERIES} at once, found {len(queries)}")
        k = args.get("k")
        k = self._k if k is None else k
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= _MAX_K:
            problems.append(f"k: must be a whole number between 1 and {_MAX_K}")
        problems += [f"{name}: there is no such argument" for name in sorted(set(args) - {"query", "k"})]
        if problems:
            return ToolInputError(f"wrong arguments for search: {'; '.join(problems)}")
        return _Request(queries=tuple(queries or ()), k=k)


def _answer_text(queries: Sequence[str], found: list[list[Hit]], characters: int) -> str:
    """The passages in at most `characters`, titles included. Each text is shortened to its share; where a share would
    be too short to be useful, the last hits of each query are left out."""
    while True:
        bare = _joined(queries, found, 0)
        num_hits = sum(map(len, found))
        share = (characters - len(bare)) // max(num_hits, 1)
        max_hits = max(map(len, found), default=0)
        if share >= _MIN_SHARE or max_hits <= 1:
            return _joined(queries, found, max(share, 1))
        found = [hits[: max_hits - 1] for hits in found]


def _joined(queries: Sequence[str], found: list[list[Hit]], share: int) -> str:
    parts = [_format_hits(some, share) for some in found]
    if len(parts) > 1:
        parts = [f'Results for "{query}":\n{part}' for query, part in zip(queries, parts, strict=True)]
    return "\n\n".join(parts)


def _format_hits(found: Sequence[Hit], characters: int) -> str:
    """Numbered passages: "[1] Tea" on one line, its text on the next."""
    if not found:
        return "No passage matches."
    return "\n\n".join(_format_hit(number, hit, characters) for number, hit in enumerate(found, start=1))


def _format_hit(number: int, hit: Hit, characters: int) -> str:
    title = hit.passage.title or hit.passage.passage_id
    return f"[{number}] {title}\n{shorten(hit.passage.text, characters)}"


def shorten(text: str, characters: int) -> str:
    """The beginning of a text, cut between words.

    >>> shorten("one two three", 9), shorten("one two", 9)
    ('one two …', 'one two')
    """
    if len(text) <= characters:
        return text
    head = text[: max(characters - 2, 0)]
    if not text[len(head)].isspace() and " " in head:
        head = head.rpartition(" ")[0]
    return f"{head.rstrip()} …" if head.strip() else "…"


def _schema(description: str, k: int) -> ToolSchema:
    return {
        "type": "function",
        "function": {
            "name": "search",
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {
                        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
                        "description": "What to look for, or several things at once.",
                    },
                    "k": {"type": "integer", "description": "How many passages a query.", "default": k},
                },
                "required": ["query"],
            },
        },
    }


def _index_folder(index: str | Path | None) -> Path:
    named = index or os.environ.get(INDEX_VARIABLE)
    if not named:
        raise ConfigError(
            "the tool 'search' needs an index. Build it: agent-r1 index PASSAGES.jsonl --out FOLDER; then name it: "
            f"env.tools=[{{name: search, index: FOLDER}}] or {INDEX_VARIABLE}=FOLDER"
        )
    from agent_r1.tools.builtin.search.index import check_index

    check_index(Path(named))
    return Path(named).resolve()


_indexes: dict[tuple[Path, int], PassageIndex] = {}
_opening = threading.Lock()


def _shared_index(folder: Path) -> PassageIndex:
    """The index of a folder, opened once per process, and again after it was rebuilt."""
    from agent_r1.tools.builtin.search.index import MANIFEST, open_index, read_manifest

    try:
        key = (folder, (folder / MANIFEST).stat().st_mtime_ns)
    except OSError:
        read_manifest(folder)
        raise
    with _opening:
        if key not in _indexes:
            _indexes[key] = open_index(folder)
        return _indexes[key]
