"""`Game`: one episode in a scene. The commands that can be given, what they do, what they answer, whether it is won.

It answers word for word what textworld answers with ALFWorld's domain and grammar (`compare.py` checks it). Three of
the original's habits look like mistakes and are kept: only what is held can be examined, `look` in the middle of the
room sees nothing, and a thing that was moved between two places at one location is also seen beside them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from .goals import Goal
from .scene import APPLIANCES, CLEAN, COOL, HEAT, KNIVES, NOWHERE, Act, Scene

NOTHING_HAPPENS = "Nothing happens."
ABLE = {CLEAN: "cleanable", COOL: "coolable", HEAT: "heatable"}


class Game:
    """A game in progress."""

    __slots__ = (
        "_answers",
        "_is_won",
        "_taken_from",
        "at",
        "clean",
        "contents",
        "cool",
        "goal",
        "held",
        "here",
        "hot",
        "opened",
        "scene",
        "sliced",
        "toggled",
    )

    def __init__(self, scene: Scene, goal: Goal) -> None:
        self.scene, self.goal = scene, goal
        self.here = scene.start
        self.held = NOWHERE
        self.opened: set[int] = set()
        self.contents: list[frozenset[int]] = list(scene.contents)
        self.clean, self.hot, self.cool, self.toggled, self.sliced = map(set, scene.states)
        self.at: dict[int, int] = {}
        """Where things stand that have been moved."""
        self._taken_from: dict[int, frozenset[int]] = {}
        self._is_won = goal.compile(scene)

    @property
    def won(self) -> bool:
        """Whether the goal is reached."""
        return self._is_won(self)

    @property
    def intro(self) -> str:
        """The first text: the room and the task."""
        places = self._facing(self.here)
        room = self._look() if places else f"{_MIDDLE} {_listed(f'a {place.name}' for place in self.scene.places)}."
        return f"-= Welcome to TextWorld, ALFRED! =-\n\n{room}\n\nYour task is to: {self.goal.text}."

    def step(self, command: str) -> str:
        """Do what a command says; the answer to it."""
        act = self.scene.act(command.strip())
        if act is None or not self._possible(act):
            return NOTHING_HAPPENS
        return _DO[act[0]](self, act[1], act[2])

    def possible(self, command: str) -> bool:
        """Whether a command can be given now."""
        act = self.scene.act(command.strip())
        return act is not None and self._possible(act)

    def commands(self) -> list[str]:
        """All commands that can be given now, sorted."""
        scene, held, here = self.scene, self.held, self.here
        places, things = scene.places, scene.things
        before: list[str] = []  # verbs up to examine
        heating: list[str] = []
        after: list[str] = []  # move, open, slice, take and use
        local = scene.places_at.get(here, ())
        name = things[held].name if held >= 0 else ""
        for number in local:
            place = places[number]
            before.append(f"examine {place.name}")
            reachable = True
            if place.openable:
                reachable = number in self.opened
                after.append(f"open {place.name}") if not reachable else before.append(f"close {place.name}")
            if held >= 0:
                if reachable and held in scene.accepts[number]:
                    after.append(f"move {name} to {place.name}")
                for verb, kind in APPLIANCES.items():
                    if place.kind == kind and ABLE[verb] in things[held].abilities:
                        (heating if verb == HEAT else before).append(f"{verb} {name} with {place.name}")
            elif reachable:
                after += [f"take {things[o].name} from {place.name}" for o in self.contents[number] & scene.pickupable]
            after += {f"use {things[o].name}" for o in self.contents[number] & scene.toggleable}
        if held >= 0:
            before.append(f"examine {name}")
            if things[held].kind in KNIVES:
                after += [f"slice {things[o].name} with {name}" for o in scene.sliceable if self._location(o) == here]
        before.sort()
        heating.sort()
        return [*before, *scene.going[here], *heating, "help", "inventory", "look", *sorted(set(after))]

    def key(self) -> str:
        """The state's identity: equal for two games in one scene exactly when their states are."""
        scene = self.scene
        moved = [
            (number, tuple(sorted(now))) for number, now in enumerate(self.contents) if now != scene.contents[number]
        ]
        sets = (self.opened, self.clean, self.hot, self.cool, self.toggled, self.sliced)
        state = (self.here, self.held, moved, sorted(self.at.items()), *map(sorted, sets))
        return hashlib.blake2b(repr(state).encode(), digest_size=12).hexdigest()

    # What can be done

    def _possible(self, act: Act) -> bool:
        verb, first, second = act
        scene = self.scene
        if second >= 0:
            if verb == "take":
                return (
                    self.held < 0
                    and first in self.contents[second]
                    and first in scene.pickupable
                    and self._reachable(second)
                )
            if verb == "slice":
                return (
                    self.held == second
                    and scene.things[second].kind in KNIVES
                    and first in scene.sliceable
                    and self._location(first) == self.here
                )
            if first != self.held or scene.places[second].location != self.here:
                return False
            if verb == "move":
                return first in scene.accepts[second] and self._reachable(second)
            return scene.places[second].kind == APPLIANCES[verb] and ABLE[verb] in scene.things[first].abilities
        if verb == "go":
            return scene.places[first].location != self.here
        if verb == "inspect":
            return self.held == first
        if verb == "use":
            return first in scene.toggleable and any(first in self.contents[place] for place in self._facing(self.here))
        if verb == "examine":
            return scene.places[first].location == self.here
        if verb in ("open", "close"):
            place = scene.places[first]
            return place.openable and place.location == self.here and (first in self.opened) == (verb == "close")
        return True

    def _reachable(self, place: int) -> bool:
        """Whether the agent stands before a place that is open or needs no opening."""
        found = self.scene.places[place]
        return found.location == self.here and (not found.openable or place in self.opened)

    def _facing(self, location: int) -> tuple[int, ...]:
        return self.scene.places_at.get(location, ())

    def _location(self, thing: int) -> int:
        return self.at.get(thing, self.scene.things[thing].location)

    # What it does and answers

    def _go(self, place: int, _: int) -> str:
        self.here = self.scene.places[place].location
        return f"You arrive at {self.scene.places[place].name}. {self._examine(place, _)}"

    def _examine(self, place: int, _: int) -> str:
        found = self.scene.places[place]
        if found.openable and place not in self.opened:
            return f"The {found.name} is closed."
        things = self.scene.things
        inside = _listed(f"a {things[thing].name}" for thing in sorted(self.contents[place]))
        return f"{f'The {found.name} is open. In it' if found.openable else f'On the {found.name}'}, you see {inside}."

    def _open(self, place: int, _: int) -> str:
        self.opened.add(place)
        return f"You open the {self.scene.places[place].name}. {self._examine(place, _)}"

    def _close(self, place: int, _: int) -> str:
        self.opened.discard(place)
        return f"You close the {self.scene.places[place].name}."

    def _take(self, thing: int, place: int) -> str:
        self.contents[place] -= {thing}
        self.held = thing
        self.at[thing] = NOWHERE
        self._taken_from[thing] = self._taken_from.get(thing, frozenset()) | {place}
        return f"You pick up the {self.scene.things[thing].name} from the {self.scene.places[place].name}."

    def _move(self, thing: int, place: int) -> str:
        self.contents[place] |= {thing}
        self.held = NOWHERE
        self.at[thing] = self.here
        self._taken_from[thing] = self._taken_from.get(thing, frozenset()) - {place}
        return f"You move the {self.scene.things[thing].name} to the {self.scene.places[place].name}."

    def _treat(self, verb: str, thing: int, place: int) -> str:
        if verb == CLEAN:
            self.clean.add(thing)
        else:
            gains, loses = (self.hot, self.cool) if verb == HEAT else (self.cool, self.hot)
            gains.add(thing)
            loses.discard(thing)
        return f"You {verb} the {self.scene.things[thing].name} using the {self.scene.places[place].name}."

    def _use(self, thing: int, _: int) -> str:
        self.toggled.add(thing)
        return f"You turn on the {self.scene.things[thing].name}."

    def _slice(self, thing: int, knife: int) -> str:
        self.sliced.add(thing)
        return f"You sliced the {self.scene.things[thing].name} with the {self.scene.things[knife].name}."

    def _inventory(self) -> str:
        return f"You are carrying: a {self.scene.things[self.held].name}." if self.held >= 0 else _EMPTY_HANDS

    def _look(self) -> str:
        facing = self._facing(self.here)
        if not facing:
            return f"{_MIDDLE} nothing."
        beside = [
            f"a {thing.name}"
            for number, thing in enumerate(self.scene.things)
            if number in self._taken_from and self._location(number) == self.here
            for place in facing
            if place in self._taken_from[number]
        ]
        names = _listed(self.scene.places[place].name for place in facing)
        return f"You are facing the {names}. Next to it, you see {_listed(beside)}."

    def _inspect(self, number: int, _: int) -> str:
        thing = self.scene.things[number]
        if thing.is_container:
            inside = _listed(f"a {self.scene.things[inner].name}" for inner in thing.holds)
            return f"This is a normal {thing.name}. In it, you see {inside}."
        clean, hot, cool = number in self.clean, number in self.hot, number in self.cool
        sliced = " sliced" if number in self.sliced else ""
        if clean and (hot or cool):
            return f"This is a {'hot' if hot else 'cool'} and clean{sliced} {thing.name}."
        # Without being sliced, "hot" is said before "clean" and "clean" before "cold"; sliced, "clean" comes first.
        words = {"clean": clean, "hot": hot, "cool": cool} if sliced else {"hot": hot, "clean": clean, "cold": cool}
        word = next((word for word, holds in words.items() if holds), "")
        if word:
            return f"This is a {word}{sliced} {thing.name}."
        if "toggleable" in thing.abilities and number in self.toggled:
            return f"This {thing.name} is on."
        if sliced and "sliceable" in thing.abilities:
            return f"This is a sliced {thing.name}."
        return f"There's nothing special about {thing.name}."


def _listed(names: Iterable[str]) -> str:
    """Names as the grammar lists them.

    >>> _listed([]), _listed(["a mug 1"]), _listed(["a mug 1", "a pen 2", "a cd 1"])
    ('nothing', 'a mug 1', 'a mug 1, a pen 2, and a cd 1')
    """
    all_names = list(names)
    if len(all_names) < 2:
        return all_names[0] if all_names else "nothing"
    return f"{', '.join(all_names[:-1])}, and {all_names[-1]}"


_MIDDLE = "You are in the middle of a room. Looking quickly around you, you see"
_EMPTY_HANDS = "You are not carrying anything."
HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""

_Doing = Callable[[Game, int, int], str]
_DO: dict[str, _Doing] = {
    "go": Game._go,
    "open": Game._open,
    "close": Game._close,
    "examine": Game._examine,
    "inspect": Game._inspect,
    "take": Game._take,
    "move": Game._move,
    "use": Game._use,
    "slice": Game._slice,
    CLEAN: lambda game, thing, place: game._treat(CLEAN, thing, place),
    COOL: lambda game, thing, place: game._treat(COOL, thing, place),
    HEAT: lambda game, thing, place: game._treat(HEAT, thing, place),
    "look": lambda game, _, __: game._look(),
    "inventory": lambda game, _, __: game._inventory(),
    "help": lambda game, _, __: HELP,
}
