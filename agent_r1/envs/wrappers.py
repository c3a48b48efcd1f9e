"""Environment wrappers, as in Gymnasium: limits around any environment.

    env: {name: tool, tools: [search], limits: [{name: time, seconds: 30}, {name: observation, characters: 4000}]}
    env = TimeLimit(ObservationLimit(MyEnv(), characters=4000), seconds=30)

The first entry of `env.limits` is the innermost wrapper.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import Field

from agent_r1.constraints import Count, Seconds
from agent_r1.envs.base import AgentEnv, as_step_result
from agent_r1.errors import ConfigError, EnvTimeoutError
from agent_r1.event_loop import timeout
from agent_r1.registry import Registry, bind_part, check_arguments
from agent_r1.tools import ToolRunner, cut_middle
from agent_r1.types import Action, Message, Observation, StepResult, Task

T = TypeVar("T")


class EnvWrapper(AgentEnv):
    """Base class: an environment around another one. It passes everything through unchanged."""

    def __init__(self, env: AgentEnv) -> None:
        self.env = env

    async def reset(self, task: Task) -> Observation:
        """Reset the inner environment."""
        return await self.env.reset(task)

    async def extend(self, task: Task) -> Observation:
        """Extend the inner environment."""
        return await self.env.extend(task)

    async def step(self, action: Action) -> StepResult:
        """Step the inner environment."""
        return as_step_result(await self.env.step(action))

    def preview(self, task: Task) -> Observation:
        """Preview the inner environment."""
        return self.env.preview(task)

    def gold_actions(self, task: Task) -> Sequence[str | Action] | None:
        """The plan of the inner environment."""
        return self.env.gold_actions(task)

    def set_tool_runner(self, runner: ToolRunner) -> None:
        """Pass the runner to the inner environment."""
        self.env.set_tool_runner(runner)

    async def close(self) -> None:
        """Close the inner environment."""
        await self.env.close()

    @property
    def inner_name(self) -> str:
        """The class name of the innermost environment, for messages."""
        return self.env.inner_name if isinstance(self.env, EnvWrapper) else type(self.env).__name__


env_wrappers: Registry[type[EnvWrapper]] = Registry(
    "environment wrapper",
    accepts=lambda entry: isinstance(entry, type) and issubclass(entry, EnvWrapper),
    expected="a subclass of EnvWrapper",
)


def bind_wrapper(entry: Any) -> Callable[[AgentEnv], AgentEnv]:
    """The wrapper that an entry of `env.limits` names: `{name: ..., <argument>: ...}`, or only its name."""
    part = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(part, Mapping):
        raise ConfigError(f"env.limits is a list of entries like {{name: time, seconds: 30}}; found {entry!r}")
    return bind_part(env_wrappers, "env.limits", part)


def check_wrappers(entries: Any) -> Sequence[Any]:
    """The entries of `env.limits`, checked to be a list; null is an empty one."""
    if entries is not None and not isinstance(entries, list | tuple):
        raise ConfigError(f"env.limits is a list of entries like {{name: time, seconds: 30}}; found {entries!r:.80}")
    return entries or ()


def wrap_env(env: AgentEnv, entries: Iterable[Any]) -> AgentEnv:
    """The environment inside the wrappers that `env.limits` lists.

    `wrap_env(env, [{"name": "steps", "steps": 4}])` is `StepLimit(env, steps=4)`.
    """
    for entry in check_wrappers(entries):
        env = bind_wrapper(entry)(env)
    return env


@env_wrappers.register("time")
class TimeLimit(EnvWrapper):
    """Cancels a `reset` or `step` that takes more than `seconds`; the rollout is retried.

    Only code that awaits can be cancelled. Serve an environment that blocks (`agent-r1 env serve`), so that only its
    server hangs.
    """

    def __init__(self, env: AgentEnv, seconds: Seconds = 60.0) -> None:
        super().__init__(env)
        _check(TimeLimit, "time", seconds=seconds)
        self._seconds = seconds

    async def reset(self, task: Task) -> Observation:
        """Reset; raises `EnvTimeoutError` after `seconds`."""
        return await self._in_time("reset", super().reset(task))

    async def extend(self, task: Task) -> Observation:
        """Extend; raises `EnvTimeoutError` after `seconds`."""
        return await self._in_time("extend", super().extend(task))

    async def step(self, action: Action) -> StepResult:
        """Step; raises `EnvTimeoutError` after `seconds`."""
        return await self._in_time("step", super().step(action))

    async def _in_time(self, what: str, call: Awaitable[T]) -> T:
        try:
            async with timeout(self._seconds) as limit:
                return await call
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise EnvTimeoutError(
                f"{what} of {self.inner_name} took more than {self._seconds:g} s; it was cancelled. If it needs "
                "longer, raise env.limits time.seconds"
            ) from error


@env_wrappers.register("steps")
class StepLimit(EnvWrapper):
    """Truncates the episode after `steps` steps: a critic still values the state after the last one.

    With `ends` the limit is part of the task, and the episode is done there.
    """

    def __init__(self, env: AgentEnv, steps: Count = 8, ends: bool = False) -> None:
        super().__init__(env)
        _check(StepLimit, "steps", steps=steps, ends=ends)
        self._steps = steps
        self._ends = ends
        self._taken = 0

    async def reset(self, task: Task) -> Observation:
        """Reset, and count from 0."""
        self._taken = 0
        return await super().reset(task)

    async def extend(self, task: Task) -> Observation:
        """Extend, and count from 0: the limit is per reply."""
        self._taken = 0
        return await super().extend(task)

    async def step(self, action: Action) -> StepResult:
        """Step; truncate or end the episode at the last allowed step."""
        self._taken += 1
        result = await super().step(action)
        if self._taken < self._steps or result.done:
            return result
        if self._ends:
            return replace(result, observation=None, done=True, truncated=False)
        return replace(result, truncated=True)


@env_wrappers.register("observation")
class ObservationLimit(EnvWrapper):
    """Cuts long messages of the environment in their middle, with a note where it cut.

    With characters=4, "abcdefghij" becomes "ab\\n[... 6 of 10 characters left out ...]\\nij". The messages of
    the task and of the model are never cut, nor are images.
    """

    def __init__(self, env: AgentEnv, characters: Annotated[int, Field(ge=2)] = 8000) -> None:
        super().__init__(env)
        _check(ObservationLimit, "observation", characters=characters)
        self._characters = characters
        self._task: tuple[Message, ...] = ()

    async def reset(self, task: Task) -> Observation:
        """The first observation, cut."""
        self._task = task.prompt
        return self._cut(await super().reset(task))

    async def extend(self, task: Task) -> Observation:
        """The next observation, cut; the user's messages stay whole."""
        user_messages = tuple(message for message in task.prompt if message.get("role") == "user")
        self._task = (*self._task, *user_messages)
        return self._cut(await super().extend(task))

    async def step(self, action: Action) -> StepResult:
        """The next observation, cut."""
        result = await super().step(action)
        return result if result.observation is None else replace(result, observation=self._cut(result.observation))

    def _cut(self, observation: Observation) -> Observation:
        if observation.messages is None:
            text = observation.text
            return observation if text is None else replace(observation, text=cut_middle(text, self._characters))
        # A message is cut the same way in every observation, so the next prompt still extends the one before.
        return replace(observation, messages=tuple(self._short_message(message) for message in observation.messages))

    def _short_message(self, message: Message) -> Message:
        content = message.get("content")
        parts_before = content if isinstance(content, list | tuple) else ()
        texts = [content] if isinstance(content, str) else [_text_of(part) for part in parts_before]
        if max(map(len, texts), default=0) <= self._characters:
            return message
        if message.get("role") in ("assistant", "system") or message in self._task:
            return message
        if isinstance(content, str):
            return {**message, "content": cut_middle(content, self._characters)}
        parts = [
            {**part, "text": cut_middle(text, self._characters)} if len(text) > self._characters else part
            for part, text in zip(parts_before, texts, strict=True)
        ]
        return {**message, "content": parts}


def _text_of(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else None
    return text if isinstance(text, str) else ""


def _check(wrapper: type[EnvWrapper], name: str, **arguments: Any) -> None:
    check_arguments(wrapper, f"env.limits {name}.", arguments, f"environment wrapper '{name}'")
