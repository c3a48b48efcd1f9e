"""What the model of webshop reads, and how its actions are written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

SYSTEM = (
    "You shop online. Buy a product that fits the instruction, with the options that it names, for no more than its "
    "price. Write one action per turn and nothing else:\n"
    "search[words] finds products;\n"
    "click[button] clicks what the page shows in brackets: a product's id, an option's value, next >, < prev, "
    "back to search, description, features, reviews, buy now.\n"
    "Choose every option that the instruction names, then click[buy now]."
)

_ACTION = re.compile(r"\b(search|click)\s*\[(.*)\]", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShopAction:
    """What the model does."""

    verb: str
    """search or click."""
    argument: str
    """The words, or the button."""

    def __str__(self) -> str:
        return f"{self.verb}[{self.argument}]"


def goal_messages(text: str) -> list[dict[str, Any]]:
    """The messages that an episode begins with."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Instruction: {text}"}]


def read_action(text: str) -> ShopAction | None:
    """The action that a text ends with, or None. A model may think before it acts; each action has its own line.

    >>> str(read_action("I need the size. click[ 8.5 wide ]")), read_action("buy now")
    ('click[8.5 wide]', None)
    """
    found = [match for line in text.splitlines() if (match := _ACTION.search(line))]
    if not found:
        return None
    argument = " ".join(found[-1][2].split())
    return ShopAction(verb=found[-1][1].lower(), argument=argument) if argument else None
