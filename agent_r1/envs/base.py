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

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from agent_r1.constraints import as_number, reward_number, reward_problem
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
    StepResult(observation=None, reward=1.0, done=True, truncated=False, info={}, answer=None)
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
    check_metrics(result.info, "AgentEnv.step returned")
    return result


def as_observation(returned: Any) -> Observation:
    """What an environment's `reset` returned, checked to be an observation."""
    if isinstance(returned, Observation):
        return returned
    form = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
    raise ConfigError(
        f"AgentEnv.reset must return an Observation, and nothing beside it; got {form}. Return "
        "Observation(messages=(*task.prompt, ...))"
    )


async def awaited(call: Any, where: str) -> Any:
    """The result of an environment's method, which must be `async def`."""
    if not inspect.isawaitable(call):
        raise ConfigError(f"{where} is not async, but returned a {type(call).__name__}; write `async def`")
    return await call


def checked_reward(reward: Any, where: str) -> float:
    """The reward of a step as a float of Python; a `ConfigError` says what is wrong with it."""
    try:
        return reward_number(reward)
    except ValueError as error:
        raise ConfigError(f"the reward that {where} {error}") from None


def check_metrics(info: Mapping[str, Any], where: str) -> None:
    """Raise `ConfigError` when the entry `metrics` of a step's info is no mapping of names to numbers."""
    metrics = info.get("metrics")
    if metrics is None:
        return
    if not isinstance(metrics, Mapping):
        raise ConfigError(f"{where} info['metrics']={metrics!r:.80}; it must be a mapping of names to numbers")
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise ConfigError(f"{where} info['metrics'] with the name {name!r:.80}; metrics have text as names")
        if isinstance(value, int | float):
            continue
        if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
            raise ConfigError(
                f"{where} info['metrics'][{name!r}]={value!r:.80} ({type(value).__name__}); metrics are numbers"
            )


def unpack_step(returned: Any) -> StepResult:
    """What `step` returned as a `StepResult`. Checks its form, not its observation or the size of its reward."""
    answer: Any = None
    if isinstance(returned, StepResult):
        if _is_plain(returned):
            return returned
        where, info, answer = "StepResult", returned.info, returned.answer
        observation, reward = returned.observation, returned.reward
        flags = {"done": returned.done, "truncated": returned.truncated}
    elif isinstance(returned, tuple) and len(returned) == 4:
        observation, reward, done, info = returned
        where, flags = "tuple of 4", {"done": done}
    elif isinstance(returned, tuple) and len(returned) == 5:
        observation, reward, done, truncated, info = returned
        where, flags = "tuple of 5", {"terminated": done, "truncated": truncated}
    else:
        form = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
        raise ConfigError(f"AgentEnv.step must return {STEP_FORMS}; got {form}")
    for name, value in flags.items():
        if not _is_flag(value):
            raise _wrong_entry(name, "True or False", value, where)
    if not isinstance(info, Mapping):
        raise _wrong_entry("info", "a mapping", info, where)
    if not isinstance(answer, str | None):
        raise _wrong_entry("answer", "text or None", answer, where)
    number = as_number(reward)
    if number is None:
        raise _wrong_entry("reward", "a number", reward, where)
    return StepResult(
        observation=observation,
        reward=number,
        done=bool(flags.get("done", flags.get("terminated"))),
        truncated=bool(flags.get("truncated", False)),
        info=info,
        answer=answer,
    )


def _is_plain(result: StepResult) -> bool:
    """Whether all entries have exactly the types of Python that records are written with; numpy's and torch's have
    not."""
    return (
        type(result.reward) is float
        and type(result.done) is bool
        and type(result.truncated) is bool
        and isinstance(result.info, Mapping)
        and (result.answer is None or type(result.answer) is str)
    )


def _is_flag(value: Any) -> bool:
    """True, False, 0 or 1, also as numpy writes them."""
    try:
        return bool(value in (0, 1))
    except (TypeError, ValueError):  # an array has no single truth
        return False


def _wrong_entry(name: str, expected: str, value: Any, where: str) -> ConfigError:
    return ConfigError(
        f"the {name} in the {where} that AgentEnv.step returned must be {expected}, got "
        f"{type(value).__name__}; return {STEP_FORMS}"
    )
