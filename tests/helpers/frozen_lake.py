"""FrozenLake for a tiny model: short observations, and players who know the way but do not always follow it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1.envs import make_env
from agent_r1.types import Action, Message, Task

ACTIONS = ("left", "down", "right", "up")
_WAY = {0: "down", 1: "right", 2: "down", 3: "left", 4: "down", 6: "down", 8: "right", 9: "down", 10: "down"}
"""The action that leads to the goal of the 4x4 map, by field; from the others it is `right`."""


def field(state: Any) -> str:
    """What the model reads."""
    return f"field {int(state)}"


def demonstrations(tasks: Sequence[Task], env: Mapping[str, Any], *, wrong: float, steps: int) -> list[dict[str, Any]]:
    """Conversations of players who choose at random in a share of their turns."""
    rng = random.Random(0)
    return [{"messages": asyncio.run(_play(task, env, rng, wrong, steps))} for task in tasks]


async def _play(task: Task, section: Mapping[str, Any], rng: random.Random, wrong: float, steps: int) -> list[Message]:
    env = make_env(task, section)
    try:
        messages = (await env.reset(task)).messages or ()
        for _ in range(steps):
            state = int(str(messages[-1]["content"]).split()[-1])
            text = rng.choice(ACTIONS) if rng.random() < wrong else _WAY.get(state, "right")
            result: Any = await env.step(Action(text=text, content=text))
            messages = result.observation.messages
            if result.done:
                break
        return list(messages[:-1])
    finally:
        await env.close()
