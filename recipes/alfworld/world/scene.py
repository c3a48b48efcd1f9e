"""`Scene`: what never changes in a trial. Rooms, places, things, and which command means what.

Places are ALFRED's receptacles (`cabinet 1`), things its objects (`mug 2`). Both are numbered in the order of their
PDDL names, which is the order in which textworld lists them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from agent_r1.errors import DataError

from .pddl import Problem, parse_problem, type_name

KNIVES = frozenset({"knife", "butterknife"})
CLEAN, COOL, HEAT = "clean", "cool", "heat"
APPLIANCES = {CLEAN: "sinkbasin", COOL: "fridge", HEAT: "microwave"}
"""The type of place that each treatment needs."""

Act = tuple[str, int, int]
"""A command: its verb, and the numbers of what it names (-1: nothing)."""

NOWHERE = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Something that holds things: a cabinet, a table, a fridge."""

    name: str
    kind: str
    location: int
    openable: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Thing:
    """Something that can be in or on a place."""

    name: str
    kind: str
    location: int
    """Where it stands at first; -1: nowhere."""
    abilities: frozenset[str]
    """pickupable, cleanable, heatable, coolable, toggleable, sliceable, and what holds at first: iscool ..."""
    holds: tuple[int, ...] = ()
    """The things in a bowl or pot; none where it is no container."""
    is_container: bool = False


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A trial's room, without its goal. Shared by all games in it."""

    places: tuple[Place, ...]
    things: tuple[Thing, ...]
    start: int
    """The location of the agent at first."""
    contents: tuple[frozenset[int], ...]
    """The things in each place at first."""
    accepts: tuple[frozenset[int], ...]
    """The things that may be put in each place."""
    _acts: dict[str, Act] = field(default_factory=dict, repr=False)

    @cached_property
    def places_at(self) -> Mapping[int, tuple[int, ...]]:
        """The places at each location."""
        found: dict[int, list[int]] = {}
        for number, place in enumerate(self.places):
            found.setdefault(place.location, []).append(number)
        return {location: tuple(numbers) for location, numbers in found.items()}

    @cached_property
    def going(self) -> Mapping[int, list[str]]:
        """The commands that go elsewhere from each location, sorted."""
        locations = {self.start, *(place.location for place in self.places)}
        return {
            here: sorted(f"go to {place.name}" for place in self.places if place.location != here) for here in locations
        }

    def places_of(self, kind: str) -> tuple[int, ...]:
        """The places of a type."""
        return self._place_kinds.get(kind, ())

    def things_of(self, kind: str) -> frozenset[int]:
        """The things of a type."""
        return self._thing_kinds.get(kind, frozenset())

    def able(self, ability: str) -> frozenset[int]:
        """The things with an ability."""
        return self._abilities.get(ability, frozenset())

    @cached_property
    def _place_kinds(self) -> dict[str, tuple[int, ...]]:
        kinds = {place.kind for place in self.places}
        return {kind: tuple(n for n, place in enumerate(self.places) if place.kind == kind) for kind in kinds}

    @cached_property
    def _thing_kinds(self) -> dict[str, frozenset[int]]:
        kinds = {thing.kind for thing in self.things}
        return {kind: frozenset(n for n, thing in enumerate(self.things) if thing.kind == kind) for kind in kinds}

    @cached_property
    def _abilities(self) -> dict[str, frozenset[int]]:
        names = {ability for thing in self.things for ability in thing.abilities}
        return {name: frozenset(n for n, thing in enumerate(self.things) if name in thing.abilities) for name in names}

    @cached_property
    def states(self) -> tuple[frozenset[int], ...]:
        """The things that are clean, hot, cool, toggled and sliced at first."""
        return tuple(map(self.able, ("isclean", "ishot", "iscool", "istoggled", "issliced")))

    @cached_property
    def pickupable(self) -> frozenset[int]:
        """The things that can be taken."""
        return self.able("pickupable")

    @cached_property
    def toggleable(self) -> frozenset[int]:
        """The things with a switch."""
        return self.able("toggleable")

    @cached_property
    def sliceable(self) -> frozenset[int]:
        """The things that can be cut."""
        return self.able("sliceable")

    @cached_property
    def _place_numbers(self) -> dict[str, int]:
        return {place.name: number for number, place in enumerate(self.places)}

    @cached_property
    def _thing_numbers(self) -> dict[str, int]:
        return {thing.name: number for number, thing in enumerate(self.things)}

    def act(self, command: str) -> Act | None:
        """What a command means; None when it has no form of a command or names nothing that is here.

        Whether it can be done is the game's affair.
        """
        known = self._acts.get(command)
        if known is None:
            known = self._read(command)
            if known is not None:
                self._acts[command] = known  # as many as there are pairs of names at most
        return known

    def _read(self, command: str) -> Act | None:
        if command in ("look", "inventory", "help"):
            return command, NOWHERE, NOWHERE
        verb, _, rest = command.partition(" ")
        places, things = self._place_numbers, self._thing_numbers
        if verb in _WITH:
            first, _, second = rest.partition(_WITH[verb])
            seconds = things if verb == "slice" else places
            return (verb, things[first], seconds[second]) if first in things and second in seconds else None
        if verb == "go":
            name = rest.removeprefix("to ")
            return ("go", places[name], NOWHERE) if rest.startswith("to ") and name in places else None
        if verb in ("open", "close", "examine") and rest in places:
            return verb, places[rest], NOWHERE
        if verb in ("use", "examine") and rest in things:
            return ("use" if verb == "use" else "inspect"), things[rest], NOWHERE
        return None


_WITH = {
    "take": " from ", "move": " to ", "heat": " with ", "cool": " with ", "clean": " with ", "slice": " with ",
}  # fmt: skip


def read_scene(text: str) -> Scene:
    """The scene of an `initial_state.pddl`."""
    return build_scene(parse_problem(text))


def build_scene(problem: Problem) -> Scene:
    """The scene of a problem."""
    kinds = dict(problem.pairs("objecttype"))
    place_kinds = dict(problem.pairs("receptacletype"))
    where = dict(problem.pairs("receptacleatlocation"))
    at = dict(problem.pairs("objectatlocation"))
    place_ids, thing_ids = sorted(where), sorted({*kinds, *at})
    starts = [location for _, location in problem.pairs("atlocation")]
    if len(starts) != 1 or not place_ids:
        raise DataError(f"a scene has one agent and at least one place; found {len(starts)} and {len(place_ids)}")
    names = entity_names(fact for facts in problem.facts.values() for arguments in facts for fact in arguments)
    locations = {name: number for number, name in enumerate(sorted({*where.values(), *at.values(), *starts}))}
    place_numbers = {name: number for number, name in enumerate(place_ids)}
    thing_numbers = {name: number for number, name in enumerate(thing_ids)}
    contents: list[set[int]] = [set() for _ in place_ids]
    for thing, place in problem.pairs("inreceptacle"):
        if place in place_numbers:
            contents[place_numbers[place]].add(thing_numbers[thing])
    openable, containers = problem.names("openable"), problem.names("isreceptacleobject")
    may_hold = set(problem.pairs("cancontain"))
    inside: dict[str, list[int]] = {}
    for inner, outer in problem.pairs("inreceptacleobject"):
        inside.setdefault(outer, []).append(thing_numbers[inner])
    return Scene(
        places=tuple(
            Place(
                name=names[name],
                kind=type_name(place_kinds.get(name, "")),
                location=locations[where[name]],
                openable=name in openable,
            )
            for name in place_ids
        ),
        things=tuple(
            Thing(
                name=names[name],
                kind=type_name(kinds.get(name, "")),
                location=locations[at[name]] if name in at else NOWHERE,
                abilities=frozenset(ability for ability in _ABILITIES if (name,) in problem.facts.get(ability, ())),
                holds=tuple(inside.get(name, ())),
                is_container=name in containers,
            )
            for name in thing_ids
        ),
        start=locations[starts[0]],
        contents=tuple(map(frozenset, contents)),
        accepts=tuple(
            frozenset(
                number
                for number, thing in enumerate(thing_ids)
                if (place_kinds.get(place, ""), kinds.get(thing, "")) in may_hold
            )
            for place in place_ids
        ),
    )


_ABILITIES = (
    "pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable",
    "isclean", "ishot", "iscool", "istoggled", "issliced",
)  # fmt: skip


def entity_names(ids: Iterable[str]) -> dict[str, str]:
    """The names that ALFWorld shows for PDDL names: a kind and a number, counted down in sorted order.

    >>> entity_names(["mug_bar__plus_1", "mug_bar__plus_2", "sink_bar_3_bar_sinkbasin"])
    {'mug_bar__plus_1': 'mug 2', 'mug_bar__plus_2': 'mug 1', 'sink_bar_3_bar_sinkbasin': 'sinkbasin 1'}
    """
    kinds = {}
    for name in sorted(set(ids)):
        kind, bar, _ = name.partition("_bar_")
        if bar:
            kinds[name] = f"{kind}basin" if "basin" in name else kind
    left = Counter(kinds.values())
    names = {}
    for name, kind in kinds.items():
        names[name] = f"{kind} {left[kind]}"
        left[kind] -= 1
    return names
