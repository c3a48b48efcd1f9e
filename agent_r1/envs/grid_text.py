"""What an agent of MiniGrid or BabyAI sees, in words: its mission, what it carries, and what is where around it.

    Mission: go to the red ball
    You see:
    - a red ball 3 steps forward and 2 steps left
    - a wall 5 steps forward

The observation is the partial view, an array of cells with the agent in the middle of the last row, looking up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WALL = 2
_OBJECTS = {4: "door", 5: "key", 6: "ball", 7: "box", 8: "goal", 9: "lava", 10: "agent"}
_COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
_DOOR, _UNCOLORED = 4, ("goal", "lava")
_DOOR_STATES = ("open", "closed", "locked")

GRID_ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
"""The actions of MiniGrid, in order."""


def describe_grid(observation: Mapping[str, Any]) -> str:
    """The view of a MiniGrid environment as text."""
    view = observation["image"]
    columns, rows = int(view.shape[0]), int(view.shape[1])
    middle, bottom = columns // 2, rows - 1
    lines = [f"Mission: {observation['mission']}"]
    carried = _object(view[middle, bottom])
    if carried is not None:
        lines.append(f"You carry {carried}.")
    cells = [
        (bottom - row, column - middle, view[column, row])
        for row in reversed(range(rows))
        for column in range(columns)
        if (column, row) != (middle, bottom)
    ]
    cells.sort(key=lambda cell: (cell[0] + abs(cell[1]), cell[0], cell[1]))
    seen = [f"- {name} {_where(ahead, aside)}" for ahead, aside, cell in cells if (name := _object(cell)) is not None]
    seen += [f"- a wall {_where(ahead, aside)}" for ahead, aside in _walls(cells)]
    return "\n".join([*lines, "You see:", *(seen or ["- nothing"])])


def _object(cell: Any) -> str | None:
    """What is in a cell; None: nothing, a wall or a cell that is not seen."""
    kind, color, state = (int(number) for number in cell[:3])
    if kind not in _OBJECTS:
        return None
    words = [_DOOR_STATES[state]] if kind == _DOOR and state < len(_DOOR_STATES) else []
    if _OBJECTS[kind] not in _UNCOLORED and color < len(_COLORS):
        words.append(_COLORS[color])
    words.append(_OBJECTS[kind])
    article = "" if words == ["lava"] else "an " if words[0][0] in "aeiou" else "a "
    return f"{article}{' '.join(words)}"


def _walls(cells: list[tuple[int, int, Any]]) -> list[tuple[int, int]]:
    """The nearest wall straight ahead, to the left and to the right."""
    nearest = []
    for way in ((1, 0), (0, -1), (0, 1)):
        walls = [
            (ahead, aside)
            for ahead, aside, cell in cells
            if (_sign(ahead), _sign(aside)) == way and int(cell[0]) == _WALL
        ]
        nearest += walls[:1]  # the nearest come first
    return nearest


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _where(ahead: int, aside: int) -> str:
    """Where a cell is, seen from the agent.

    >>> _where(1, 0), _where(2, -3)
    ('1 step forward', '2 steps forward and 3 steps left')
    """
    parts = [(ahead, "forward"), (abs(aside), "right" if aside > 0 else "left")]
    return " and ".join(f"{count} step{'s' * (count > 1)} {way}" for count, way in parts if count)
