"""The environment that the tests of the service serve, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_r1.envs import AgentEnv
from agent_r1.types import Action, Observation, StepResult, Task


class Counter(AgentEnv):
    """Counts steps and writes down, in `log`, everything that really ran. Texts of actions are its orders."""

    def __init__(self, log: str = os.devnull) -> None:
        self.log = Path(log)
        self.num_steps = 0

    def note(self, what: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{what} {self.task.task_id}\n")

    async def reset(self, task: Task) -> Observation:
        self.task = task
        self.note("reset")
        await asyncio.sleep(task.env_kwargs.get("reset_seconds", 0.0))
        if task.env_kwargs.get("broken"):
            raise OSError("no room for the world")
        return Observation(messages=task.prompt, anchor="start", privileged="secret")

    async def step(self, action: Action) -> StepResult:
        self.num_steps += 1
        self.note(f"step {self.num_steps}")
        order, _, argument = action.text.partition(" ")
        if order == "wait":
            await asyncio.sleep(float(argument))
        if order == "cling":
            await self.cling(float(argument))
        if order == "exit":
            sys.exit(0)
        if order == "infinite":
            return StepResult(observation=None, reward=float(argument), done=True)
        if order == "raise":
            raise ValueError(f"the world broke: {argument}")
        if order == "unsendable":
            return self.answer(action, {"object": object()})
        if order == "end":
            return StepResult(observation=None, reward=1.0, done=True)
        return self.answer(action, {"ids": list(action.token_ids), "metrics": {"n": 0.1}})

    async def cling(self, seconds: float) -> None:
        """Refuse to be cancelled for some time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(end - time.monotonic())

    def answer(self, action: Action, info: dict[str, Any]) -> StepResult:
        said = {"role": "user", "content": f"{self.task.task_id}: {self.num_steps}"}
        messages = (*self.task.prompt, action.as_message(), said)
        return StepResult(observation=Observation(messages=messages), reward=0.1 + 0.2, info=info)

    async def close(self) -> None:
        self.note("close")
