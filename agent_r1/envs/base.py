"""`AgentEnv`: the base class of environments, and the forms in which `step` may return its result.

    class Guess(AgentEnv):
        async def reset(self, task):
            self.task = task
            return Observation(messages=task.prompt)

        async def step(self, action):
            right = action.text.strip() == self.task.env_kwargs["number"]
            return StepResult(observation=None, reward=float(right), done=True)

One environment object lives for one episode. The observation a step returns is the *whole* next model input.
`step` may also return a tuple, with four entries or with Gymnasium's five (`StepReturn`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from agent_r1.constraints import reward_problem
from agent_r1.errors import ConfigError
from agent_r1.registry import Registry
from agent_r1.tools import ToolRunner
from agent_r1.types import Action, Observation, StepResult, Task

STEP_FORMS = "a StepResult, (observation, reward, done, info) or (observation, reward, terminated, truncated, info)"

StepReturn = (
    StepResult
    | tuple[Observation | None, float, bool, Mapping[str, Any]]
    | tuple[Observation | None, float, bool, bool, Mapping[str, Any]]
)
"""What `AgentEnv.step` may return."""


class AgentEnv(ABC):
    """Base class of environments."""

    registry: ClassVar[Registry[type[AgentEnv]]] = Registry(
        "environment",
        accepts=lambda entry: isinstance(entry, type) and issubclass(entry, AgentEnv),
        expected="a subclass of AgentEnv",
    )

    @abstractmethod
    async def reset(self, task: Task) -> Observation:
        """Begin an episode on `task`. Returns the first model input."""

    @abstractmethod
    async def step(self, action: Action) -> StepReturn:
        """Take the model's action: the step's reward, whether the episode is over, and the next model input."""

    async def extend(self, task: Task) -> Observation:
        """Continue after an episode has ended: `task.prompt` is the conversation so far, with what the user said next.

        For chats, whose every reply is an episode. By default the environment begins again, with the longer prompt.
        """
        return await self.reset(task)

    def preview(self, task: Task) -> Observation:
        """What `reset` will return, without starting an episode; used to check that prompts fit the context."""
        return Observation(messages=task.prompt)

    def gold_actions(self, task: Task) -> Sequence[str | Action] | None:
        """Actions that solve `task`, for `agent-r1 check`, which plays them: their texts, or `Action`s with tool calls.
        None: not known."""
        return None

    def set_tool_runner(self, runner: ToolRunner) -> None:  # noqa: B027 - optional for subclasses
        """Called by `make_env` before `reset`, with the run's `ToolRunner`; for environments that run tools."""

    async def close(self) -> None:  # noqa: B027 - optional for subclasses
        """Release what the episode holds. Called once per episode, also after a failure."""

    @classmethod
    def register(cls, name: str) -> Callable[[type[_EnvT]], type[_EnvT]]:
        """Register an environment class under a name that data rows and configurations can use."""
        return cls.registry.register(name)  # type: ignore[return-value]


_EnvT = TypeVar("_EnvT", bound=AgentEnv)


def as_step_result(returned: Any) -> StepResult:
    """The checked `StepResult` of what an environment's `step` returned.

    >>> as_step_result((None, 1, True, {}))
    StepResult(observation=None, reward=1.0, done=True, truncated=False, info={})
    >>> as_step_result((Observation(text="?"), 0, False, True, {})).truncated
    True
    """
    result = unpack_step(returned)
    observation = result.observation
    if observation is not None and not isinstance(observation, Observation):
        raise ConfigError(
            f"AgentEnv.step returned a {type(observation).__name__} as observation; return "
            "Observation(messages=(*task.prompt, ...)), or None at the end of an episode"
        )
    problem = reward_problem(result.reward)
    if problem is not None:
        raise ValueError(f"the reward that AgentEnv.step returned {problem}")
    if observation is None and not (result.done or result.truncated):
        raise ConfigError("AgentEnv.step returned no observation although the episode is not done")
    return result


def unpack_step(returned: Any) -> StepResult:
    """What `step` returned as a `StepResult`. Checks its form, not its observation or the size of its reward."""
    if isinstance(returned, StepResult):
        return _plain_result(returned)
    if isinstance(returned, tuple) and len(returned) == 4:
        observation, reward, done, info = returned
        flags = {"done": done}
    elif isinstance(returned, tuple) and len(returned) == 5:
        observation, reward, done, truncated, info = returned
        flags = {"terminated": done, "truncated": truncated}
    else:
        form = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
        raise ConfigError(f"AgentEnv.step must return {STEP_FORMS}; got {form}")
    for name, value in flags.items():
        if not _is_flag(value):
            raise _wrong_entry(name, "True or False", value, len(returned))
    if not isinstance(info, Mapping):
        raise _wrong_entry("info", "a mapping", info, len(returned))
    try:
        number = float(reward)
    except (TypeError, ValueError, OverflowError):
        raise _wrong_entry("reward", "a number", reward, len(returned)) from None
    return StepResult(
        observation=observation,
        reward=number,
        done=bool(done),
        truncated=bool(flags.get("truncated", False)),
        info=info,
    )


def _plain_result(result: StepResult) -> StepResult:
    """The result with its reward as a float and its flags as booleans: numpy's are recorded as text."""
    if type(result.reward) is float and type(result.done) is type(result.truncated) is bool:
        return result
    for name in ("done", "truncated"):
        if not _is_flag(getattr(result, name)):
            raise _wrong_field(name, "True or False", getattr(result, name))
    try:
        reward = float(result.reward)
    except (TypeError, ValueError, OverflowError):
        raise _wrong_field("reward", "a number", result.reward) from None
    return replace(result, reward=reward, done=bool(result.done), truncated=bool(result.truncated))


def _is_flag(value: Any) -> bool:
    """True, False, 0 or 1, also as numpy writes them."""
    try:
        return bool(value in (0, 1))
    except (TypeError, ValueError):  # an array has no single truth
        return False


def _wrong_field(name: str, expected: str, value: Any) -> ConfigError:
    return ConfigError(
        f"the {name} of the StepResult that AgentEnv.step returned must be {expected}, got {type(value).__name__}"
    )


def _wrong_entry(name: str, expected: str, value: Any, length: int) -> ConfigError:
    return ConfigError(
        f"the {name} in the tuple of {length} that AgentEnv.step returned must be {expected}, got "
        f"{type(value).__name__}; return {STEP_FORMS}"
    )
