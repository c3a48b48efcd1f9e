"""The flow `gateway`: an episode is what the user's own agent does.

    agent-r1 train recipes/mine data.agent_name=gateway agent.function=my_agent:solve

The agent gets an address that speaks the OpenAI API; each of its calls is a step (`open_rollouts`). The episode ends
with the agent. Its answer is what the agent returned, else the last completion; it is scored by the reward function, or
has the reward that was posted.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from agent_r1.errors import ConfigError, EpisodeError
from agent_r1.flows import AgentFlowBase
from agent_r1.gateway.open_rollouts import OpenRollout
from agent_r1.gateway.service import Gateway
from agent_r1.types import Episode, StopReason, Task, TokenIds


@dataclass(frozen=True, kw_only=True, slots=True)
class _AgentEnd:
    """How the agent ended."""

    answer: str | None = None
    """What it returned."""
    failure: EpisodeError | None = None
    """The agent's error; None when it ended by itself and without one."""
    was_stopped: bool = False
    """The agent was stopped because it had no call left."""


@AgentFlowBase.register("gateway")
class GatewayFlow(AgentFlowBase):
    """Runs the agent of the configuration's section `agent` and records its calls."""

    async def run(self, task: Task) -> Episode:
        """Run the agent on one task."""
        gateway = self.context.services.get("gateway")
        if not isinstance(gateway, Gateway):
            raise ConfigError("the flow 'gateway' needs the server of a run; give FlowContext.services['gateway']")
        rollout = OpenRollout(self, task, takes_outcome=gateway.settings.reward == "posted")
        async with gateway.serving(rollout) as assignment:
            agent = asyncio.ensure_future(gateway.agent.run(assignment))
            try:
                end = await self._end_of(agent, rollout, gateway.settings.grace_seconds)
            finally:
                await _stop(agent)
                rollout.end_calls()
            reason = self._stop_reason(end, rollout, task)
            posted = None
            if gateway.settings.reward == "posted":
                posted = await rollout.posted_outcome(gateway.settings.grace_seconds)
            return self._finish(reason, end, rollout, posted)

    async def _end_of(self, agent: asyncio.Future[str | None], rollout: OpenRollout, grace_seconds: float) -> _AgentEnd:
        """Wait for the agent. One that has no call left is stopped when it does not end by itself."""
        out_of_steps = asyncio.ensure_future(rollout.out_of_steps.wait())
        try:
            ends: set[asyncio.Future[Any]] = {agent, rollout.failure}
            await asyncio.wait({*ends, out_of_steps}, return_when=asyncio.FIRST_COMPLETED)
            if not agent.done() and not rollout.failure.done():
                await asyncio.wait(ends, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            out_of_steps.cancel()
        if rollout.failure.done():
            raise rollout.failure.result()
        if not agent.done():
            return _AgentEnd(was_stopped=True)
        if agent.cancelled():
            details = "it cancelled its own task (asyncio.CancelledError)"
            return _AgentEnd(failure=EpisodeError(StopReason.AGENT_ERROR, "the agent", details))
        error = agent.exception()
        if isinstance(error, EpisodeError):
            return _AgentEnd(failure=error)
        return _AgentEnd(answer=agent.result())

    def _stop_reason(self, end: _AgentEnd, rollout: OpenRollout, task: Task) -> StopReason:
        """Why the episode ended. An agent that fails because its call was refused at a limit was cut, it did not
        fail."""
        if not self.steps:
            if end.failure is not None:
                raise end.failure
            details = "it ended without a single answered call; is its base_url the address it was given?"
            raise EpisodeError(StopReason.AGENT_ERROR, f"the agent on task '{task.task_id}'", details)
        if end.answer is not None:
            return StopReason.DONE
        if rollout.limit is not None:
            return rollout.limit
        if end.was_stopped:
            return StopReason.MAX_STEPS
        if end.failure is not None:
            raise end.failure
        last = rollout.calls[-1].turn
        if last.completion.finish_reason == "length":
            return StopReason.CONTEXT_FULL if last.context_cut else StopReason.MAX_TOKENS
        return StopReason.DONE

    def _finish(self, reason: StopReason, end: _AgentEnd, rollout: OpenRollout, posted: float | None) -> Episode:
        for index, reward in rollout.rewards().items():
            self.steps[index] = replace(self.steps[index], reward=reward)
        self.steps[-1] = replace(self.steps[-1], done=reason is StopReason.DONE)
        continued = {step.parent for step in self.steps}
        self.metrics["episode/branches"] = len(self.steps) - sum(index in continued for index in range(len(self.steps)))
        episode = self.episode(reason, self._state_after() if reason.is_truncation else None)
        return replace(episode, given_answer=end.answer, posted_reward=posted)

    def _state_after(self) -> TokenIds:
        """The state in which a truncated episode was left: the last prompt and its action."""
        last = self.steps[-1]
        return (last.prompt_ids + last.action_ids)[: self.context.engine.context_length]


async def _stop(agent: asyncio.Future[str | None]) -> None:
    """Stop the agent if it still runs, and wait until its processes are gone."""
    if not agent.done():
        agent.cancel()
        with suppress(asyncio.CancelledError, EpisodeError):
            await agent
