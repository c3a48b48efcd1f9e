"""The commands of TextCraft: `get 2 oak log`, `craft 4 oak planks using 1 oak log`, `inventory`."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_COUNT = 999
"""More than any goal needs, and short enough to be written."""

_VERB = re.compile(r"\b(get|craft|inventory)\b", re.IGNORECASE)
_AMOUNT = re.compile(r"(\d{1,9})\s+([a-z_][a-z_' ]*)")
_MAX_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class Amount:
    """So many of an item."""

    count: int
    item: str

    def __str__(self) -> str:
        return f"{self.count} {self.item}"


@dataclass(frozen=True, slots=True)
class Command:
    """What the model does."""

    verb: str
    """get, craft or inventory."""
    amount: Amount | None = None
    """What is taken or made."""
    using: tuple[Amount, ...] = ()
    """What it is made of."""

    def __str__(self) -> str:
        using = f" using {', '.join(map(str, self.using))}" if self.using else ""
        return f"{self.verb} {self.amount}{using}" if self.amount else self.verb


def read_command(text: str) -> Command | None:
    """The command in the last line that has one, or None. A model may think in the lines before.

    >>> str(read_command("I need planks.\\n> craft 4 oak planks using 1 oak_log.")), read_command("get planks")
    ('craft 4 oak planks using 1 oak log', None)
    """
    lines = [line for line in text[-4 * _MAX_CHARACTERS :].splitlines() if _VERB.search(line)]
    return _read_line(lines[-1]) if lines else None


def _read_line(line: str) -> Command | None:
    found = _VERB.search(line)
    assert found is not None
    verb, rest = found[1].lower(), line[found.end() :].strip().rstrip(".`*").lower()
    if verb == "inventory":
        return Command(verb)
    if len(rest) > _MAX_CHARACTERS:
        return None
    made, _, used = rest.partition(" using ")
    amount = _amount(made)
    using = tuple(map(_amount, used.split(","))) if used else ()
    if amount is None or None in using or (verb == "get") == bool(using):
        return None
    return Command(verb, amount, tuple(part for part in using if part is not None))


def _amount(text: str) -> Amount | None:
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or not 1 <= int(found[1]) <= MAX_COUNT:
        return None
    return Amount(int(found[1]), " ".join(found[2].replace("_", " ").split()))
