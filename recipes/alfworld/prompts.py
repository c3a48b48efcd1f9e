"""What the model of alfworld reads, and how its commands are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agent_r1.envs.context import strip_thinking

SYSTEM = (
    "You act in a room by commands. Answer with one command and nothing else. You can hold one thing at a time.\n"
    "go to PLACE; open PLACE; close PLACE; take THING from PLACE; move THING to PLACE; clean THING with sinkbasin 1; "
    "heat THING with microwave 1; cool THING with fridge 1; use LAMP; examine PLACE; look; inventory"
)

COMMANDS_MARK = "\nCommands: "
"""Stands before the commands that can be given, where they are shown."""
ELSEWHERE = ("go ", "examine ", "help", "inventory", "look")
"""Commands that can be given everywhere, or tell nothing new; `env.commands=here` leaves them out."""

_TAGGED = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)


def task_messages(room: str, goal: str) -> list[dict[str, Any]]:
    """The messages an episode begins with: the room, as ALFWorld describes it, and the task."""
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"{room}\nYour task is to: {goal}."},
    ]


def command_message(command: str) -> dict[str, Any]:
    """What a model says that gives a command."""
    return {"role": "assistant", "content": command}


def answer_message(text: str, commands: Sequence[str]) -> dict[str, Any]:
    """What the room answers."""
    return {"role": "user", "content": with_commands(text, commands)}


def with_commands(text: str, commands: Sequence[str]) -> str:
    """A text with the commands that can be given.

    >>> with_commands("You arrive at drawer 1. The drawer 1 is closed.", ["open drawer 1"])
    'You arrive at drawer 1. The drawer 1 is closed.\\nCommands: open drawer 1'
    """
    return f"{text}{COMMANDS_MARK}{', '.join(commands)}" if commands else text


def shown_commands(mode: str, commands: Sequence[str]) -> list[str]:
    """The commands that are shown to the model.

    >>> shown_commands("here", ["examine bed 1", "go to desk 1", "look", "take book 1 from bed 1"])
    ['take book 1 from bed 1']
    """
    if mode == "none":
        return []
    return [command for command in commands if mode == "all" or not command.startswith(ELSEWHERE)]


def read_command(text: str) -> str:
    """The command in an action: what stands in the last pair of `<action>` tags, else the last line, in lower case.

    >>> read_command("I need it.\\n> Go to  desk 1."), read_command("<action>look</action> then")
    ('go to desk 1', 'look')
    """
    text = strip_thinking(text)
    tagged = _TAGGED.findall(text)
    lines = (tagged[-1] if tagged else text).strip().splitlines() or [""]
    return " ".join(lines[-1].lower().split()).removeprefix("> ").removesuffix(".")
