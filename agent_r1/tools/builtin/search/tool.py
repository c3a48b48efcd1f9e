"""The tool `search`: passages of an index for one or several queries.

    env.tools=[{name: search, index: indexes/wiki, k: 3}]

or `env.tools=[search]` with the folder in the variable AGENT_R1_SEARCH_INDEX.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from agent_r1.constraints import Count
from agent_r1.errors import ConfigError
from agent_r1.registry import check_arguments
from agent_r1.tools.base import BaseTool, ToolContext, ToolInputError, ToolResponse, ToolResult
from agent_r1.tools.builtin.search.answers import SearchRequest
from agent_r1.tools.builtin.search.searcher import default_workers, searcher_of_loop
from agent_r1.tools.policy import ToolPolicy
from agent_r1.types import ToolSchema

INDEX_VARIABLE = "AGENT_R1_SEARCH_INDEX"

_MAX_QUERIES = 8
_MAX_K = 20
_MAX_WORKERS = 256


@BaseTool.register("search")
class SearchTool(BaseTool):
    """Search an index made by `agent-r1 index`.

    Args:
        index: The index's folder; None: the value of AGENT_R1_SEARCH_INDEX.
        k: Passages per query when the model does not say.
        characters: Maximum length of an answer; each passage is shortened to its share.
        description: The tool's description in its schema.
        workers: Worker processes that search; 0: none; None: one per core, at most 8, started when calls come fast.
    """

    name = "search"
    row_arguments = ("k",)

    def __init__(
        self,
        index: str | Path | None = None,
        k: Annotated[int, Field(ge=1, le=_MAX_K)] = 3,
        characters: Count = 4000,
        description: str = "Search a collection of passages.",
        workers: Annotated[int, Field(ge=0, le=_MAX_WORKERS)] | None = None,
    ) -> None:
        check_arguments(SearchTool, "", {"k": k, "characters": characters, "workers": workers}, "tool 'search'")
        self._folder = _index_folder(index)
        self._k = k
        self._characters = characters
        self.tool_schema: ToolSchema = _schema(description, k)
        self._workers = workers
        # Calls that arrive while every worker searches wait for the next batch. The first search opens the index.
        # Titles come on top of `characters`.
        self.policy = ToolPolicy(
            timeout=120.0,
            max_concurrency=max(1, default_workers() if workers is None else workers),
            batch_size=32,
            max_output_chars=max(20_000, 2 * characters),
        )

    def check(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """The unchanged arguments, once they are valid."""
        self._checked(args)
        return args

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        """Search for one call."""
        [result] = await self._answer([self._checked(args)])
        return result

    async def batch_execute(
        self, list_of_args: Sequence[Mapping[str, Any]], contexts: Sequence[ToolContext] = ()
    ) -> list[ToolResult | Exception]:
        """Many calls, of one or many episodes, as one search. A call with wrong arguments gets its error."""
        checked = [self._checked_or_error(args) for args in list_of_args]
        requests = [entry for entry in checked if isinstance(entry, SearchRequest)]
        answers = iter(await self._answer(requests) if requests else ())
        return [next(answers) if isinstance(entry, SearchRequest) else entry for entry in checked]

    async def _answer(self, requests: Sequence[SearchRequest]) -> list[ToolResult]:
        answers = await searcher_of_loop(self._workers).answer(self._folder, requests)
        return [(ToolResponse(text=text), None, {"passages": [list(some) for some in ids]}) for text, ids in answers]

    def _checked(self, args: Mapping[str, Any]) -> SearchRequest:
        checked = self._checked_or_error(args)
        if isinstance(checked, ToolInputError):
            raise checked
        return checked

    def _checked_or_error(self, args: Mapping[str, Any]) -> SearchRequest | ToolInputError:
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
        return SearchRequest(queries=tuple(queries or ()), k=k, characters=self._characters)


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
    location = index or os.environ.get(INDEX_VARIABLE)
    if not location:
        raise ConfigError(
            "the tool 'search' needs an index. Build it: agent-r1 index PASSAGES.jsonl --out FOLDER; then name it: "
            f"env.tools=[{{name: search, index: FOLDER}}] or {INDEX_VARIABLE}=FOLDER"
        )
    from agent_r1.tools.builtin.search.index import check_index

    check_index(Path(location))
    return Path(location).resolve()
