"""What an observer of an episode sees, in order, while the episode runs: for chat and for serving.

    PromptRendered -> TokensSampled * n -> ActionParsed -> StepRecorded -> PromptRendered -> ...

An observer is a function of one event, called on the event loop; it must not block. `FlowContext.observer` is None in
training, where no event is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_r1.chat import Prompt
from agent_r1.types import Message, Observation, Step, TokenIds

if TYPE_CHECKING:
    from agent_r1.flows.base import Turn


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptRendered:
    """The model is about to be called."""

    prompt: Prompt
    """What it will see."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensSampled:
    """The model wrote something."""

    text: str
    """What the new tokens add to the text; "" while a character is incomplete, and for the end of the turn."""
    token_ids: TokenIds
    """The new ids; empty where a server does not tell them."""
    logprobs: tuple[float, ...]
    """One per id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionParsed:
    """The model's turn is complete. Its tools have not run yet."""

    turn: Turn
    """The model call, with calls, repairs and the parse error in `turn.action`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecorded:
    """The environment took the action."""

    step: Step
    """The step, with its reward."""
    following: Observation | None
    """What the model sees next; None at the end of an episode, and in flows that do not say."""

    @property
    def replies(self) -> tuple[Message, ...]:
        """What the environment replied: the messages after the action in `following`, such as results of tools."""
        return replies_to(self.step, self.following)


FlowEvent = PromptRendered | TokensSampled | ActionParsed | StepRecorded
FlowObserver = Callable[[FlowEvent], None]


def replies_to(step: Step, following: Observation | None) -> tuple[Message, ...]:
    """The messages after the step's action in the observation that follows it; none when the history was rewritten."""
    messages = (following.messages if following is not None else None) or ()
    action = step.action.as_message()
    for index in range(len(messages) - 1, -1, -1):
        if messages[index] == action:
            return messages[index + 1 :]
    return ()
