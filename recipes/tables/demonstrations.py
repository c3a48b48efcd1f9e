"""Demonstrations of answering with a program, made of training questions: found or derived, executed, kept when right.

* WikiTableQuestions, and questions of TAT-QA whose answer is in the table: a short SQL query found by `search`.
* Calculations of TAT-QA: the gold derivation as a Python program, run in the sandbox.
* Answers of TAT-QA that stand in the shown text: given at once.

Some demonstrations first make a mistake that models make, read the error or the empty result, and correct it: a column
that does not exist, or a cell that is only part of a longer one.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from agent_r1.console import progress_counter
from agent_r1.tools import ToolContext
from agent_r1.tools.workers import map_in_workers
from agent_r1.types import Task

from . import prompts
from .database import Database
from .denotation import is_right
from .search.find import Found, find_program
from .table import Table, read_table
from .tatqa_score import exact_and_f1
from .tools import TablePython, TableSql

MAX_DEMONSTRATIONS = 4000
"""Maximum demonstrations of WikiTableQuestions; of TAT-QA there is one for every question that has one."""
_DERIVATION = re.compile(r"[-+*/().\d\s]+")
_LIKE = re.compile(r"(\w+) LIKE '%((?:[^'%]|'')+)%'")

Call = tuple[str, str, str]
"""Tool, program, output."""


Shown = tuple[str, dict[str, Any]]
"""The kind of a demonstration, and its row for the warm start."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """The demonstrations, and how many questions were tried."""

    kept: list[Shown]
    num_tried: dict[str, int]


async def make_demonstrations(questions: Iterable[Any], limit: int = MAX_DEMONSTRATIONS) -> Made:
    """Demonstrations of some questions, in an order that their texts decide."""
    ordered = sorted(questions, key=lambda question: hashlib.sha256(question.text.encode()).digest())
    kept: list[Shown] = []
    tried: Counter[str] = Counter()
    num_found: Counter[str] = Counter()
    # The processes read ahead, so some of these are given up: their source has enough by the time it is their turn.
    to_search = (question for question in ordered if not question.numeric and num_found[question.source] < limit)
    async with _Sandbox() as sandbox, aclosing(map_in_workers(searched, to_search)) as results:
        with progress_counter("questions", len(ordered)) as progress:
            for number, question in enumerate(ordered):
                progress("looking for programs", number)
                if num_found[question.source] >= limit:
                    continue
                tried[question.source] += 1
                if question.numeric:
                    shown = await _with_python(question, read_table(question.table), sandbox)
                else:
                    shown = await _result_of(question, results)
                if shown is not None:
                    num_found[question.source] += 1
                    kept.append(shown)
    return Made(kept=kept, num_tried=dict(tried))


async def _result_of(question: Any, results: AsyncIterator[tuple[Any, Shown | None]]) -> Shown | None:
    """The result of a question that was searched; those before it are of questions that were given up."""
    async for found, result in results:
        if found is question:
            return result
    raise LookupError(f"{question.text!r} was not searched")


def searched(question: Any) -> Shown | None:
    """A demonstration of one question without a calculation, or None."""
    table = read_table(question.table)
    shown = _with_sql(question, table)
    return shown if shown is not None or question.paragraphs is None else _from_text(question, table)


def _with_sql(question: Any, table: Table) -> Shown | None:
    with Database(table) as database:
        found = find_program(question.text, table, database, lambda values: _is_gold(question, values))
    if found is None or any(" | " in value for value in found.values):
        return None
    tool = TableSql()
    calls = [("sql", sql, tool.answer(table, sql)[0]) for sql in (*_mistake(question, found, table, tool), found.sql)]
    kind = found.kind if len(calls) == 1 else f"{found.kind}, corrected"
    return _made(question, table, kind, calls, found.values)


def _is_gold(question: Any, values: Sequence[str]) -> bool:
    if question.paragraphs is None:
        return is_right(question.values, values)
    exact, _ = exact_and_f1(question.values, question.scale, values, question.scale, numeric=False)
    return bool(exact)


def _mistake(question: Any, found: Found, table: Table, tool: TableSql) -> list[str]:
    """A wrong query to correct, for some of the questions; their text decides."""
    draw = hashlib.sha256(question.text.encode()).digest()[1]
    if draw % 3 == 0 and (part := _LIKE.search(found.sql)):
        sql = found.sql.replace(part.group(), f"{part.group(1)} = '{part.group(2)}'")
        return [sql] if tool.answer(table, sql)[0] == "(no rows)" else []
    if draw % 10 == 0:
        longer = [name for name in table.names if "_" in name.strip("_") and re.search(rf"\b{name}\b", found.sql)]
        for name in longer:
            short = name.partition("_")[0]
            sql = re.sub(rf"\b{name}\b", short, found.sql)
            if short.isidentifier() and tool.answer(table, sql)[0].startswith("Error: no such column"):
                return [sql]
    return []


async def _with_python(question: Any, table: Table, sandbox: _Sandbox) -> Shown | None:
    for program in programs_of(question.derivation, question.scale):
        printed = await sandbox.run(program)
        if "\n" not in printed and _is_gold(question, [printed]):
            return _made(question, table, "calculation", [("python", program, printed)], [printed])
    return None


def programs_of(derivation: str, scale: str) -> list[str]:
    """Programs that a gold derivation says.

    >>> programs_of("(44.1-56.7)/56.7", "percent")[0]
    'print(round((44.1-56.7)/56.7 * 100, 2))'
    >>> programs_of("2019##2018", "")
    ["print(len(['2019', '2018']))"]
    """
    if "##" in derivation:
        return [f"print(len({[part.strip() for part in derivation.split('##')]}))"]
    text = (
        re.sub(r"[$£€,%]", "", derivation)
        .replace("[", "(")
        .replace("]", ")")
        .replace("\N{MULTIPLICATION SIGN}", "*")
        .strip()
    )
    if not _DERIVATION.fullmatch(text) or not re.search(r"\d\s*\)*\s*[-+*/]", text):
        return []
    plain, hundred = f"print(round({text}, 2))", f"print(round({text} * 100, 2))"
    return [hundred, plain] if scale == "percent" and "100" not in text else [plain]


def _from_text(question: Any, table: Table) -> Shown | None:
    shown = prompts.question_messages(table, question.text, question.paragraphs)[-1]["content"]
    if not all(value in shown for value in question.values) or question.scale:
        return None
    return _made(question, table, "text", [], question.values)


def _made(question: Any, table: Table, kind: str, calls: Sequence[Call], values: Sequence[str]) -> Shown:
    messages = prompts.question_messages(table, question.text, question.paragraphs)
    for tool, program, output in calls:
        messages += [prompts.call_message(tool, program), prompts.output_message(tool, output)]
    messages.append(prompts.answer_message(values, question.scale))
    schemas = [TableSql().tool_schema, TablePython().tool_schema]
    return f"{question.source} {kind}", {"messages": messages, "tools": schemas}


class _Sandbox:
    """One interpreter for all programs."""

    def __init__(self) -> None:
        self._tool = TablePython()
        self._context = ToolContext(task=Task(task_id="demonstrations", prompt=()))

    async def __aenter__(self) -> _Sandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tool.close(self._context)

    async def run(self, program: str) -> str:
        """What a program prints."""
        response, *_ = await self._tool.execute({"code": program}, context=self._context)
        return response.text


def describe(made: Made) -> str:
    """How many questions have a demonstration, and of what kind."""
    lines = []
    for source, num_tried in sorted(made.num_tried.items()):
        kinds = Counter(kind for kind, _ in made.kept if kind.startswith(source))
        counts = ", ".join(f"{count} {kind.removeprefix(source).strip()}" for kind, count in kinds.most_common())
        lines.append(f"{kinds.total()} of {num_tried} questions of {source} have a demonstration: {counts or 'none'}")
    return "\n".join(lines)
