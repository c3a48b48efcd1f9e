"""Which games are trained on, which settings are chosen by, and which are published.

* test: the official games, 140 `seen` and 134 `unseen` (other rooms).
* validation: held out of the official training games. `new_room` has rooms that are held out whole, with all their
  games; `known_room` has goals of training rooms that are not trained on.
* train: the other training games, and new goals in their scenes. None of them is in a room of `unseen`.
* demonstrations: new goals that are in none of the above.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from agent_r1.console import progress_counter
from agent_r1.data import hold_out
from agent_r1.errors import DataError

from ..demonstrations import Move, play
from ..expert import Habits
from ..world.goals import FAMILIES, Goal, possible_goals
from ..world.scene import Scene, read_scene
from .sources import UNSEEN_FLOOR_PLANS, Trial

NUM_DEMONSTRATIONS, NUM_NEW_GOALS, NUM_VALIDATION = 3000, 1200, 80
"""New goals to demonstrate and to train on, and the validation games of each kind of room, at most."""
SHARE_DEMONSTRATIONS, SHARE_NEW_GOALS, SHARE_VALIDATION = 18, 7, 5
"""The same per official game that they are made from, at most: few scenes do not give many different games."""
MAX_STEPS = 30
"""Steps within which the expert has to win a new game."""
HELD_OUT_ROOMS = 2
"""Rooms of each type (kitchens, living rooms, bedrooms, bathrooms) that are held out for validation."""


@dataclass(frozen=True, kw_only=True)
class PlannedGame:
    """A game, and how the expert won it."""

    trial: str
    goal: Goal
    scene: Scene
    source: str
    moves: tuple[Move, ...] = ()

    @property
    def task_id(self) -> str:
        """Unique among all rows."""
        return f"{self.source}-{self.trial.rpartition('/')[2]}-{self.goal.family}-{self.goal.thing}-{self.goal.place}"


class Planner:
    """Makes the splits. Every new goal was won by the expert within `max_steps`."""

    def __init__(self, trials: Sequence[Trial], *, max_steps: int = MAX_STEPS, seed: str = "alfworld") -> None:
        training = [trial for trial in trials if trial.split in ("train", "valid_train")]
        wrong = sorted({trial.floor_plan for trial in training} & UNSEEN_FLOOR_PLANS)
        if wrong:
            raise DataError(f"floor plans {wrong} belong to the unseen games and cannot be trained in")
        self.max_steps, self.seed = max_steps, seed
        self._scenes = {trial.name: read_scene(trial.problem) for trial in trials}
        rooms = held_out_rooms(trial.floor_plan for trial in training)
        self._held_out = [trial for trial in training if trial.floor_plan in rooms]
        self._training = [trial for trial in training if trial.floor_plan not in rooms]
        self.test = {
            split.removeprefix("valid_"): [self._official(trial, split) for trial in trials if trial.split == split]
            for split in ("valid_seen", "valid_unseen")
        }
        self.habits = Habits.count(self._scenes[trial.name] for trial in self._training)

    def _official(self, trial: Trial, source: str) -> PlannedGame:
        name = source.removeprefix("valid_")
        return PlannedGame(trial=trial.name, goal=trial.goal, scene=self._scenes[trial.name], source=name)

    def splits(self) -> dict[str, list[PlannedGame]]:
        """The games of each split; those of `demonstrations` have their moves."""
        num_trials = len(self._training)
        validation = min(NUM_VALIDATION, SHARE_VALIDATION * len(self._held_out))
        new_goals = min(NUM_NEW_GOALS, SHARE_NEW_GOALS * num_trials)
        demonstrations = min(NUM_DEMONSTRATIONS, SHARE_DEMONSTRATIONS * num_trials)
        known = self.new_games(self._training, "known_room", validation + new_goals + demonstrations)
        rooms = [self._official(trial, "new_room") for trial in self._held_out][:validation]
        rooms += self.new_games(self._held_out, "new_room", validation - len(rooms))
        official = [self._official(trial, "train") for trial in self._training]
        trained = [replace(game, source="train") for game in known[validation : validation + new_goals]]
        return {
            "train": [*official, *trained],
            "validation": [*known[:validation], *rooms],
            "test": [game for games in self.test.values() for game in games],
            "demonstrations": known[validation + new_goals :],
        }

    def new_games(self, trials: Sequence[Trial], source: str, count: int) -> list[PlannedGame]:
        """So many new games that the expert won, the families in turn and each spread over all scenes."""
        rng = random.Random(f"{self.seed} {source}")
        official = {(trial.name, trial.goal.family, trial.goal.thing, trial.goal.place) for trial in trials}
        waiting: Mapping[str, list[tuple[str, Goal]]] = defaultdict(list)
        for trial in trials:
            for goal in possible_goals(self._scenes[trial.name]):
                if (trial.name, goal.family, goal.thing, goal.place) not in official:
                    waiting[goal.family].append((trial.name, replace(goal, wording=rng.randrange(2))))
        for family in FAMILIES:
            rng.shuffle(waiting[family])
        turns = _in_turn([waiting[family] for family in FAMILIES])
        found: list[PlannedGame] = []
        with progress_counter("games", count) as progress:
            while len(found) < count and (entry := next(turns, None)) is not None:
                trial_name, goal = entry
                scene = self._scenes[trial_name]
                moves = play(scene, goal, self.habits, self.max_steps, rng)
                if moves is not None:
                    planned = PlannedGame(trial=trial_name, goal=goal, scene=scene, source=source, moves=tuple(moves))
                    found.append(planned)
                    progress("playing new games", len(found))
        return found


def held_out_rooms(floor_plans: Iterable[int]) -> set[int]:
    """The rooms that are held out: two of each hundred, which is a type of room, and at most a fifth."""
    by_type: Mapping[int, list[int]] = defaultdict(list)
    for floor_plan in sorted(set(floor_plans)):
        by_type[floor_plan // 100].append(floor_plan)
    several = [rooms for rooms in by_type.values() if len(rooms) > 1]
    return {room for rooms in several for room in hold_out(rooms, HELD_OUT_ROOMS, key=str)[1]}


def _in_turn(lists: Sequence[list[tuple[str, Goal]]]) -> Iterator[tuple[str, Goal]]:
    """An entry of each list in turn, as long as there are any.

    >>> "".join(_in_turn(["ad", "b", "ce"]))
    'abcde'
    """
    for number in range(max(map(len, lists), default=0)):
        yield from (entries[number] for entries in lists if number < len(entries))
