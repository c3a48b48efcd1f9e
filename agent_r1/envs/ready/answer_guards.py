"""Which answers a scorer of reasoning-gym may see. Some scorers call `eval` or sympy's `parse_expr` on the answer,
which the model wrote: they get arithmetic, a list or a formula, and nothing that could call a function or compute for
hours.

A scorer that evaluates answers and is not known here is refused.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Hashable
from functools import lru_cache

from agent_r1.errors import ConfigError

Guard = Callable[[str], bool]

_EVALUATES = re.compile(r"\b(eval|exec|parse_expr|sympify|parse_latex)\(")
_MAX_CHARACTERS = 1000
_LIST = re.compile(r"[\w\s\[\],'\".-]*")
_TOKENS = re.compile(r"\s+|\*\*|[-+*/(),.]|\d+|[A-Za-z_]+")
_NAMES = frozenset(
    (
        *"xyzXYZCeE",
        *("pi", "exp", "log", "ln", "sqrt", "Abs", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    )
)
_POWER = re.compile(r"\*\*(?:\d{1,2}|\(\d{1,2}/\d{1,2}\))(?![\d*]*\*\*|\d)")
"""A power by a small number or fraction that is not itself raised to a power."""
_MAX_DIGITS = 12


def any_answer(answer: str) -> bool:
    """For scorers that only compare the answer."""
    return True


def is_arithmetic(answer: str) -> bool:
    """Numbers, the four operations and parentheses.

    >>> is_arithmetic("(82 + 20) * 67 - 50"), is_arithmetic("9**9**9"), is_arithmetic("exec(1)")
    (True, False, False)
    """
    return (
        len(answer) <= _MAX_CHARACTERS and "**" not in answer and re.fullmatch(r"[\d\s+\-*/().]*", answer) is not None
    )


def is_list(answer: str) -> bool:
    """A list of numbers, words and quoted texts.

    >>> is_list("[['Q', '_'], ['_', 'Q']]"), is_list("[0] * 10**9"), is_list("open('x')")
    (True, False, False)
    """
    return len(answer) <= 10 * _MAX_CHARACTERS and _LIST.fullmatch(answer) is not None


def is_formula(answer: str) -> bool:
    """Arithmetic with variables, the usual functions and small powers; at most one power of a parenthesis.

    >>> is_formula("3*x**2 + sin(x)/2 + C"), is_formula("((9**99)**99)**99"), is_formula("__import__('os')")
    (True, False, False)
    """
    tokens = _TOKENS.findall(answer)
    if len(answer) > _MAX_CHARACTERS or "".join(tokens) != answer:
        return False
    parts = [token for token in tokens if not token.isspace()]
    for position, token in enumerate(parts):
        is_name = token[0].isalpha() or token[0] == "_"
        if (is_name and token not in _NAMES) or (token.isdigit() and len(token) > _MAX_DIGITS):
            return False
        if token == "." and position and not parts[position - 1].isdigit():
            return False
    text = "".join(parts)
    powers = _POWER.findall(text)
    return len(powers) == text.count("**") and text.count(")**") <= 1


_GUARDS: dict[str, Guard] = {
    "binary_matrix": is_list,
    "countdown": is_arithmetic,
    "intermediate_integration": is_formula,
    "n_queens": is_list,
    "number_sorting": any_answer,  # evaluates its own answer, not the model's
    "polynomial_multiplication": is_formula,
    "puzzle24": is_arithmetic,
    "simple_integration": is_formula,
    "spiral_matrix": is_list,
    "string_insertion": is_list,
}


@lru_cache(maxsize=256)
def guard_of(name: str, dataset: Hashable) -> Guard:
    """What an answer must satisfy before the data set's scorer sees it."""
    if name == "composite":
        raise ConfigError("reasoning_gym:composite mixes scorers; name one data set, such as reasoning_gym:countdown")
    guard = _GUARDS.get(name)
    if guard is not None:
        return guard
    try:
        source = inspect.getsource(getattr(dataset, "score_answer", None))  # type: ignore[arg-type]
    except (OSError, TypeError):
        source = "eval("
    if _EVALUATES.search(source) is not None:
        raise ConfigError(
            f"the scorer of reasoning_gym:{name} evaluates answers as Python, and Agent-R1 does not run what a model "
            "wrote; choose another data set, or score its rows with reward.function=..."
        )
    return any_answer
