"""Play games in the twin and in textworld at once, and compare every state: answer, commands that can be given, won.

    python recipes/alfworld/compare.py --local_dataset_path FOLDER --games 100 --steps 40

Needs the extra `alfworld`. Half of the games have their official goal and half a new one. The commands are a mix of the
expert's, of random ones that can be given, and of some that cannot. With `--record FILE` what textworld said is
written, for a test that replays it without textworld.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_r1.registry import load_module, recipe_folder

RECIPE = Path(__file__).resolve().parent

# A plain import would not find them when this file is run as a script.
with recipe_folder(RECIPE):
    demonstrations = load_module("demonstrations")
    expert_module = load_module("expert")
    game_module = load_module("world.game")
    goals = load_module("world.goals")
    original = load_module("world.original")
    pddl = load_module("world.pddl")
    scene_module = load_module("world.scene")
    sources = load_module("data_preprocess.sources")


@dataclass
class Comparison:
    """What was compared."""

    num_games: int = 0
    num_states: int = 0
    num_won: int = 0
    verbs: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verbs = ", ".join(f"{count} {verb}" for verb, count in self.verbs.most_common())
        return (
            f"{self.num_states} states of {self.num_games} games, {self.num_won} of them won: "
            f"{len(self.differences)} differences\ncommands given: {verbs}"
        )


def fingerprint(commands: Sequence[str]) -> str:
    """Commands in short."""
    return hashlib.blake2b("\n".join(commands).encode(), digest_size=6).hexdigest()


def choose(game: Any, expert: Any, rng: random.Random) -> str:
    """The next command: the expert's, a random one, or one that cannot be given."""
    kind = rng.random()
    if kind < 0.45 and (command := expert.command()) is not None:
        return str(command)
    if kind < 0.5:
        return rng.choice(
            ["dance", "go to moon 1", f"open {rng.choice(game.scene.places).name}", "take mug 9 from bed 1"]
        )
    commands = game.commands()
    near = [command for command in commands if not command.startswith(("go ", "help", "look", "inventory"))]
    return rng.choice(near if near and rng.random() < 0.6 else commands)


def compare_game(
    trial: Any, goal: Any, steps: int, rng: random.Random, worker: Any, found: Comparison
) -> dict[str, Any]:
    """Compare one game; returns what textworld said."""
    scene = scene_module.read_scene(trial.problem)
    game = game_module.Game(scene, goal)
    expert = expert_module.Expert(goal, demonstrations.room_of(game), expert_module.Habits.count([scene]))
    number, told = worker.start(pddl.replace_goal(trial.problem, goal.pddl()), goal.text)
    record: dict[str, Any] = {"trial": trial.name, "goal": goal.as_row(), "states": []}
    command, answer = "", game.intro
    found.num_games += 1
    for _ in range(steps):
        found.num_states += 1
        record["states"].append([command, told["answer"], fingerprint(told["commands"]), told["won"]])
        mine = {"answer": answer, "commands": game.commands(), "won": game.won}
        found.differences += [
            f"{trial.name}, after {command!r}: {name} is {mine[name]!r}, textworld says {told[name]!r}"
            for name in mine
            if mine[name] != told[name]
        ]
        if game.won:
            found.num_won += 1
            break
        command = choose(game, expert, rng)
        found.verbs[command.split()[0]] += 1
        answer = game.step(command)
        expert.observe(command, answer)
        told = worker.ask({"give": number, "command": command})
    worker.ask({"close": number})
    return record


def chosen_games(trials: Sequence[Any], count: int, rng: random.Random) -> Iterator[tuple[Any, Any]]:
    """Trials in random order, in turn with their own goal and with a new one."""
    for number, trial in enumerate(rng.sample(trials, min(count, len(trials)))):
        new = list(goals.possible_goals(scene_module.read_scene(trial.problem))) if number % 2 else []
        yield trial, rng.choice(new) if new else trial.goal


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_dataset_path", type=Path, help="take the trials from this folder")
    parser.add_argument("--games", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40, help="states per game, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="write what textworld said as JSON lines")
    chosen = parser.parse_args(arguments)
    rng = random.Random(chosen.seed)
    trials = sources.read_trials(chosen.local_dataset_path, ("valid_train", "valid_seen", "valid_unseen"))
    worker, found, records = original.OriginalWorker(), Comparison(), []
    try:
        for trial, goal in chosen_games(trials, chosen.games, rng):
            records.append(compare_game(trial, goal, chosen.steps, rng, worker, found))
            print(
                f"{found.num_games} games, {found.num_states} states, {len(found.differences)} differences", flush=True
            )
    finally:
        worker.stop()
    if chosen.record is not None:
        chosen.record.write_text("".join(json.dumps(record) + "\n" for record in records))
    print(found)
    print("\n".join(found.differences[:20]))
    return int(bool(found.differences))


if __name__ == "__main__":
    sys.exit(main())
