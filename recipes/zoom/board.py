"""The environment of zoom: tools until the answer is given."""

from __future__ import annotations

from agent_r1.envs import ToolEnv
from agent_r1.types import Action, StepResult

from .tools import answer


class BoardEnv(ToolEnv):
    """A `ToolEnv` that ends when `answer` is called with a digit."""

    async def step(self, action: Action) -> StepResult:
        """Run the calls; the episode ends with the answer, or with a text that calls nothing."""
        result = await super().step(action)
        if given_digit(action) is None or result.done:
            return result
        return StepResult(observation=None, reward=result.reward, done=True, info=result.info)


def given_digit(action: Action) -> int | None:
    """The digit of an action that calls `answer`, None when there is none."""
    if action.parse_error is not None:
        return None
    digits = [call.arguments.get("digit") for call in action.tool_calls if call.name == answer.name]
    return next((digit for digit in digits if isinstance(digit, int) and not isinstance(digit, bool)), None)
