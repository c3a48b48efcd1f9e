"""True and false scenes for a sentence, where possible one small change apart."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property

from .grammar import Statement, varied_statement
from .meaning import Note
from .scenes import NUM_BOXES, Box, Scene, changed, random_box, random_tower

_FEW, _MANY, _TRIES = 12, 100, 12
"""A sentence is tried on this many boxes, then on more; so many scenes of them are tried."""
_VARIANTS = 6


class _Family:
    """A box and others that are one small change away."""

    def __init__(self, box: Box, rng: random.Random) -> None:
        self.box, self._rng = box, rng

    @cached_property
    def variants(self) -> list[Box]:
        """The other boxes, made when they are first asked for."""
        return [changed(self.box, self._rng) for _ in range(_VARIANTS)]


class PairMaker:
    """Makes sentences with a true and a false scene.

    Boxes come from a pool: finding one costs less than drawing one, and a box is seen with several sentences. `known`
    are sentences that are used besides those that the grammar writes, in `share` of the cases.
    """

    def __init__(
        self, rng: random.Random, num_boxes: int = 500, known: Sequence[Statement] = (), share: float = 0.0
    ) -> None:
        self._rng, self._known, self._share = rng, known, share if known else 0.0
        self._pools = {
            False: [_Family(random_box(rng), rng) for _ in range(num_boxes)],
            True: [_Family(random_tower(rng), rng) for _ in range(num_boxes)],
        }

    def pair(self) -> tuple[Statement, Scene, Scene]:
        """A sentence, a scene that it is true of and one that it is false of."""
        while True:
            known = self._rng.random() < self._share
            statement = self._rng.choice(self._known) if known else varied_statement(self._rng)
            scenes = self._scenes(statement)
            if scenes is not None:
                return statement, *scenes

    def _scenes(self, statement: Statement) -> tuple[Scene, Scene] | None:
        """A true and a false scene; None for a sentence that is nearly always the same."""
        pool = self._pools[statement.towers]
        for number in (_FEW, _MANY):
            search = _Search(statement, self._rng.choices(pool, k=number), self._rng)
            scenes = search.near() or (search.far() if number == _MANY else None)
            if scenes is not None:
                return scenes
        return None


class _Search:
    """The search for scenes among some boxes, by their notes."""

    def __init__(self, statement: Statement, families: Sequence[_Family], rng: random.Random) -> None:
        self._meaning, self._families, self._rng = statement.meaning, families, rng
        self._notes: dict[int, Note] = {}
        self._kinds: dict[Note, list[_Family]] = {}
        for family in families:
            self._kinds.setdefault(self._note(family.box), []).append(family)

    def near(self) -> tuple[Scene, Scene] | None:
        """Scenes one small change apart."""
        for attempt in range(_TRIES):
            chosen = self._chosen(rare=attempt % 2 == 1)
            notes = [self._note(family.box) for family in chosen]
            true = self._meaning.holds(notes)
            for place in self._rng.sample(range(NUM_BOXES), NUM_BOXES):
                for variant in chosen[place].variants:
                    note = self._note(variant)
                    if note != notes[place] and self._holds_with(notes, place, note) != true:
                        return self._ordered(chosen, place, variant, true)
        return None

    def far(self) -> tuple[Scene, Scene] | None:
        """Scenes that differ in one box."""
        if len(self._kinds) == 1:
            return None
        for _ in range(_TRIES):
            chosen = self._chosen(rare=True)
            notes = [self._note(family.box) for family in chosen]
            true, place = self._meaning.holds(notes), self._rng.randrange(NUM_BOXES)
            for note, families in self._kinds.items():
                if note != notes[place] and self._holds_with(notes, place, note) != true:
                    return self._ordered(chosen, place, self._rng.choice(families).box, true)
        return None

    def _chosen(self, *, rare: bool) -> list[_Family]:
        """Boxes of a scene; those of a rare note are as frequent as the others if asked for."""
        if not rare:
            return self._rng.choices(self._families, k=NUM_BOXES)
        kinds = list(self._kinds.values())
        return [self._rng.choice(families) for families in self._rng.choices(kinds, k=NUM_BOXES)]

    def _note(self, box: Box) -> Note:
        note = self._notes.get(id(box))
        if note is None:
            note = self._notes[id(box)] = self._meaning.note(box)
        return note

    def _holds_with(self, notes: Sequence[Note], place: int, note: Note) -> bool:
        return self._meaning.holds([*notes[:place], note, *notes[place + 1 :]])

    def _ordered(self, chosen: Sequence[_Family], place: int, other: Box, true: bool) -> tuple[Scene, Scene]:
        scene = tuple(family.box for family in chosen)
        changed_scene = (*scene[:place], other, *scene[place + 1 :])
        return (scene, changed_scene) if true else (changed_scene, scene)
