"""Demonstrations of solving with a program, made of training problems: proposed, executed, and kept when right.

A demonstration is in the form of a rollout: the problem, a thought and a program, what the tool really printed, and
the gold answer in a box. Some first forget an import and correct it after the error; some define something in one
block and use it in the next.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from agent_r1.console import progress_counter
from agent_r1.tools import BaseTool, ToolContext, ToolTimeoutError, num_cores
from agent_r1.types import Task

from . import prompts
from .grader import Grader
from .programs import Program, programs
from .tools import MathPython

MAX_PROGRAMS = 3
"""Proposals that are tried for one problem."""
MAX_OUTPUT_CHARS = 120
CONCURRENCY = max(2, num_cores())
SECONDS = 3.0

Shown = tuple[str, dict[str, Any]]
"""The kind of a demonstration, and its row."""


async def make_demonstrations(problems: Sequence[Any]) -> list[Shown]:
    """A demonstration for every problem that a proposed program solves."""
    slots, numbers = asyncio.Semaphore(CONCURRENCY), itertools.count(1)
    with progress_counter("problems", len(problems)) as progress:

        async def attempt(problem: Any) -> Shown | None:
            async with slots:
                shown = await demonstration(problem)
            progress("trying programs", next(numbers))
            return shown

        found = await asyncio.gather(*map(attempt, problems))
    return [shown for shown in found if shown is not None]


async def demonstration(problem: Any) -> Shown | None:
    """A demonstration of one problem; None when no proposed program prints its answer."""
    for number, program in enumerate(programs(problem.text)):
        if number == MAX_PROGRAMS:
            return None
        kind = _kind(problem.text, program)
        blocks = _blocks(kind, program)
        outputs = await run_blocks([code for _, code in blocks])
        if outputs is None or not await _is_right(problem.answer, outputs[-1]):
            continue
        if kind == "a forgotten import" and "Error" not in outputs[0]:
            kind, blocks, outputs = "one block", blocks[1:], outputs[1:]
        return kind, row_of(problem, blocks, outputs)
    return None


def _blocks(kind: str, program: Program) -> list[tuple[str, str]]:
    """Words and code of each block."""
    if kind == "two blocks":
        return [("I define what is given first.", program.setup.rstrip()), (program.thought, program.result)]
    whole = (program.thought, program.code)
    if kind == "one block":
        return [whole]
    return [(program.thought, program.code.removeprefix(_header(program))), ("The import is missing.", program.code)]


def _header(program: Program) -> str:
    return program.setup[: program.setup.find("\n") + 1] if program.setup.startswith(("from ", "import ")) else ""


def _kind(text: str, program: Program) -> str:
    """One in eight forgets an import, and one in eight of those with definitions takes two blocks; the text decides."""
    draw = hashlib.sha256(text.encode()).digest()[0] % 8
    if draw == 0 and _header(program):
        return "a forgotten import"
    return "two blocks" if draw == 1 and program.setup.count("\n") > 1 else "one block"


def row_of(problem: Any, blocks: Sequence[tuple[str, str]], outputs: Sequence[str]) -> dict[str, Any]:
    """A row for the warm start."""
    messages = prompts.question(problem.text)
    for (words, code), printed in zip(blocks, outputs, strict=True):
        messages += [prompts.program(words, code), prompts.output(printed)]
    messages.append(prompts.final(problem.answer))
    return {"messages": messages, "tools": [tool().tool_schema]}


def tool() -> BaseTool:
    """The tool that demonstrations are made with."""
    return MathPython(seconds=SECONDS)


async def run_blocks(codes: Sequence[str]) -> list[str] | None:
    """What the blocks print, one after the other; None when one takes too long or the last prints too much."""
    python = tool()
    context = ToolContext(task=Task(task_id="demonstration", prompt=()))
    outputs = []
    try:
        for code in codes:
            response, *_ = await python.execute({"code": code}, context=context)
            outputs.append(response.text)
    except ToolTimeoutError:
        return None
    finally:
        await python.close(context)
    return outputs if len(outputs[-1]) <= MAX_OUTPUT_CHARS else None


async def _is_right(gold: str, printed: str) -> bool:
    """Whether what was printed is the answer, as it stands or as a list of values."""
    text = printed.strip().replace("**", "^").replace("*", " ")
    return "\n" not in text and "Error" not in text and await Grader.here().is_right(gold, text)


def describe(shown: Sequence[Shown], num_problems: int) -> str:
    """How many problems have a demonstration, and of what kind."""
    counts = Counter(kind for kind, _ in shown)
    kinds = ", ".join(f"{counts[kind]} with {kind}" for kind in sorted(counts))
    return f"{len(shown)} of {num_problems} training problems have a demonstration: {kinds or 'none'}"
