"""`Memory`: what the answers of a game have shown so far, and nothing else. The expert and the notes are made of it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .world.game import NOTHING_HAPPENS

_ARRIVED = re.compile(r"You arrive at (.+?)\. ")
_CONTENTS = re.compile(r"(?:On the (?P<on>.+?)|The (?P<open>.+?) is open\. In it), you see (?P<things>.+?)\.")
_CLOSED = re.compile(r"The (.+?) is closed\.")
_TAKE = re.compile(r"take (.+) from (.+)")
_MOVE = re.compile(r"move (.+) to (.+)")
_NAMED = re.compile(r"\ban? ([a-z]+ \d+)")


class Memory:
    """Where the agent is, what it holds, and what it saw in which place.

    >>> memory = Memory("You are in the middle of a room. Looking quickly around you, you see a desk 1, and a bed 1.")
    >>> memory.update("go to desk 1", "You arrive at desk 1. On the desk 1, you see a pen 1, and a mug 2.")
    >>> memory.places, memory.here, memory.seen
    (['desk 1', 'bed 1'], 'desk 1', {'desk 1': ['pen 1', 'mug 2']})
    """

    def __init__(self, room: str) -> None:
        self.places: list[str] = _NAMED.findall(room.partition("Your task is to")[0])
        self.here: str | None = None
        self.held: str | None = None
        self.seen: dict[str, list[str]] = {}
        """The things in places that were seen inside."""
        self.closed: set[str] = set()
        """The places that were found closed and not opened since."""

    def update(self, command: str, answer: str) -> None:
        """Take in the answer to a command."""
        if answer == NOTHING_HAPPENS:
            self._notice_refusal(command)
            return
        if arrived := _ARRIVED.match(answer):
            self.here = arrived[1]
        if contents := _CONTENTS.search(answer):
            place = contents["on"] or contents["open"]
            self.seen[place] = _NAMED.findall(contents["things"])
            self.closed.discard(place)
        elif closed := _CLOSED.search(answer):
            self.closed.add(closed[1])
        if answer.startswith("You close the "):
            self.closed.add(command.removeprefix("close "))
        elif answer.startswith("You pick up the ") and (taken := _TAKE.fullmatch(command)):
            self.held = taken[1]
            self.seen[taken[2]] = [thing for thing in self.seen.get(taken[2], []) if thing != taken[1]]
        elif answer.startswith("You move the ") and (moved := _MOVE.fullmatch(command)):
            self.held = None
            self.seen.setdefault(moved[2], []).append(moved[1])

    def _notice_refusal(self, command: str) -> None:
        """Going nowhere means to be there already: some places share a spot."""
        place = command.removeprefix("go to ")
        if command.startswith("go to ") and place in self.places:
            self.here = place

    def unseen(self) -> list[str]:
        """The places that were not seen inside, in the order of the room's description."""
        return [place for place in self.places if place not in self.seen]

    def places_with(self, kind: str) -> Iterable[tuple[str, str]]:
        """Things of a kind that were seen, each with its place."""
        return ((place, thing) for place, things in self.seen.items() for thing in things if kind_of(thing) == kind)


def kind_of(name: str) -> str:
    """The kind of a thing or place.

    >>> kind_of("side table 2"), kind_of("mug 1")
    ('side table', 'mug')
    """
    return name.rpartition(" ")[0]
