"""`AgentEnv`: the world an agent acts in.

    class Guess(AgentEnv):
        async def reset(self, task):
            self.task = task
            return Observation(messages=task.prompt)

        async def step(self, action):
            right = action.text.strip() == self.task.env_kwargs["number"]
            return StepResult(observation=None, reward=float(right), done=True)

One environment object lives for one episode. The observation a step returns is the *whole* next model input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from agent_r1.constraints import reward_problem
from agent_r1.errors import ConfigError
from agent_r1.registry import Registry
from agent_r1.types import Action, Observation, StepResult, Task


class AgentEnv(ABC):
    """Base class of environments."""

    registry: ClassVar[Registry[type[AgentEnv]]] = Registry(
        "environment",
        accepts=lambda entry: isinstance(entry, type) and issubclass(entry, AgentEnv),
        expected="a subclass of AgentEnv",
    )

    @abstractmethod
    async def reset(self, task: Task) -> Observation:
        """Begin an episode on `task`: the first model input."""

    @abstractmethod
    async def step(self, action: Action) -> StepResult | tuple[Observation | None, float, bool, Mapping[str, Any]]:
        """Take the model's action: reward of the step, whether the episode is over, and the next model input."""

    def preview(self, task: Task) -> Observation:
        """What `reset` will show first, without starting anything; used to check that prompts fit the context."""
        return Observation(messages=task.prompt)

    async def close(self) -> None:  # noqa: B027 - optional for subclasses
        """Give back whatever the episode held. Called once, also after a failure."""

    @classmethod
    def register(cls, name: str) -> Callable[[type[_EnvT]], type[_EnvT]]:
        """Give an environment class a name that data rows and configurations can use."""
        return cls.registry.register(name)  # type: ignore[return-value]


_EnvT = TypeVar("_EnvT", bound=AgentEnv)


def as_step_result(returned: Any) -> StepResult:
    """A `StepResult` from what an environment's `step` returned.

    >>> as_step_result((None, 1, True, {}))
    StepResult(observation=None, reward=1.0, done=True, truncated=False, info={})
    """
    if isinstance(returned, tuple) and len(returned) == 4:
        observation, reward, done, info = returned
        returned = StepResult(observation=observation, reward=float(reward), done=bool(done), info=info)
    if not isinstance(returned, StepResult):
        raise ConfigError(
            "AgentEnv.step must return a StepResult or (observation, reward, done, info); "
            f"got {type(returned).__name__}"
        )
    problem = reward_problem(returned.reward)
    if problem is not None:
        raise ValueError(f"the reward that AgentEnv.step returned {problem}")
    if returned.observation is None and not (returned.done or returned.truncated):
        raise ConfigError("AgentEnv.step returned no observation although the episode is not done")
    return returned
