"""True and false scenes for a sentence: a scene of one kind, and one of the other after few small changes."""

from __future__ import annotations

import random
from collections.abc import Sequence

from .grammar import Statement, random_statement
from .scenes import NUM_BOXES, Scene, changed, random_box, random_tower

_SCENES, _TRIES_PER_DEPTH, _DEPTHS = 40, 20, (1, 2, 3)
"""How many scenes are tried; how often one is changed, first in one way, then in two and three ways at once."""


class PairMaker:
    """Makes sentences with a true and a false scene.

    Boxes come from a pool: looking for a scene costs less than drawing one, and a box is seen with several sentences.
    `known` are sentences that are used besides those that the grammar writes, in `share` of the cases.
    """

    def __init__(
        self, rng: random.Random, num_boxes: int = 500, known: Sequence[Statement] = (), share: float = 0.0
    ) -> None:
        self._rng, self._known, self._share = rng, known, share if known else 0.0
        self._pools = {
            False: [random_box(rng) for _ in range(num_boxes)],
            True: [random_tower(rng) for _ in range(num_boxes)],
        }

    def pair(self) -> tuple[Statement, Scene, Scene]:
        """A sentence, a scene that it is true of and one that it is false of."""
        while True:
            known = self._rng.random() < self._share
            statement = self._rng.choice(self._known) if known else random_statement(self._rng)
            scenes = self._scenes(statement)
            if scenes is not None:
                return statement, *scenes

    def scene(self, *, towers: bool) -> Scene:
        """A random scene."""
        return tuple(self._rng.choices(self._pools[towers], k=NUM_BOXES))

    def _scenes(self, statement: Statement) -> tuple[Scene, Scene] | None:
        """A true and a false scene, a few small changes apart; None for a sentence that is nearly always the same."""
        wanted = self._rng.random() < 0.5
        for _ in range(_SCENES):
            scene = self.scene(towers=statement.towers)
            if statement.meaning.is_true(scene) != wanted:
                continue
            for depth in sorted(_DEPTHS * _TRIES_PER_DEPTH):
                other = scene
                for _ in range(depth):
                    other = changed(other, self._rng)
                if statement.meaning.is_true(other) != wanted:
                    return (scene, other) if wanted else (other, scene)
        return None
