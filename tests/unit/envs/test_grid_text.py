"""MiniGrid's partial view in words, and its environments in one line."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from agent_r1.envs import GymEnv, describe_grid, ready_env
from agent_r1.errors import ConfigError, DataError
from agent_r1.types import Action, Task

EMPTY, WALL, DOOR, KEY, BALL, LAVA, GOAL = 1, 2, 4, 5, 6, 9, 8


def view(*cells: tuple[int, int, tuple[int, int, int]]) -> dict[str, Any]:
    """An observation of 7 x 7 empty cells but for those at (steps forward, steps right)."""
    image = np.zeros((7, 7, 3), dtype=np.uint8)
    image[:, :, 0] = EMPTY
    for ahead, aside, cell in cells:
        image[3 + aside, 6 - ahead] = cell
    return {"image": image, "direction": 0, "mission": "get out"}


def test_objects_are_listed_from_near_to_far_then_the_nearest_walls() -> None:
    walls = [(5, 0, (WALL, 5, 0)), (6, 0, (WALL, 5, 0)), (0, 2, (WALL, 5, 0))]
    seen = view((3, -2, (BALL, 0, 0)), (1, 0, (DOOR, 4, 2)), *walls)
    assert describe_grid(seen).splitlines() == [
        "Mission: get out",
        "You see:",
        "- a locked yellow door 1 step forward",
        "- a red ball 3 steps forward and 2 steps left",
        "- a wall 5 steps forward",
        "- a wall 2 steps right",
    ]


def test_what_is_carried_stands_where_the_agent_is() -> None:
    assert "You carry a blue key.\n" in describe_grid(view((0, 0, (KEY, 2, 0))))
    assert "carry" not in describe_grid(view())


def test_an_open_door_lava_a_goal_and_nothing() -> None:
    text = describe_grid(view((1, 0, (DOOR, 1, 0)), (2, 0, (LAVA, 0, 0)), (2, 1, (GOAL, 1, 0))))
    assert [line for line in text.splitlines() if line.startswith("- ")] == [
        "- an open green door 1 step forward",
        "- lava 2 steps forward",
        "- a goal 2 steps forward and 1 step right",
    ]
    assert describe_grid(view()).endswith("You see:\n- nothing")


def first_text(env: GymEnv, task: Task) -> str:
    async def run() -> str:
        try:
            return str((await env.reset(task)).messages[-1]["content"])
        finally:
            await env.close()

    return asyncio.run(run())


def test_babyai_is_played_in_words_and_its_levels_have_their_own_arguments() -> None:
    pytest.importorskip("minigrid")
    levels = [{"room_size": 5, "num_dists": 1}, {"room_size": 8, "num_dists": 8}]
    ready = ready_env({"name": "gym:BabyAI-GoToLocal-v0", "tasks": 4, "eval_tasks": 2, "levels": levels})
    assert [(task.difficulty, task.data_source[-6:]) for task in ready.train] == [(1, "level1"), (2, "level2")] * 2
    section = {name: value for name, value in ready.env.items() if name != "name"}
    env = GymEnv(**section)

    async def play() -> tuple[list[str], float]:
        texts = [str((await env.reset(task)).messages[-1]["content"]) for task in ready.train[:2]]
        result = await env.step(Action(text="left", content="left"))
        await env.close()
        return texts, result.reward

    (small, large), reward = asyncio.run(play())
    assert small.startswith("Mission: go to ")
    import gymnasium

    same, _ = gymnasium.make("minigrid:BabyAI-GoToLocal-v0", **levels[1]).reset(seed=ready.train[1].env_kwargs["seed"])
    assert large == describe_grid(same) != small
    assert reward == 0.0


def test_wrong_levels_and_wrong_arguments_of_a_row_are_refused() -> None:
    pytest.importorskip("gymnasium")
    with pytest.raises(ConfigError, match="FrozenLake-v1' cannot be made"):
        ready_env({"name": "gym:FrozenLake-v1", "levels": [{"size": 3}]})
    task = Task(task_id="t", prompt=(), env_kwargs={"arguments": 3})
    with pytest.raises(DataError, match=r"env_kwargs.arguments must be an object, found 3"):
        first_text(GymEnv("FrozenLake-v1"), task)
