"""The environment `gsm8k_plain`: the same problems without tools, in one step: for comparison, and for demonstrations.

agent-r1 eval recipes/gsm8k_tool env=gsm8k_plain reward.function=reward_fn:score_boxed rollout.max_tokens=512
"""

from __future__ import annotations

from agent_r1.envs import AgentEnv
from agent_r1.types import Action, Observation, StepResult, Task

from .prompts import plain_question


@AgentEnv.register("gsm8k_plain")
class PlainEnv(AgentEnv):
    """Asks for step-by-step reasoning instead of calls, and ends with the first action."""

    async def reset(self, task: Task) -> Observation:
        """The problem with the instruction to reason."""
        return self.preview(task)

    def preview(self, task: Task) -> Observation:
        """What `reset` returns."""
        return Observation(messages=tuple(plain_question(str(task.prompt[-1]["content"]))))

    async def step(self, action: Action) -> StepResult:
        """End the episode."""
        return StepResult(observation=None, done=True)
