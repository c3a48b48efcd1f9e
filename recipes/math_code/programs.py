r"""Programs for problems of well-known kinds: evaluate, solve, apply functions, number theory, counting.

`programs(problem)` proposes programs by the form of the text. Nothing here knows the answer: a proposal becomes a
demonstration only when its real output is the gold answer (`demonstrations.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .latex_python import UnreadableError, names_in, to_python

_SEGMENT = re.compile(r"\\\[(.+?)\\\]|(?<!\\)\$(.+?)(?<!\\)\$", re.DOTALL)
_HEADER = "from sympy import *\n"
_FUNCTION = re.compile(r"^\s*([fghpqrFGHPQ])\s*\(\s*([a-z])\s*\)\s*=(.+)$", re.DOTALL)
_NUMBER = r"\$?(\d[\d,]*)\$?"
_EXTREME = re.compile(
    r"\b(minimum|maximum|smallest|largest|least|greatest) (?:possible )?value of (?:the expression )?\$"
)
_COUNT_INTEGERS = re.compile(
    r"how many (?:\w+ )?(?:integers|integer values|integer|whole numbers|integral)", re.IGNORECASE
)
_COUNT_PRIMES = re.compile(
    rf"[Hh]ow many (?:prime numbers|primes) are (?:there )?(?:between|from) {_NUMBER} (?:and|to) {_NUMBER}"
)
_SEVERAL = r"((?:\$?\d[\d,]*\$?(?:, | and |, and ))+\$?\d[\d,]*\$?)"
_ONE = r"(?:\$([^$]+)\$|(\d[\d,]*))"
_DIVISORS = r"positive (?:whole-number |integer )?(?:divisors|factors)"
_OF_SEVERAL = (
    (rf"(?:greatest common (?:factor|divisor)|GCF|GCD) of {_SEVERAL}", "gcd", "I compute the common divisor."),
    (rf"(?:least common multiple|LCM) of {_SEVERAL}", "lcm", "I compute the least common multiple."),
)
_FACTORS = "I factor the number."
_OF_ONE = (
    (
        rf"[Hh]ow many (?:distinct )?{_DIVISORS} (?:does|do|are there of) {_ONE}",
        "len(divisors(n))",
        "I count divisors.",
    ),
    (rf"sum of (?:all )?(?:of )?the {_DIVISORS} of {_ONE}", "sum(divisors(n))", "I add the divisors."),
    (rf"(?:greatest|largest) prime (?:factor|divisor) of {_ONE}", "max(primefactors(n))", _FACTORS),
    (rf"(?:smallest|least) prime (?:factor|divisor) of {_ONE}", "min(primefactors(n))", _FACTORS),
    (rf"prime factorization of {_ONE}", "factorint(n)", _FACTORS),
    (rf"sum of the (?:distinct )?prime (?:factors|divisors) of {_ONE}", "sum(primefactors(n))", _FACTORS),
    (rf"[Hh]ow many (?:distinct |different )?prime factors does {_ONE}", "len(primefactors(n))", _FACTORS),
)
_REMAINDERS = (
    (
        r"remainder (?:when|of|if) (?:the (?:sum|product|number) )?\$([^$]+)\$ (?:is )?divided by \$?(\d+)",
        "",
        "Python has integers of any size, so the remainder can be computed directly.",
    ),
    (
        r"(?:units|ones|last) digit of (?:the (?:sum|product|number) )?\$([^$]+)\$",
        "10",
        "The units digit is the remainder after division by 10.",
    ),
)
_RELATIONS = {r"\leq": "<=", r"\geq": ">=", r"\le": "<=", r"\ge": ">=", r"\lt": "<", r"\gt": ">"}


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that may solve a problem."""

    thought: str
    """What is said before it."""
    setup: str
    """Imports and definitions."""
    result: str
    """The lines that compute and print."""

    @property
    def code(self) -> str:
        """The whole program."""
        return f"{self.setup}{self.result}"


def programs(problem: str) -> Iterator[Program]:
    """Proposals, the most specific first."""
    for propose in (_number_theory, _functions, _inequality, _extreme, _rewriting, _equations, _value):
        try:
            yield from propose(problem)
        except UnreadableError:
            continue


def segments(problem: str) -> list[str]:
    """The formulas of a text, without punctuation at their ends.

    >>> segments("Find $x$ if \\\\[x + 1 = 2.\\\\]")
    ['x', 'x + 1 = 2']
    """
    return [(display or inline).strip().rstrip(".,;?").strip() for display, inline in _SEGMENT.findall(problem)]


def _symbols(names: list[str], kind: str = "") -> str:
    joined = " ".join(names)
    return f"{', '.join(names)} = symbols({joined!r}{kind})\n" if names else ""


# Expressions


def _value(problem: str) -> Iterator[Program]:
    """ "Compute $\\sqrt{16} + 3$." """
    formulas = segments(problem)
    if len(formulas) != 1 or "=" in formulas[0]:
        return
    if not re.match(r"\s*(Compute|Evaluate|Calculate|Simplify|What is|Find|Express|Determine)", problem):
        return
    expression = to_python(formulas[0])
    names = names_in(expression)
    thought = "The expression can be evaluated exactly with sympy." if not names else "Sympy can simplify this."
    yield Program(thought=thought, setup=_HEADER + _symbols(names), result=f"print(simplify({expression}))")
    if not names:
        yield Program(thought=thought, setup=_HEADER, result=f"print(radsimp({expression}))")


def _rewriting(problem: str) -> Iterator[Program]:
    """ "Factor $x^2 - 9$.", "Expand ..." """
    formulas = segments(problem)
    kind = re.search(r"\b(Factor|Expand|Simplify)\b", problem)
    if kind is None or not formulas or "=" in formulas[0]:
        return
    name = kind.group(1).lower()
    expression = to_python(formulas[0])
    thought = f"Sympy can {name} the expression."
    yield Program(
        thought=thought, setup=_HEADER + _symbols(names_in(expression)), result=f"print({name}({expression}))"
    )
    if name == "simplify":
        setup = _HEADER + _symbols(names_in(expression))
        yield Program(thought=thought, setup=setup, result=f"print(expand({expression}))")


def _functions(problem: str) -> Iterator[Program]:
    """ "If $f(x) = 2x + 1$, what is $f(3)$?" """
    found = {match[1]: (match[2], match[3]) for match in map(_FUNCTION.match, segments(problem)) if match}
    if not found or any("=" in body for _, body in found.values()):
        return
    asked = [text for text in segments(problem) if "=" not in text and re.search(r"[a-zA-Z]\s*\(", text)]
    if not asked:
        return
    question = to_python(asked[-1], found)
    lines = [
        f"def {name}({argument}):\n    return {to_python(body, found)}\n" for name, (argument, body) in found.items()
    ]
    bodies = [(argument, to_python(body, found)) for argument, body in found.values()]
    free = {letter for argument, body in bodies for letter in names_in(body) if letter != argument}
    setup = _HEADER + _symbols(sorted(free | set(names_in(question)))) + "".join(lines)
    word = "function" if len(found) == 1 else "functions"
    yield Program(thought=f"I define the {word} and evaluate.", setup=setup, result=f"print(simplify({question}))")


def _extreme(problem: str) -> Iterator[Program]:
    """ "What is the minimum value of $x^2 - 6x$?" """
    kind = _EXTREME.search(problem)
    formulas = segments(problem)
    if kind is None or not formulas or any("=" in text for text in formulas):
        return
    expression = to_python(max(formulas, key=len))
    names = names_in(expression)
    if len(names) != 1:
        return
    name = "minimum" if kind.group(1) in ("minimum", "smallest", "least") else "maximum"
    yield Program(
        thought=f"Sympy can find the {name} over the real numbers.",
        setup=_HEADER + _symbols(names),
        result=f"print({name}({expression}, {names[0]}, S.Reals))",
    )


# Equations


def _equations(problem: str) -> Iterator[Program]:
    """Equations with one unknown or several, and the expression that is asked for."""
    formulas = [text for formula in segments(problem) for text in _split(formula)]
    given = [text for text in formulas if text.count("=") == 1 and not _FUNCTION.match(text)]
    if not given or len(given) > 4:
        return
    sides = [[to_python(side) for side in text.split("=")] for text in given]
    unknowns = sorted({name for pair in sides for side in pair for name in names_in(side)})
    if not unknowns or len(unknowns) > 4 or any(name.isupper() for name in unknowns):
        return  # capital letters are points of a figure, and side by side they are lengths
    if any(name in "fghpqr" and f"{name}(" in problem for name in unknowns):
        return
    asked = _asked(formulas, unknowns)
    lines = [f"equations = [{', '.join(f'Eq({left}, {right})' for left, right in sides)}]\n"]
    setup = _HEADER + _symbols(unknowns) + "".join(lines)
    thought = "I solve the equation with sympy." if len(sides) == 1 else "I solve the equations with sympy."
    solve = f"solutions = solve(equations, {', '.join(unknowns)}, dict=True)\n"
    values = f"values = list(ordered({{simplify(({asked}).subs(s)) for s in solutions}}))\n"
    if re.search(r"\breal\b|positive|largest|greatest|smallest|least|\binteger", problem):
        values += "values = [v for v in values if v.is_real]\n"
    if re.search(r"\bpositive\b", problem):
        values += "values = [v for v in values if v > 0]\n"
    yield Program(thought=thought, setup=setup, result=solve + values + f"print({_collected(problem)})")


def _split(formula: str) -> list[str]:
    r"""The equations of an array: `x + y &= 3, \\ x - y &= 1` are two."""
    inner = re.sub(r"\\(?:begin|end)\{(?:align\*?|aligned|array|cases)\}(?:\{[a-z]+\})?", "", formula)
    return [line.replace("&", "").strip().rstrip(",.;").strip() for line in inner.split(r"\\") if line.strip()]


def _asked(formulas: list[str], unknowns: list[str]) -> str:
    """The last formula without an equals sign, if it is made of the unknowns; else the first unknown, or the pair."""
    for text in reversed(formulas):
        if "=" in text:
            continue
        if re.fullmatch(r"\(\s*[a-z](?:\s*,\s*[a-z])+\s*\)", text):
            return f"Tuple({', '.join(re.findall('[a-z]', text))})"
        try:
            expression = to_python(text)
        except UnreadableError:
            continue
        names = names_in(expression)
        if names and set(names) <= set(unknowns):
            return expression
    return "x" if "x" in unknowns else unknowns[0]


def _collected(problem: str) -> str:
    """How several values become the answer."""
    kinds = {
        r"\bsum of (?:all |the |both )*(?:possible |real |distinct )*(?:values|solutions|roots|x)": "sum(values)",
        r"\bproduct of (?:all |the |both )*(?:possible |real |distinct )*(?:values|solutions|roots)": "prod(values)",
        r"\bhow many\b": "len(values)",
        r"\b(?:largest|greatest|maximum|larger|greater)\b": "max(values)",
        r"\b(?:smallest|least|minimum|smaller|lesser)\b": "min(values)",
    }
    for pattern, text in kinds.items():
        if re.search(pattern, problem, re.IGNORECASE):
            return text
    return "*values, sep=', '"


def _inequality(problem: str) -> Iterator[Program]:
    """ "How many integers satisfy $x^2 < 17$?" """
    if not _COUNT_INTEGERS.search(problem):
        return
    for formula in segments(problem):
        for word, sign in _RELATIONS.items():
            formula = formula.replace(word, sign)
        sides = re.split(r"(<=|>=|<|>)", formula)
        if len(sides) < 3:
            continue
        texts = [text if text in ("<=", ">=", "<", ">") else to_python(text) for text in sides]
        names = sorted({name for text in texts for name in names_in(text)})
        if len(names) != 1:
            return
        start = 1 if re.search(r"\bpositive\b", problem) else -2000
        yield Program(
            thought="I count the integers that satisfy the inequality.",
            setup=_HEADER,
            result=f"print(sum(1 for {names[0]} in range({start}, 2001) if {' '.join(texts)}))",
        )
        return


# Number theory


def _number_theory(problem: str) -> Iterator[Program]:
    """Divisors, remainders, bases, primes."""
    flat = re.sub(r"\s+", " ", problem)
    yield from _divisors(flat)
    yield from _remainders(flat)
    based = re.search(r"\$?(\d+)_\{?(\d+)\}?\$?", flat)
    if based and re.search(r"base[- ](?:10|ten)", flat):
        yield Program(
            thought="Python reads numbers in other bases.",
            setup="",
            result=f'print(int("{based[1]}", {based[2]}))',
        )
    primes = _COUNT_PRIMES.search(flat)
    if primes:
        low, high = (text.replace(",", "") for text in primes.groups())
        yield Program(
            thought="I count the primes in the range.",
            setup=_HEADER,
            result=f"print(len(list(primerange({low}, {high} + 1))))",
        )


def _divisors(flat: str) -> Iterator[Program]:
    for pattern, name, thought in _OF_SEVERAL:
        found = re.search(pattern, flat)
        if found:
            numbers = [text.replace(",", "") for text in re.findall(r"\d[\d,]*\d|\d", found[1])]
            yield Program(thought=thought, setup="import math\n", result=f"print(math.{name}({', '.join(numbers)}))")
    for pattern, result, thought in _OF_ONE:
        found = re.search(pattern, flat)
        if found:
            number = to_python((found[1] or found[2]).rstrip(".?"))
            yield Program(thought=thought, setup=f"{_HEADER}n = {number}\n", result=f"print({result})")


def _remainders(flat: str) -> Iterator[Program]:
    for pattern, divisor, thought in _REMAINDERS:
        found = re.search(pattern, flat)
        if found and r"\cdots" not in found[1] and r"\dots" not in found[1]:
            yield Program(
                thought=thought,
                setup=_HEADER,
                result=f"print(({to_python(found[1])}) % {divisor or found[2]})",
            )
