"""An expert that explores: it knows the room's places, the task, and what the answers have shown, like the model.

It looks for a thing where such things usually are. What is usual is counted in training scenes (`Habits`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from .memory import Memory, kind_of
from .world.goals import LOOK, TWO, Goal
from .world.scene import APPLIANCES, Scene

_PRIOR = 0.02
"""The share of places that is assumed to hold a thing where nothing is known, and how much that counts."""


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How often a place of one kind holds a thing of another."""

    places: Counter[str]
    """How many places of each kind were counted."""
    holding: Counter[tuple[str, str]]
    """(kind of place, kind of thing): how many of those places held such a thing."""

    @classmethod
    def count(cls, scenes: Iterable[Scene]) -> Habits:
        """The habits of some scenes."""
        places: Counter[str] = Counter()
        holding: Counter[tuple[str, str]] = Counter()
        for scene in scenes:
            for place, contents in zip(scene.places, scene.contents, strict=True):
                places[place.kind] += 1
                holding.update({(place.kind, scene.things[thing].kind) for thing in contents})
        return cls(places=places, holding=holding)

    def chance(self, place: str, thing: str) -> float:
        """The chance that a place of this kind holds a thing of this kind."""
        return (self.holding[place, thing] + _PRIOR) / (self.places[place] + 1)


class Expert:
    """Plays one game: `command` says what to do, `memory.update` takes the answer."""

    def __init__(self, goal: Goal, room: str, habits: Habits) -> None:
        self.goal, self.habits = goal, habits
        self.memory = Memory(room)
        self._treated = False
        self._target: str | None = None

    def observe(self, command: str, answer: str) -> None:
        """Take in the answer to a command."""
        held = self.memory.held
        self.memory.update(command, answer)
        if answer.startswith(f"You {self.goal.treatment} "):
            self._treated = True
        if held is not None and self.memory.held is None:
            self._treated = False
            self._target = command.partition(" to ")[2]
        if self.goal.family == TWO and self._target is None:
            # A place that holds one already needs only one more.
            places = (place for place, _ in self.memory.places_with(self.goal.thing))
            self._target = next((place for place in places if kind_of(place) == self.goal.place), None)

    def command(self) -> str | None:
        """The next command; None when everything was looked through and nothing helps."""
        return self._find_thing() if self.memory.held is None else self._use_thing()

    def _find_thing(self) -> str | None:
        known = self.memory.places_with(self.goal.thing)
        wanted = [(place, thing) for place, thing in known if self.goal.family != TWO or place != self._target]
        if not wanted:
            return self._explore(self.goal.thing)
        place, thing = next(((place, thing) for place, thing in wanted if place == self.memory.here), wanted[0])
        return self._at(place) or f"take {thing} from {place}"

    def _use_thing(self) -> str | None:
        goal, memory = self.goal, self.memory
        if goal.family == LOOK:
            lamp = next(iter(memory.places_with(goal.place)), None)
            return self._explore(goal.place) if lamp is None else self._at(lamp[0]) or f"use {lamp[1]}"
        if goal.treatment is not None and not self._treated:
            kind = APPLIANCES[goal.treatment]
            appliance = next((place for place in memory.places if kind_of(place) == kind), None)
            if appliance is None:
                return None
            return self._go(appliance) or f"{goal.treatment} {memory.held} with {appliance}"
        target = self._target or next((place for place in memory.places if kind_of(place) == goal.place), None)
        return None if target is None else self._at(target) or f"move {memory.held} to {target}"

    def _explore(self, kind: str) -> str | None:
        """Look into the place that is most likely to hold such a thing, for the steps that it takes."""
        memory = self.memory
        unseen = memory.unseen()
        if not unseen:
            return None
        best = max(unseen, key=lambda place: self._promise(place, kind))
        return self._at(best) or f"examine {best}"

    def _promise(self, place: str, kind: str) -> float:
        steps = 1 if place not in self.memory.closed or place == self.memory.here else 2
        return self.habits.chance(kind_of(place), kind) / steps + (1.0 if place == self.memory.here else 0.0)

    def _at(self, place: str) -> str | None:
        """What it takes to reach into a place; None: nothing."""
        return self._go(place) or (f"open {place}" if place in self.memory.closed else None)

    def _go(self, place: str) -> str | None:
        return None if self.memory.here == place else f"go to {place}"
