"""The built-in calculator: arithmetic by walking the syntax tree, never `eval`."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable

from agent_r1.tools.function import tool

_MAX_LENGTH = 200
_MAX_MAGNITUDE = 1e15

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}


@tool
async def calculate(expression: str) -> str:
    """Work out an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % and parentheses.
    """
    return format_number(evaluate(expression))


def evaluate(expression: str) -> float:
    """The value of an arithmetic expression; ValueError says what is wrong with it.

    >>> evaluate("3 * (2 + 4)")
    18
    """
    if len(expression) > _MAX_LENGTH:
        raise ValueError(f"the expression is longer than {_MAX_LENGTH} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError(f"not an arithmetic expression: {expression!r}") from None
    return _value(tree.body)


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            value: float = number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            try:
                value = _BINARY[type(op)](_value(left), _value(right))
            except ZeroDivisionError:
                raise ValueError("division by zero") from None
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            value = _UNARY[type(op)](_value(operand))
        case _:
            raise ValueError("only numbers, + - * / // % and parentheses are allowed")
    if not math.isfinite(value) or abs(value) > _MAX_MAGNITUDE:
        raise ValueError("the result is too large")
    return value


def format_number(value: float) -> str:
    """A number as people write it.

    >>> format_number(4.0), format_number(0.1 + 0.2)
    ('4', '0.3')
    """
    return str(int(value)) if value == int(value) else f"{value:.12g}"
