"""`ChatSession`: a chat with an agent, turn by turn.

Every reply is an episode of the agent's flow, environment and tools, within the limits of training. The next message
continues it with the exact ids that were sampled: its prompt is bridged over the last turn, as between two steps of
one episode. The environment lives as long as the conversation, so tools keep their state.

    session = ChatSession(agent)
    trajectory = await session.say("What do 3 apple cost?", observer=show)
    session.undo()
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from agent_r1.chat import ChatRenderer, Prompt
from agent_r1.envs import AgentEnv, EnvWrapper
from agent_r1.errors import ConfigError
from agent_r1.flows import (
    ActionParsed,
    FlowEvent,
    FlowObserver,
    PromptRendered,
    StepRecorded,
    TokensSampled,
    Turn,
    replies_to,
)
from agent_r1.images import Picture
from agent_r1.inference.agent import Agent
from agent_r1.seeds import mix_seed
from agent_r1.types import Action, Completion, Message, Observation, SamplingParams, Step, StopReason, Task, Trajectory

STOPPED = "Error: stopped by the user before it finished"
"""What the model reads, instead of its result, of a call that the user stopped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """One message of the user and the agent's reply."""

    task: Task
    """The reply's task: its prompt is the conversation up to the user's message."""
    messages: tuple[Message, ...]
    """The whole conversation after the reply."""
    turn: Turn | None
    """The reply's last turn, which the next prompt is bridged over; None when the model was not called."""
    trajectory: Trajectory
    """The reply as a trajectory; `reward_parts` of one that the user stopped has `stopped`."""
    is_scored: bool
    """Whether the outcome reward was computed."""


class ChatSession:
    """A chat with one agent. One reply at a time."""

    def __init__(self, agent: Agent, *, system: str | None = None, seed: int = 0) -> None:
        self.agent = agent
        self.sampling: SamplingParams = agent.sampling
        self.exchanges: list[Exchange] = []
        self._system = system
        self._world: Task | None = None
        self._seed = seed
        self._num_replies = 0
        self._env: _KeptEnv | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far."""
        if self.exchanges:
            return self.exchanges[-1].messages
        return () if self._system is None else ({"role": "system", "content": self._system},)

    @property
    def system(self) -> str | None:
        """The system message; a new one is allowed only before the first message."""
        first = self.messages[0] if self.messages else {}
        return str(first["content"]) if first.get("role") == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        if self.exchanges:
            raise ConfigError("the system message stands at the beginning: /reset first, then change it")
        self._system = text

    async def say(
        self, text: str, *, images: Sequence[Picture] = (), observer: FlowObserver | None = None
    ) -> Trajectory:
        """The agent's reply to a message of the user, with images before its text. A failed reply leaves the
        conversation as it was. After a call that ended the episode nothing can be said: `ConfigError`."""
        if self.exchanges and self.exchanges[-1].trajectory.ended_by_call:
            raise ConfigError(
                "a tool call has ended the episode: the agent cannot continue it. Begin a new conversation (/reset, or "
                "/task), or take the last reply back (/undo)"
            )
        parts = [{"type": "image", "image": image} for image in images]
        content: Any = [*parts, *([{"type": "text", "text": text}] if text else [])] if parts else text
        messages = (*self.messages, {"role": "user", "content": content})
        base = self.exchanges[-1].task if self.exchanges else self._world
        task = self.agent.question(messages) if base is None else replace(base, prompt=messages)
        return await self._reply(task, observer, scored=False)

    async def run_task(self, task: Task, *, observer: FlowObserver | None = None) -> Trajectory:
        """Begin a new conversation with a task of the data, and let the agent work on it; its reward is computed.

        What is said afterwards continues in the task's environment.
        """
        await self.reset()
        return await self._reply(task, observer, scored=True)

    async def enter(self, task: Task) -> None:
        """Begin a new conversation in the world of a task (its `env_kwargs` and system message), without its
        question."""
        await self.reset()
        self._system = next((str(m["content"]) for m in task.prompt if m.get("role") == "system"), self._system)
        self._world = replace(task, task_id=f"chat in {task.task_id}", reward_model={}, control_tokens=False)

    def undo(self) -> bool:
        """Take back the user's last message and the reply to it; False when there is none. What tools have done
        outside the conversation stays done."""
        if not self.exchanges:
            return False
        self.exchanges.pop()
        return True

    async def reset(self) -> None:
        """Forget everything but the system message and the sampling."""
        await self.close()
        self.exchanges.clear()
        self._world = None

    async def close(self) -> None:
        """Close the environment."""
        env, self._env = self._env, None
        if env is not None:
            await env.env.close()

    async def _reply(self, task: Task, observer: FlowObserver | None, *, scored: bool) -> Trajectory:
        watch = _Watch(task, self.agent.renderer, observer)
        self._num_replies += 1
        try:
            trajectory = await self.agent.play(
                task,
                observer=watch,
                sampling=self.sampling,
                seed=mix_seed(self._seed, self._num_replies),
                continues=self.exchanges[-1].turn if self.exchanges else None,
                env=self._kept_env(task),
                scored=scored,
            )
        except asyncio.CancelledError:
            watch.stop()
            if watch.steps:  # a stop before the first character leaves nothing
                self._add(task, watch, _stopped_trajectory(task, watch.steps), is_scored=False)
            raise
        if trajectory.is_failure:
            await self._drop_env()
        else:
            if not watch.steps:  # by a flow that does not use `record`
                for step in trajectory.steps:
                    watch(StepRecorded(step=step, following=None))
            self._add(task, watch, trajectory, is_scored=scored)
        return trajectory

    def _add(self, task: Task, watch: _Watch, trajectory: Trajectory, *, is_scored: bool) -> None:
        exchange = Exchange(
            task=task, messages=watch.messages, turn=watch.turn, trajectory=trajectory, is_scored=is_scored
        )
        self.exchanges.append(exchange)

    def _kept_env(self, task: Task) -> AgentEnv | None:
        if task.agent_name == "single_step":
            return None
        if self._env is None:
            self._env = _KeptEnv(self.agent.make_env(task))
        return self._env

    async def _drop_env(self) -> None:
        """Leave a failed environment; the next message begins with a new one."""
        with suppress(Exception):
            await self.close()
        self._env = None


class _KeptEnv(EnvWrapper):
    """An environment that outlives its episodes: it begins once, and continues with each longer conversation."""

    def __init__(self, env: AgentEnv) -> None:
        super().__init__(env)
        self._has_begun = False

    async def reset(self, task: Task) -> Observation:
        """Reset the environment at the beginning of a conversation; extend it afterwards."""
        has_begun, self._has_begun = self._has_begun, True
        return await (self.env.extend(task) if has_begun else self.env.reset(task))

    async def close(self) -> None:
        """Nothing: the conversation closes the inner environment."""


class _Watch:
    """Follows one reply, so that the conversation can continue after it, also when it was stopped half-way."""

    def __init__(self, task: Task, renderer: ChatRenderer, observer: FlowObserver | None) -> None:
        self.messages: tuple[Message, ...] = task.prompt
        self.turn: Turn | None = None
        self.steps: list[Step] = []
        self._renderer = renderer
        self._observer = observer
        self._sampled: list[TokensSampled] = []
        self._pending: Prompt | Turn | None = None

    def __call__(self, event: FlowEvent) -> None:
        if isinstance(event, PromptRendered):
            self._pending, self._sampled = event.prompt, []
        elif isinstance(event, TokensSampled):
            self._sampled.append(event)
        elif isinstance(event, ActionParsed):
            self._pending = event.turn
        else:
            if isinstance(self._pending, Turn):
                self.turn = self._pending
            self._pending = None
            self._append(event.step, replies_to(event.step, event.following))
        if self._observer is not None:
            self._observer(event)

    def stop(self) -> None:
        """Keep what the user has seen of a reply that is stopped here: text that is cut, and calls without results."""
        if isinstance(self._pending, Prompt) and any(event.text for event in self._sampled):
            self.turn = self._cut_turn(self._pending)
            self._append(_step_of(self.turn), ())
        elif isinstance(self._pending, Turn):
            self.turn = self._pending
            results = tuple(
                {"role": "tool", "name": call.name, "tool_call_id": call.call_id, "content": STOPPED}
                for call in self.turn.action.tool_calls
            )
            self._append(_step_of(self.turn), results)

    def _cut_turn(self, prompt: Prompt) -> Turn:
        ids = tuple(token for event in self._sampled for token in event.token_ids)
        text = "".join(event.text for event in self._sampled)
        completion = Completion(
            token_ids=ids,
            logprobs=tuple(logprob for event in self._sampled for logprob in event.logprobs),
            finish_reason="length",
            policy_versions=(0,) * len(ids),
        )
        action = self._renderer.parse(ids, truncated=True) if ids else Action(text=text, content=text)
        return Turn(prompt=prompt, completion=completion, action=action, context_cut=False, seconds=0.0)

    def _append(self, step: Step, replies: Sequence[Message]) -> None:
        """Add a step and the replies to it; what the environment had put before the action is part of it, unless it
        showed only a part of the conversation."""
        messages = step.observation.messages or ()
        before = messages if messages[: len(self.messages)] == self.messages else self.messages
        self.messages = (*before, step.action.as_message(), *replies)
        self.steps.append(step)


def _step_of(turn: Turn) -> Step:
    """A turn that the user stopped, as a step."""
    return Step(
        observation=turn.prompt.observation,
        prompt_ids=turn.prompt.token_ids,
        action=turn.action,
        action_ids=turn.completion.token_ids,
        rollout_logprobs=turn.completion.logprobs,
        reward=0.0,
        done=False,
        policy_versions=turn.completion.policy_versions,
    )


def _stopped_trajectory(task: Task, steps: Sequence[Step]) -> Trajectory:
    return Trajectory(
        task_id=task.task_id,
        group_id=0,
        member=0,
        data_source=task.data_source,
        steps=tuple(steps),
        outcome_reward=0.0,
        reward_parts={"stopped": 1.0},
        stop_reason=StopReason.MAX_TOKENS,
    )
