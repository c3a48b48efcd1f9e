"""The tools of tables: SQL over the table of the episode, and Python with its rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent_r1.constraints import Count, Seconds
from agent_r1.errors import ConfigError
from agent_r1.tools import BaseTool, PythonTool, ToolContext, ToolInputError, ToolResponse, ToolResult, num_cores
from agent_r1.tools.workers import call_off_loop

from .database import Database, QueryError, show_rows
from .table import Table, read_table, shorten

MEMORY_MB = 512
MAX_INTERPRETERS = 64


def table_of(context: ToolContext) -> Table:
    """The table of the episode."""
    text = context.task.env_kwargs.get("table")
    if not isinstance(text, str):
        raise ConfigError(f"task '{context.task.task_id}' has no table: env_kwargs.table is the text of one")
    return read_table(text)


@BaseTool.register("table_sql")
class TableSql(BaseTool):
    """Runs a query over the table `t`, in SQLite, which reads only."""

    name = "sql"

    def __init__(self, *, max_rows: Count = 12, max_chars: Count = 400) -> None:
        self._max_rows, self._max_chars = max_rows, max_chars
        self.policy = replace(self.policy, max_concurrency=2 * num_cores())
        query = {"type": "string", "description": "One SELECT, in the SQL of SQLite."}
        self.tool_schema = {
            "type": "function",
            "function": {
                "name": self.name,
                "description": "Run a query over the table t and read its rows.",
                "parameters": {"type": "object", "properties": {"query": query}, "required": ["query"]},
            },
        }

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        """Run one query. What is wrong with it is part of the answer."""
        query = args.get("query")
        if not isinstance(query, str) or set(args) != {"query"}:
            raise ToolInputError(f"sql takes one argument, 'query', a string; got {sorted(args) or 'none'}")
        text, ended = await call_off_loop(self.answer, table_of(kwargs["context"]), query)
        return ToolResponse(text=text), None, {"ended": ended}

    def answer(self, table: Table, query: str) -> tuple[str, str]:
        """What the model reads, and how the query ended."""
        try:
            with Database(table) as database:
                rows = database.query(query)
        except QueryError as error:
            return shorten(f"Error: {error}", self._max_chars), "error"
        return show_rows(rows, max_rows=self._max_rows, max_chars=self._max_chars), "ok"


@BaseTool.register("table_python")
class TablePython(PythonTool):
    """The library's Python tool, by the same name, in which `rows` are the rows of the table as dictionaries."""

    def __init__(
        self, *, seconds: Seconds = 5.0, max_chars: Count = 400, max_interpreters: Count = MAX_INTERPRETERS
    ) -> None:
        super().__init__(
            stateful=True,
            seconds=seconds,
            max_chars=max_chars,
            max_interpreters=max_interpreters,
            brief_errors=True,
            limits={"memory_mb": MEMORY_MB},
        )
        self.policy = replace(self.policy, max_concurrency=min(num_cores(), max_interpreters))

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        """Run one program; before the first that mentions `rows`, define them."""
        context = kwargs["context"]
        if "rows" in self._checked_code(args):
            definition = rows_code(table_of(context))
            if definition not in (code for code, _ in self._notebook(context).cells):
                await super().execute({"code": definition}, context=context)
        return await super().execute(args, **kwargs)


def rows_code(table: Table) -> str:
    """A program that defines `rows`.

    >>> from .table import make_table
    >>> rows_code(make_table(["Year"], [["1990"]]))
    'import json\\nrows = json.loads(\\'[{"id": 1, "year": 1990}]\\')'
    """
    rows = [dict(zip(table.names, row, strict=True)) for row in table.rows]
    return f"import json\nrows = json.loads({json.dumps(rows)!r})"
