r"""LaTeX of simple expressions as Python for sympy: `\frac{3}{4}x^2` is `S(3)/4*x**2`.

It reads what short problems are written in (sums, products, powers, fractions, roots, a few functions, names of one
letter) and raises `UnreadableError` for everything else; it never guesses.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_TOKEN = re.compile(
    r"\s*(?P<number>\d+(?:\.\d+)?|\.\d+)|\s*(?P<command>\\[A-Za-z]+)|\s*(?P<letter>[A-Za-z])|\s*(?P<sign>[-+*/^=<>()\[\]{}|!,_])"
)
_NOISE = re.compile(r"\\(?:left|right|displaystyle|[,;!: ])|\\text\{\s*\}|~")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))")
_FUNCTIONS = {
    **{rf"\{name}": name for name in ("sin", "cos", "tan", "sec", "csc", "cot")},
    r"\arcsin": "asin",
    r"\arccos": "acos",
    r"\arctan": "atan",
    r"\ln": "log",
}
_ROUNDING = {r"\lfloor": ("floor", r"\rfloor"), r"\lceil": ("ceiling", r"\rceil")}
_PRODUCT = {r"\cdot": "*", r"\times": "*", "*": "*", "/": "/", r"\div": "/"}
_SUM, _MUL, _POW, _ATOM = range(4)
Piece = tuple[str, int]
"""Python text, and how tightly it binds."""


class UnreadableError(ValueError):
    """The text has something that is not read."""


def to_python(latex: str, functions: Collection[str] = ()) -> str:
    r"""The Python text of an expression; `functions` are letters that are applied, as f in f(2).

    >>> to_python(r"\frac{1}{2} + 3x^2 - \sqrt{16}"), to_python("f(2)", "f")
    ('S(1)/2 + 3*x**2 - sqrt(16)', 'f(2)')
    """
    reader = _Reader(latex, functions)
    text, _ = reader.sum()
    if reader.token is not None:
        raise UnreadableError(f"cannot read {reader.token!r} in {latex!r}")
    return text


def names_in(python: str) -> list[str]:
    """The single letters of Python text that `to_python` wrote, in alphabetical order.

    >>> names_in("S(1)/2 + 3*x**2*a")
    ['a', 'x']
    """
    return sorted(set(re.findall(r"(?<![A-Za-z_])[A-Za-z](?![A-Za-z_(])", python)))


def _within(piece: Piece, strength: int) -> str:
    text, own = piece
    return text if own >= strength else f"({text})"


class _Reader:
    """A recursive-descent reader."""

    def __init__(self, latex: str, functions: Collection[str]) -> None:
        text = _THOUSANDS.sub("", _NOISE.sub("", latex)).rstrip(". \n")
        self.tokens: list[str] = []
        self.position = 0
        self.functions = functions
        place = 0
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                if text[place:].isspace():
                    break
                raise UnreadableError(f"cannot read {text[place : place + 20]!r}")
            self.tokens.append(found.group().strip())
            place = found.end()
        if not self.tokens or len(self.tokens) > 200:
            raise UnreadableError("nothing, or too much, to read")

    @property
    def token(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self, expected: str | None = None) -> str:
        token = self.token
        if token is None or (expected is not None and token != expected):
            raise UnreadableError(f"expected {expected}, found {token}")
        self.position += 1
        return token

    def sum(self) -> Piece:
        sign = self.take() if self.token in ("-", "+") else ""
        first = self.product()
        text, strength = (f"-{_within(first, _MUL)}", _SUM) if sign == "-" else first
        while self.token in ("+", "-"):
            text, strength = f"{text} {self.take()} {_within(self.product(), _MUL)}", _SUM
        return text, strength

    def product(self) -> Piece:
        left = self.power()
        while True:
            sign = _PRODUCT.get(self.token or "")
            if sign is not None:
                self.take()
            elif not self._starts_factor():
                return left
            right = self.signed() if sign is not None else self.power()
            if sign == "/":
                left = f"S({left[0]})/{_within(right, _POW)}", _MUL
            else:
                left = f"{_within(left, _MUL)}*{_within(right, _POW)}", _MUL

    def signed(self) -> Piece:
        if self.token == "-":
            self.take()
            return f"-{_within(self.power(), _POW)}", _SUM
        return self.power()

    def _starts_factor(self) -> bool:
        token = self.token
        if token is None or token[0].isdigit():  # 3 4 is not a product
            return False
        commands = (r"\frac", r"\dfrac", r"\tfrac", r"\sqrt", r"\pi", r"\binom", r"\dbinom", *_FUNCTIONS, *_ROUNDING)
        return token[0].isalpha() or token in ("(", "{", "[") or token in commands

    def power(self) -> Piece:
        base = self.atom()
        while self.token in ("^", "!"):
            if self.take() == "!":
                base = f"factorial({base[0]})", _ATOM
                continue
            exponent = self.group()
            if exponent[0] == "degrees":
                base = f"rad({base[0]})", _ATOM
                continue
            whole = f"S({base[0]})" if exponent[0].startswith(("-", "S(")) else _within(base, _ATOM)
            base = f"{whole}**{_within(exponent, _ATOM)}", _POW
        return base

    def group(self) -> Piece:
        """What an exponent or an argument of a command is: braces, or one token."""
        if self.token == "{":
            self.take()
            if self.token == r"\circ":
                self.take()
                self.take("}")
                return "degrees", _ATOM
            inner = self.sum()
            self.take("}")
            return inner
        if self.token == r"\circ":
            self.take()
            return "degrees", _ATOM
        token = self.token or ""
        if token.isdigit() and len(token) > 1:  # x^10 is x^1 0, \frac12 is a half
            self.tokens[self.position : self.position + 1] = [token[0], token[1:]]
        return self.atom()

    def atom(self) -> Piece:
        token = self.take()
        if token[0].isdigit() or token[0] == ".":
            return (token if "." not in token else f'Rational("{token}")'), _ATOM
        if token in ("(", "[", "{"):
            inner = self.sum()
            self.take({"(": ")", "[": "]", "{": "}"}[token])
            return inner[0] if inner[1] == _ATOM else f"({inner[0]})", _ATOM
        if token == "|":
            inner = self.sum()
            self.take("|")
            return f"Abs({inner[0]})", _ATOM
        if token.isalpha():
            return self._letter(token)
        return self._command(token)

    def _letter(self, token: str) -> Piece:
        if self.token == "_":
            raise UnreadableError("names with an index are not read")
        if token not in self.functions:
            return {"i": "I", "e": "E"}.get(token, token), _ATOM
        self.take("(")
        inner = self.sum()
        self.take(")")
        return f"{token}({inner[0]})", _ATOM

    def _command(self, token: str) -> Piece:
        if token in (r"\frac", r"\dfrac", r"\tfrac"):
            above, below = self.group(), self.group()
            return f"S({above[0]})/{_within(below, _POW)}", _MUL
        if token in (r"\binom", r"\dbinom"):
            above, below = self.group(), self.group()
            return f"binomial({above[0]}, {below[0]})", _ATOM
        if token == r"\sqrt":
            index = None
            if self.token == "[":
                self.take()
                index = self.sum()
                self.take("]")
            inner = self.group()
            return (f"sqrt({inner[0]})" if index is None else f"root({inner[0]}, {index[0]})"), _ATOM
        if token in _ROUNDING:
            name, closing = _ROUNDING[token]
            inner = self.sum()
            self.take(closing)
            return f"{name}({inner[0]})", _ATOM
        if token == r"\pi":
            return "pi", _ATOM
        if token in _FUNCTIONS:
            exponent = None
            if self.token == "^":
                self.take()
                exponent = self.group()
            inner = self.power()
            call = f"{_FUNCTIONS[token]}({inner[0]})"
            return (call, _ATOM) if exponent is None else (f"{call}**{_within(exponent, _ATOM)}", _POW)
        raise UnreadableError(f"cannot read {token}")
