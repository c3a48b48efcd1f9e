"""Small, real runs for the tests: a folder with a task file, and the overrides of a run that takes a second or two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recipes.quickstart.shop import Basket, task_row

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart"


def write_tasks(path: Path, count: int = 6) -> Path:
    """Baskets whose questions differ in their quantity."""
    rows = [task_row(Basket(quantities={"egg": 2 + number}, prices={"egg": 3, "tea": 4})) for number in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def score_variety(task: Any, episode: Any) -> float:
    """Differs between the members of a group whatever a random model says."""
    return float(len(set(episode.final_text)))


def tiny_overrides(folder: Path, model: Path, *extra: str) -> list[str]:
    """The quickstart recipe with a tiny model, few tasks and few, short episodes."""
    tasks = write_tasks(folder / "tasks.jsonl")
    return [
        str(RECIPE),
        f"run.folder={folder}",
        "run.name=tiny",
        f"model.path={model}",
        f"data.train=[{tasks}]",
        "data.eval=[]",
        "rollout.groups_per_step=2",
        "rollout.group_size=4",
        "rollout.max_steps=2",
        "rollout.max_tokens=8",
        "optimizer.final_fraction=1",
        "trainer.steps=4",
        "trainer.save_every=1",
        *extra,
    ]
