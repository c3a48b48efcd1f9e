"""The data of alfworld: games as parquet files, their PDDL problems, and demonstrations for the warm start.

    python recipes/alfworld/data_preprocess/process_alfworld.py --local_save_dir runs/alfworld_data

`agent-r1 train` calls `make_data` when a file that `base.yaml` names is missing. The demonstrations have the form that
`base.yaml` gives the environment; overrides such as `env.context=alfworld_notes` or `env.commands=none` may follow.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agent_r1.cli.errors import script_errors
from agent_r1.config import Config, load_config
from agent_r1.data import write_rows
from agent_r1.envs import make_policy
from agent_r1.registry import load_module, recipe_folder

RECIPE = Path(__file__).resolve().parents[1]

# A plain import would not find them when this file is run as a script.
with recipe_folder(RECIPE):
    prompts = load_module("prompts")
    demonstrations = load_module("demonstrations")
    archive = load_module("world.archive")
    game = load_module("world.game")
    goals = load_module("world.goals")
    sources = load_module("data_preprocess.sources")
    splits = load_module("data_preprocess.splits")
    load_module("context")

GAMES_FILE, DEMONSTRATIONS_FILE = "games.zip", "demonstrations.jsonl"


def task_row(planned: Any) -> dict[str, Any]:
    """A game as a dataset row."""
    room = demonstrations.room_of(game.Game(planned.scene, planned.goal))
    return {
        "task_id": planned.task_id,
        "data_source": planned.source,
        "prompt": prompts.task_messages(room, planned.goal.text),
        "agent_name": "env_loop",
        "env_kwargs": {"trial": planned.trial, "goal": planned.goal.as_row()},
        "extra_info": {"family": planned.goal.family},
    }


def demonstration_rows(planned: Sequence[Any], config: Config) -> Iterator[dict[str, Any]]:
    """The demonstrations in the form that the environment shows."""
    policy = make_policy(config.env.get("context", "append"))
    mode = str(config.env.get("commands", "here"))
    for entry in planned:
        yield from demonstrations.conversations(entry.scene, entry.goal, list(entry.moves), policy, mode)


def describe(made: dict[str, list[Any]]) -> str:
    """How many games each split has, by family, and how long the expert's are."""
    lines = []
    for name, entries in made.items():
        counts = Counter(goals.SHORT[entry.goal.family] for entry in entries)
        sources_named = Counter(entry.source for entry in entries)
        families = ", ".join(f"{counts[short]} {short}" for short in goals.SHORT.values())
        lines.append(
            f"{name}: {len(entries)} games ({', '.join(f'{n} {s}' for s, n in sources_named.items())}): {families}"
        )
    steps = [len(entry.moves) for entry in made["demonstrations"]]
    if steps:
        lines.append(f"demonstrations have {sum(steps) / len(steps):.1f} steps on average, {max(steps)} at most")
    return "\n".join(lines)


def write_data(folder: Path, config: Config, dataset: Path | None = None, train_split: str = "valid_train") -> None:
    """Write the games, the demonstrations and one file per split."""
    trials = sources.read_trials(dataset, (train_split, "valid_seen", "valid_unseen"))
    made = splits.Planner(trials).splits()
    print(describe(made))
    used = {entry.trial for split in ("train", "validation", "test") for entry in made[split]}
    archive.write_games(folder / GAMES_FILE, ((trial.name, trial.problem) for trial in trials if trial.name in used))
    write_rows(folder / DEMONSTRATIONS_FILE, demonstration_rows(made["demonstrations"], config))
    for split in ("test", "validation", "train"):
        write_rows(folder / f"{split}.parquet", map(task_row, made[split]))


def make_data(config: Config) -> None:
    """The `data.prepare` of `base.yaml`."""
    write_data(Path(config.data.train[0]).parent, config)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local_save_dir", type=Path, required=True, help="where the files go")
    parser.add_argument("--local_dataset_path", type=Path, help="take the trials from this folder")
    parser.add_argument(
        "--train_split",
        choices=("valid_train", "train"),
        default="valid_train",
        help="the official games to train on: the 200 of valid_train, or all of train, which the download has",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to base.yaml")
    chosen = parser.parse_args(arguments)
    with recipe_folder(RECIPE):
        config = load_config(RECIPE, chosen.overrides)
        write_data(chosen.local_save_dir, config, chosen.local_dataset_path, chosen.train_split)


if __name__ == "__main__":
    with script_errors():
        main()
