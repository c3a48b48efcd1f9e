"""The twin of ALFWorld: steps per second with the commands of each state, memory of many games, time to load one.

    python benchmarks/speed/alfworld.py                                       # the recipe's sample
    python benchmarks/speed/alfworld.py --local_dataset_path FOLDER --cores 2 --json alfworld.json

Each core plays its own games: a random command that can be given, its answer, all commands that can be given next,
won or not. A game ends after `--steps` steps. `environment steps` are those of the recipe's `AgentEnv`, which also
writes the prompt of each step. Memory is what 512 games in progress need on top of their scenes. CPU seconds count, so
that other programs on the machine disturb little; the rate of several cores is the sum of theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_r1.types import Action, Task
from recipes.alfworld.data_preprocess import sources
from recipes.alfworld.demonstrations import room_of
from recipes.alfworld.env import AlfworldEnv
from recipes.alfworld.prompts import task_messages
from recipes.alfworld.world import archive
from recipes.alfworld.world.game import Game
from recipes.alfworld.world.scene import Scene, read_scene

SAMPLE = Path(__file__).parents[2] / "recipes" / "alfworld" / "sample"
SPLITS = ("valid_train", "valid_seen", "valid_unseen")
Loaded = list[tuple[Scene, Any]]


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_dataset_path", type=Path, default=SAMPLE, help="take the trials from this folder")
    parser.add_argument("--games", type=int, default=64, help="scenes, at most")
    parser.add_argument("--steps", type=int, default=30, help="steps per game")
    parser.add_argument("--rounds", type=int, default=10, help="games per scene and core")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--alive", type=int, default=512, help="games in progress at once")
    parser.add_argument("--repeats", type=int, default=3, help="the fastest of this many rounds counts")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    figures = measure(chosen)
    for name, value in figures.items():
        print(f"{name:42} {value:12,.1f}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")
    return figures


def measure(chosen: argparse.Namespace) -> dict[str, float]:
    """All figures."""
    trials = random.Random(0).sample(found := sources.read_trials(chosen.local_dataset_path, SPLITS), len(found))
    trials = trials[: chosen.games]
    started = time.process_time()
    loaded = [(read_scene(trial.problem), trial.goal) for trial in trials]
    load_ms = 1000 * (time.process_time() - started) / len(loaded)
    work = [(loaded, chosen.steps, chosen.rounds, core) for core in range(chosen.cores)]
    rates: list[float] = []
    for _ in range(chosen.repeats):
        with multiprocessing.get_context("fork").Pool(chosen.cores) as pool:
            rates = max(rates, pool.map(steps_per_second, work), key=sum)
    memory, per_game = memory_of(loaded, chosen.alive, chosen.steps)
    return {
        "scenes": float(len(loaded)),
        "milliseconds to load a game": load_ms,
        "steps per second, one core": max(rates),
        f"steps per second, {chosen.cores} cores": sum(rates),
        "environment steps per second, one core": env_steps_per_second(trials, chosen),
        f"megabytes of {chosen.alive} games in progress": memory / 1e6,
        "kilobytes per game": per_game / 1e3,
    }


def steps_per_second(work: tuple[Loaded, int, int, int]) -> float:
    """Random play on one core, by CPU seconds."""
    loaded, steps, rounds, seed = work
    rng = random.Random(seed)
    started, count = time.process_time(), 0
    for _ in range(rounds):
        for scene, goal in loaded:
            count += walk(Game(scene, goal), steps, rng)
    return count / (time.process_time() - started)


def walk(game: Game, steps: int, rng: random.Random) -> int:
    """Play at random; returns the steps until it was won or they were used up."""
    commands = game.commands()
    for number in range(steps):
        game.step(commands[int(rng.random() * len(commands))])
        commands = game.commands()
        if game.won:
            return number + 1
    return steps


def memory_of(loaded: Loaded, count: int, steps: int) -> tuple[float, float]:
    """Bytes of so many games in progress, and of one, without the scenes they share."""
    rng = random.Random(0)
    for scene, goal in loaded:
        walk(Game(scene, goal), steps, rng)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    games = [Game(*loaded[number % len(loaded)]) for number in range(count)]
    for game in games:
        walk(game, steps, rng)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return float(used), used / len(games)


def env_steps_per_second(trials: Sequence[sources.Trial], chosen: argparse.Namespace) -> float:
    """Random play through the recipe's environment, on one core."""
    with tempfile.TemporaryDirectory() as folder:
        games = Path(folder) / "games.zip"
        archive.write_games(games, ((trial.name, trial.problem) for trial in trials))
        tasks = [env_task(trial) for trial in trials]
        return asyncio.run(play_all(str(games), tasks, chosen.steps))


def env_task(trial: sources.Trial) -> Task:
    """The row of a trial."""
    prompt = tuple(task_messages(room_of(Game(read_scene(trial.problem), trial.goal)), trial.goal.text))
    return Task(task_id=trial.name, prompt=prompt, env_kwargs={"trial": trial.name, "goal": trial.goal.as_row()})


async def play_all(games: str, tasks: Sequence[Task], steps: int) -> float:
    """Steps per CPU second of one episode per task."""
    rng = random.Random(0)
    for task in tasks:
        await AlfworldEnv(games=games).reset(task)  # reads the scenes
    started, count = time.process_time(), 0
    for task in tasks:
        env = AlfworldEnv(games=games)
        await env.reset(task)
        going = [f"go to {place.name}" for place in archive.load_scene(games, task.task_id).places]
        for command in rng.choices([*going, "look", "inventory"], k=steps):
            result = await env.step(Action(text=command, content=command))
            count += 1
            if result.done:
                break
    return count / (time.process_time() - started)


if __name__ == "__main__":
    main()
