"""Goals of the six families: read from PDDL, compiled to a check of a game, written as PDDL, said in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_r1.errors import DataError

from .scene import APPLIANCES, CLEAN, COOL, HEAT, Scene

if TYPE_CHECKING:
    from .game import Game

PLACE, LOOK, TWO = "pick_and_place_simple", "look_at_obj_in_light", "pick_two_obj_and_place"
TREATED = {
    CLEAN: "pick_clean_then_place_in_recep",
    HEAT: "pick_heat_then_place_in_recep",
    COOL: "pick_cool_then_place_in_recep",
}
FAMILIES = (PLACE, LOOK, TREATED[CLEAN], TREATED[HEAT], TREATED[COOL], TWO)
SHORT = {PLACE: "pick", LOOK: "look", TREATED[CLEAN]: "clean", TREATED[HEAT]: "heat", TREATED[COOL]: "cool", TWO: "two"}
"""The families' short names, for metrics."""

TEMPLATES = {
    PLACE: ("put a {thing} in {place}", "put some {thing} on {place}"),
    LOOK: ("look at {thing} under the {place}", "examine the {thing} with the {place}"),
    TREATED[CLEAN]: ("put a clean {thing} in {place}", "clean some {thing} and put it in {place}"),
    TREATED[HEAT]: ("put a hot {thing} in {place}", "heat some {thing} and put it in {place}"),
    TREATED[COOL]: ("put a cool {thing} in {place}", "cool some {thing} and put it in {place}"),
    TWO: ("put two {thing} in {place}", "find two {thing} and put them in {place}"),
}
"""ALFRED's templates of each family."""

_TREATMENT = {family: verb for verb, family in TREATED.items()}
_STATE = {CLEAN: "isclean", HEAT: "ishot", COOL: "iscool"}
_ABLE = {CLEAN: "cleanable", HEAT: "heatable", COOL: "coolable"}
_TYPES = re.compile(r"\((objecttype|receptacletype) (\?\w+) (\w+?)type\)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What a game wants."""

    family: str
    """One of `FAMILIES`."""
    thing: str
    """The type of thing."""
    place: str
    """The type of place where it belongs; for `look_at_obj_in_light` the type of lamp."""
    wording: int = 0
    """Which template says it."""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise DataError(f"there is no family of goals '{self.family}'; the families are {', '.join(FAMILIES)}")

    @property
    def text(self) -> str:
        """The goal in words.

        >>> Goal(family="pick_two_obj_and_place", thing="cd", place="safe").text
        'put two cd in safe'
        """
        return TEMPLATES[self.family][self.wording].format(thing=self.thing, place=self.place)

    @property
    def treatment(self) -> str | None:
        """What has to be done with the thing before: clean, heat, cool or nothing."""
        return _TREATMENT.get(self.family)

    def as_row(self) -> dict[str, Any]:
        """The goal as part of a dataset row."""
        return {"family": self.family, "thing": self.thing, "place": self.place, "wording": self.wording}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Goal:
        """A goal from a dataset row."""
        problems = [name for name in ("family", "thing", "place") if not isinstance(row.get(name), str)]
        wording = row.get("wording", 0)
        if problems or wording not in (0, 1):
            raise DataError(
                f"a goal has family, thing and place, which are texts, and wording 0 or 1; found {dict(row)}"
            )
        return cls(family=row["family"], thing=row["thing"], place=row["place"], wording=int(wording))

    def compile(self, scene: Scene) -> Callable[[Game], bool]:
        """A check whether a game in this scene is won."""
        things = scene.things_of(self.thing)
        if self.family == LOOK:
            lamps = scene.things_of(self.place) & scene.toggleable
            return lambda game: game.held in things and _lit(game, lamps)
        places = scene.places_of(self.place)
        if self.family == TWO:
            return lambda game: any(len(game.contents[place] & things) > 1 for place in places)
        if self.treatment is None:
            return lambda game: any(game.contents[place] & things for place in places)
        treated, able = self.treatment, things & scene.able(_ABLE[self.treatment])
        return lambda game: any(game.contents[place] & able & _treated(game, treated) for place in places)

    def pddl(self) -> str:
        """The goal as ALFRED writes it in PDDL."""
        of_thing, of_place = f"(objectType ?o {self.thing}Type)", f"(receptacleType ?r {self.place}Type)"
        if self.family == LOOK:
            return (
                "(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and "
                f"(objectType ?ot {self.place}Type) (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) "
                "(atLocation ?a ?l) (inReceptacle ?ot ?r))) "
                f"(exists (?o - object ?a - agent) (and {of_thing} (holds ?a ?o))))"
            )
        wanted = f"{of_thing} {of_place} (inReceptacle ?o ?r)"
        if self.treatment is not None:
            wanted += f" ({_ABLE[self.treatment]} ?o) ({_STATE[self.treatment]} ?o)"
        if self.family == TWO:
            other = f"(not (= ?o ?o2)) (objectType ?o2 {self.thing}Type) (inReceptacle ?o2 ?r)"
            wanted += f" (exists (?o2 - object) (and {other}))"
        return f"(and (exists (?r - receptacle) (exists (?o - object) (and {wanted}))))"


def _treated(game: Game, treatment: str) -> set[int]:
    return game.clean if treatment == CLEAN else game.hot if treatment == HEAT else game.cool


def _lit(game: Game, lamps: frozenset[int]) -> bool:
    on = lamps & game.toggled
    return bool(on) and any(game.contents[place] & on for place in game.scene.places_at.get(game.here, ()))


def read_goal(family: str, text: str, wording: int = 0) -> Goal:
    """The goal of a PDDL problem, as `Problem.goal` has it.

    Goals with slices or movable receptacles are not part of ALFWorld's games; they and unknown ones raise DataError.
    """
    types = {variable: (predicate, name) for predicate, variable, name in _TYPES.findall(text)}
    thing = next((types[variable][1] for variable in ("?o", "?o1") if variable in types), None)
    place = types.get("?ot" if family == LOOK else "?r", ("", None))[1]
    if family not in FAMILIES or thing is None or place is None or "issliced" in text or "forall" in text:
        raise DataError(f"this goal of the family '{family}' is none of ALFWorld's games: {text[:200]}")
    return Goal(family=family, thing=thing, place=place, wording=wording)


def possible_goals(scene: Scene) -> Iterator[Goal]:
    """Every goal that can be reached in a scene and is not reached at first, one wording each.

    For each family: things that can be picked up (and treated, where a place for it is there), into places that take
    them. Two need two things and one place that takes both.
    """
    from .game import Game

    kinds = sorted({scene.things[number].kind for number in _in_places(scene)})
    place_kinds = sorted({place.kind for place in scene.places})
    lamps = sorted({scene.things[number].kind for number in _in_places(scene) & scene.toggleable})
    for kind in kinds:
        movable = scene.things_of(kind) & scene.pickupable & _in_places(scene)
        if not movable:
            continue
        candidates = [Goal(family=LOOK, thing=kind, place=lamp) for lamp in lamps]
        for target in place_kinds:
            takes = [movable & scene.accepts[number] for number in scene.places_of(target)]
            if not any(takes):
                continue
            candidates.append(Goal(family=PLACE, thing=kind, place=target))
            if any(len(fitting) > 1 for fitting in takes):
                candidates.append(Goal(family=TWO, thing=kind, place=target))
            for verb, family in TREATED.items():
                able = movable & scene.able(_ABLE[verb])
                if scene.places_of(APPLIANCES[verb]) and any(fitting & able for fitting in takes):
                    candidates.append(Goal(family=family, thing=kind, place=target))
        yield from (goal for goal in candidates if not Game(scene, goal).won)


def _in_places(scene: Scene) -> frozenset[int]:
    return frozenset().union(*scene.contents)
