"""The two built-in flows: `AgentEnvLoop` runs an environment, `SingleStepFlow` calls the model once."""

from __future__ import annotations

import time

from agent_r1.envs import AgentEnv, as_observation, as_step_result, awaited
from agent_r1.errors import ConfigError, boundary
from agent_r1.flows.base import AgentFlowBase, Turn
from agent_r1.types import Episode, Observation, StepResult, StopReason, Task


@AgentFlowBase.register("env_loop")
class AgentEnvLoop(AgentFlowBase):
    """Alternates model calls and environment steps until the environment is done or a limit is reached."""

    async def run(self, task: Task) -> Episode:
        """Run one episode in the task's environment."""
        if self.context.make_env is None:
            raise ConfigError("the flow 'env_loop' needs an environment: set env.name")
        with boundary(StopReason.ENV_ERROR, "making the environment"):
            env = self.context.make_env(task)
        try:
            return await self._loop(env, task)
        finally:
            with boundary(StopReason.ENV_ERROR, f"close of {type(env).__name__}"):
                await awaited(env.close(), f"{type(env).__name__}.close")

    async def _loop(self, env: AgentEnv, task: Task) -> Episode:
        name = type(env).__name__
        with boundary(StopReason.ENV_ERROR, f"reset of {name}"):
            prompt = await self.render_async(as_observation(await awaited(env.reset(task), f"{name}.reset")))
        while self.fits(prompt):
            turn = await self.act(prompt)
            started = time.perf_counter()
            with boundary(StopReason.ENV_ERROR, f"step of {name}"):
                result = as_step_result(await awaited(env.step(turn.action), f"{name}.step"))
            self.record(
                turn,
                reward=result.reward,
                done=result.done,
                info=result.info,
                env_seconds=time.perf_counter() - started,
                following=result.observation,
            )
            if result.done:
                return self.episode(StopReason.DONE, answer=result.answer)
            if turn.context_cut:
                return self._cut(StopReason.CONTEXT_FULL, turn, None)
            if result.truncated or len(self.steps) == self.context.max_steps:
                return self._cut(StopReason.MAX_STEPS, turn, result)
            with boundary(StopReason.ENV_ERROR, f"the observation of {name}"):
                prompt = await self.render_async(_next_observation(result), after=turn)
            last = turn
        if not self.steps:
            raise ConfigError(
                f"the first prompt of task '{task.task_id}' has {len(prompt.token_ids)} tokens and does not fit a "
                f"context of {self.context.engine.context_length}, or has more images than rollout.max_images "
                "and rollout.max_episode_images allow"
            )
        return self._cut(StopReason.CONTEXT_FULL, last, None)

    def _cut(self, reason: StopReason, turn: Turn, result: StepResult | None) -> Episode:
        """An episode truncated here, with the state that a critic values: the next prompt when there is one that fits,
        else the last prompt and its action."""
        limit = self.context.engine.context_length
        if result is not None and result.observation is not None:
            following = self.render(result.observation, after=turn)
            if len(following.token_ids) <= limit:
                return self.episode(reason, following.token_ids, following.observation.privileged)
        end = (turn.prompt.token_ids + turn.completion.token_ids)[:limit]
        return self.episode(reason, end, turn.prompt.observation.privileged)


@AgentFlowBase.register("single_step")
class SingleStepFlow(AgentFlowBase):
    """One model call, no environment."""

    async def run(self, task: Task) -> Episode:
        """Call the model once."""
        turn = await self.act(await self.render_async(Observation(messages=task.prompt)))
        cut = turn.completion.finish_reason == "length"
        self.record(turn, reward=0.0, done=not cut)
        if not cut:
            return self.episode(StopReason.DONE)
        reason = StopReason.CONTEXT_FULL if turn.context_cut else StopReason.MAX_TOKENS
        return self.episode(reason, turn.prompt.token_ids + turn.completion.token_ids)


def _next_observation(result: StepResult) -> Observation:
    if result.observation is None:  # as_step_result has raised already
        raise ConfigError("the environment gave no next observation")
    return result.observation
