"""`Task`: one dataset row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agent_r1.types.messages import Message
from agent_r1.types.own_values import own_values


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One dataset row."""

    task_id: str
    """Unique in its data file; identifies the group of rollouts of this row."""
    prompt: tuple[Message, ...]
    """The chat messages the episode begins with."""
    agent_name: str = "env_loop"
    """The flow that runs it: a registered name or `module:attribute`."""
    reward_model: Mapping[str, Any] = field(default_factory=dict)
    """`{"style": ..., "ground_truth": ...}`: what the reward function needs. Tools never see it."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the environment and its tools need for this row."""
    data_source: str = "default"
    """Evaluation figures are given per data source."""
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    """Anything else from the row; never read by the library."""
    difficulty: int | None = None
    """The level of a curriculum, from 1 (`data.curriculum`); None: the row has none."""
    control_tokens: bool = False
    """True: control tokens in `prompt` are encoded as control tokens. False: their characters are ordinary text."""

    @property
    def trusted(self) -> tuple[Message, ...]:
        """The messages whose control tokens are encoded as such: the row's prompt, when the row says so."""
        return self.prompt if self.control_tokens else ()

    @property
    def ground_truth(self) -> Any:
        """`reward_model["ground_truth"]`, or None when the row has none."""
        return self.reward_model.get("ground_truth")

    def with_own_values(self) -> Task:
        """The task with lists and objects of its own: code that changes them changes no other rollout's task."""
        return replace(
            self,
            prompt=own_values(self.prompt),
            reward_model=own_values(self.reward_model),
            env_kwargs=own_values(self.env_kwargs),
            extra_info=own_values(self.extra_info),
        )
