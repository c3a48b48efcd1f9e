"""The environment of paper_search: tools that show papers, a limit on how many, and a reward for each relevant one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_r1.envs import ToolEnv
from agent_r1.errors import ConfigError
from agent_r1.tools import ToolEntry
from agent_r1.types import Action, Observation, StepResult, Task

from .library import View, open_library
from .reading import Reading
from .tools import STATE

TOOLS = ("tools:search", "tools:cited", "tools:expand")


class PaperSearchEnv(ToolEnv):
    """A `ToolEnv` that knows which papers were shown. An action without a call is the answer and ends the episode.

    Args:
        library: The folder with the collection.
        tools: The tools, `tools:search`, `tools:cited` and `tools:expand`.
        max_read: Maximum papers per episode; every paper that is shown counts once.
        page: Maximum papers per call.
        found_reward: The reward for all relevant papers together; each new one earns its share when it is shown.
        context: How much of its history the model sees.
    """

    def __init__(
        self,
        library: str,
        tools: Sequence[ToolEntry] = TOOLS,
        max_read: int = 30,
        page: int = 5,
        found_reward: float = 2.0,
        context: str | Mapping[str, Any] = "append",
    ) -> None:
        if min(max_read, page) < 1:
            raise ConfigError(f"env.max_read={max_read} and env.page={page} must be at least 1")
        super().__init__(tools, context)
        self._folder = library
        self._max_read, self._page, self._found_reward = max_read, page, found_reward
        self._reading: Reading
        self._relevant: frozenset[int] = frozenset()

    async def reset(self, task: Task) -> Observation:
        """Returns the question and the tools; nothing has been read."""
        observation = await super().reset(task)
        given = task.env_kwargs
        view = View(library=open_library(self._folder), hidden=tuple(given["hidden"]), day=given["day"])
        self._reading = Reading(view=view, query=str(given["query"]), limit=self._max_read, page=self._page)
        self._relevant = frozenset(task.ground_truth or ())
        self._tool_context.state[STATE] = self._reading
        return replace(observation, anchor=self._anchor())

    async def step(self, action: Action) -> StepResult:
        """Run the calls. A relevant paper that is shown for the first time earns its share of the reward."""
        before = len(self._reading.papers)
        result = await super().step(action)
        new = self._reading.papers[before:]
        found = len(self._relevant.intersection(new))
        earned = self._found_reward * found / len(self._relevant) if found else 0.0
        metrics = {**result.info.get("metrics", {}), "papers/read": float(len(new)), "papers/relevant": float(found)}
        observation = result.observation
        return replace(
            result,
            observation=None if observation is None else replace(observation, anchor=self._anchor()),
            reward=result.reward + earned,
            info={**result.info, "metrics": metrics, "read": list(self._reading.papers)},
        )

    def _anchor(self) -> str:
        """States of a task are equal when the same papers have been read."""
        return " ".join(map(str, sorted(self._reading.papers)))
