"""The world of my_task: a register that is read one entry at a time."""

from __future__ import annotations

from agent_r1.envs import AgentEnv
from agent_r1.types import Action, Message, Observation, StepResult, Task


@AgentEnv.register("my_task")
class RegisterEnv(AgentEnv):
    """`open WORD` shows what the register says about it. Anything else is the answer and ends the episode."""

    def __init__(self) -> None:
        self._register: dict[str, str] = {}
        self._messages: tuple[Message, ...] = ()

    async def reset(self, task: Task) -> Observation:
        """Begin with the row's messages."""
        self._register = dict(task.env_kwargs["register"])
        self._messages = task.prompt
        return Observation(messages=self._messages)

    async def step(self, action: Action) -> StepResult:
        """Show an entry, or end. A `reward` in the result would stay on this step; the outcome is `reward_fn.py`'s."""
        command, _, word = action.text.strip().partition(" ")
        if command != "open":
            return StepResult(observation=None, done=True)
        entry = {"role": "user", "content": self._register.get(word, f"no entry for {word}")}
        self._messages = (*self._messages, action.as_message(), entry)
        return StepResult(observation=Observation(messages=self._messages))
