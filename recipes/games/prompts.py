"""What the model of TextCraft reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SYSTEM = (
    "You craft items. Write one command per turn and nothing else:\n"
    "get COUNT ITEM takes an item that no recipe makes;\n"
    "craft COUNT ITEM using COUNT ITEM, COUNT ITEM follows a recipe, once or several times over, with items that you "
    "hold;\n"
    "inventory lists what you hold.\n"
    "Take and craft what the goal needs, then the goal itself."
)


def goal_messages(goal: str, recipes: Sequence[Any], kinds: Mapping[str, str]) -> list[dict[str, Any]]:
    """The messages that an episode begins with. Where recipes ask for a kind of item, one of the kind is named."""
    lines = ["Recipes:", *map(str, recipes)]
    if kinds:
        lines.append("For example, " + ", ".join(f"{kind} may be {item}" for kind, item in sorted(kinds.items())) + ".")
    lines.append(f"Goal: {goal}.")
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "\n".join(lines)}]
