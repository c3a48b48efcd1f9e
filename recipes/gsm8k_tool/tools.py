"""The tools of gsm8k_tool: the library's calculator with a process reward, and a checker of answers.

What the model reads from either depends on its own calls alone, never on the gold answer. The process reward knows the
worked solution, and pays for progress in it:

- a calculation is useful when it works out, is made of numbers that the question or earlier results give, comes to a
  result that was not there before, and that result is one the worked solution comes to as well;
- it earns the share of the solution that is reached with it: one result of four is a quarter of `PROGRESS_REWARD`, the
  answer itself is all that is left. Whoever calculates the answer in one expression earns as much as whoever takes
  four, so more calls than a problem needs do not pay; neither does trying everything, for only the first calls count.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from agent_r1.tools import BaseTool, ToolContext, ToolResult, calculate, tool
from agent_r1.tools.builtin import format_number

PROGRESS_REWARD = 0.2
"""For the whole way to the answer."""
MAX_PAID_CALLS = 4
"""Later calculations of an episode earn nothing."""

EVERYDAY = frozenset({*range(13), 24, 30, 52, 60, 100, 365, 1000, 0.01, 0.1, 0.25, 0.5, 0.75, 1.5})
"""Numbers that questions say in words (half, twice, a dozen, a week, a year) or expect to be known."""

_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d*\.?\d+")


@BaseTool.register("gsm8k_calculator")
class Calculator(BaseTool):
    """The library's `calculate`, by the same name and schema, that pays for useful calculations."""

    name = calculate.name
    tool_schema = calculate.tool_schema

    def check(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """As the library's."""
        return calculate.check(args)

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        """As the library's, with a reward."""
        context: ToolContext = kwargs["context"]
        context.state["calls"] = context.state.get("calls", 0) + 1
        response, _, notes = await calculate.execute(args, **kwargs)
        earlier: list[float] = context.state.setdefault("results", [])
        result, solution = float(response.text), context.task.env_kwargs["results"]
        before = progress(earlier, solution)
        useful = context.state["calls"] <= MAX_PAID_CALLS and is_useful(
            str(args["expression"]),
            result,
            given=numbers_in(str(context.task.prompt[-1]["content"])),
            earlier=earlier,
            solution=solution,
        )
        if len(numbers_of(str(args["expression"]))) > 1:  # a number alone was written, not calculated
            earlier.append(result)
        return response, PROGRESS_REWARD * (progress(earlier, solution) - before) if useful else 0.0, notes


@tool
async def check_answer(answer: float, context: ToolContext) -> str:
    """Check an answer before giving it: was it calculated?

    Args:
        answer: The number.
    """
    if not math.isfinite(answer):
        raise ValueError(f"{answer} is not an answer; give a number")
    written = format_number(answer)
    found = any(math.isclose(answer, result) for result in context.state.get("results", []))
    verdict = f"You calculated {written}." if found else f"You have not calculated {written}."
    return f"{verdict} To give it as the answer, end with #### {written}"


def progress(results: Collection[float], solution: Sequence[float]) -> float:
    """How much of a solution these results reach, from 0 to 1; the last of the solution is the answer.

    >>> progress([24.0], [24.0, 72.0]), progress([72.0], [24.0, 72.0])
    (0.5, 1.0)
    """
    reached = [any(math.isclose(value, result) for result in results) for value in solution]
    return 1.0 if reached[-1] else sum(reached) / len(reached)


def is_useful(
    expression: str,
    result: float,
    *,
    given: Collection[float],
    earlier: Collection[float],
    solution: Collection[float],
) -> bool:
    """Whether a calculation that worked out brings the solution on.

    With 48 in the question and 24 and 72 on the way to its answer, `48/2` is useful, and then `48+24`; `48+1` leads
    nowhere, `20+4` has a number from nowhere, and `24` alone, or a second `48/2`, brings nothing new.
    """
    known = [*given, *earlier]
    numbers = numbers_of(expression)
    return (
        len(numbers) > 1
        and any(_among(number, known) for number in numbers)
        and all(number in EVERYDAY or _among(number, known) for number in numbers)
        and not _among(result, known)
        and any(math.isclose(result, value) for value in solution)
    )


def numbers_in(text: str) -> list[float]:
    """The numbers written in a text with digits.

    >>> numbers_in("She sold 1,200 clips for $0.50 each.")
    [1200.0, 0.5]
    """
    return [float(match.replace(",", "")) for match in _NUMBER.findall(text)]


def numbers_of(expression: str) -> list[float]:
    """The numbers an arithmetic expression is made of.

    >>> numbers_of("48 + (24 - .5)")
    [48.0, 24.0, 0.5]
    """
    nodes = ast.walk(ast.parse(expression.strip(), mode="eval"))
    constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return [float(value) for value in constants if isinstance(value, int | float)]


def _among(number: float, known: Collection[float]) -> bool:
    """Whether a number is one of these, or a percentage that is: 0.2 where 20 is known."""
    return any(math.isclose(number, value) or math.isclose(100 * number, value) for value in known)
