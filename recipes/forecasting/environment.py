"""The environment of forecasting: tools that look at the past of one series."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_r1.envs import ToolEnv
from agent_r1.errors import DataError
from agent_r1.tools import ToolEntry
from agent_r1.types import Action, Observation, StepResult, Task

from .series import open_series
from .tools import STATE
from .window import Window, open_window

TOOLS = ("tools:statistics", "tools:decompose", "tools:backtest", "tools:forecast")


class ForecastEnv(ToolEnv):
    """A `ToolEnv` whose tools see the window of the task. An action without a call is the answer and ends the episode;
    the forecasts of the models that it names are in its `info`, where the reward function finds them.

    Args:
        series: The folder with the CSV files.
        tools: The tools; `tools:statistics`, `tools:decompose`, `tools:backtest` and `tools:forecast`.
        context: How much of its history the model sees.
    """

    def __init__(
        self, series: str, tools: Sequence[ToolEntry] = TOOLS, context: str | Mapping[str, Any] = "append"
    ) -> None:
        super().__init__(tools, context)
        self._folder = series
        self._window: Window

    async def reset(self, task: Task) -> Observation:
        """Returns the question and the tools."""
        observation = await super().reset(task)
        name, start = task.env_kwargs["series"], task.env_kwargs["start"]
        if name not in (known := open_series(self._folder)):
            raise DataError(f"task '{task.task_id}' is of the series {name}; {self._folder} has {', '.join(known)}")
        self._window = open_window(self._folder, name, start)
        self._tool_context.state[STATE] = self._window
        return observation

    async def step(self, action: Action) -> StepResult:
        """Run the calls, or end the episode with the forecasts that the answer names."""
        result = await super().step(action)
        if not result.done:
            return result
        words = set(re.findall("[a-z_]+", action.text))
        named = {name: values.tolist() for name, values in self._window.forecasts.items() if name in words}
        return replace(result, info={**result.info, "forecasts": named})
