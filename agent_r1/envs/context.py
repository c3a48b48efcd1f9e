"""Context policies: how much of its history the model sees.

An environment keeps the whole history of an episode; a policy selects what the next observation shows.

    env: {name: tool, tools: [search], context: {name: window, turns: 4}}

`append` shows all of it. `window` shows the task and the last turns. `drop_thinking` leaves out the thinking of earlier
turns. `summarise` asks the model to summarise a long history, as a step of the episode that is sampled, recorded and
trained like any other.

A step is trained on what the policy showed: a prompt with a rewritten history is rendered again from its messages, and
the ids sampled after it stay as they were sampled.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_r1.constraints import Count, CountOrZero
from agent_r1.errors import ConfigError
from agent_r1.images import Picture
from agent_r1.registry import Registry, bind_part, check_arguments
from agent_r1.types import Action, Message, media_in

Messages = tuple[Message, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """The history of an episode so far."""

    task: Messages
    """The messages it began with."""
    turns: tuple[Messages, ...] = ()
    """One entry per action: the assistant's message and the replies to it."""
    summary: Messages = ()
    """Messages that replace earlier turns."""

    @property
    def messages(self) -> Messages:
        """All messages, in order."""
        return (*self.task, *self.summary, *(message for turn in self.turns for message in turn))


class ContextPolicy(ABC):
    """Turns a history into the messages of the next observation."""

    @abstractmethod
    def show(self, history: History) -> Messages:
        """The messages that the model sees."""

    def question(self, history: History) -> Message | None:
        """A question to the model about its history before the episode continues; None: no question."""
        return None

    def rewrite(self, history: History, answer: Action) -> History:
        """The history after the model answered `question`."""
        return history


context_policies: Registry[type[ContextPolicy]] = Registry(
    "context policy",
    accepts=lambda entry: isinstance(entry, type) and issubclass(entry, ContextPolicy),
    expected="a subclass of ContextPolicy",
)

ContextChoice = str | Mapping[str, Any] | ContextPolicy
"""A policy, its name, or `{name: ..., <argument>: ...}`."""


def make_policy(choice: ContextChoice) -> ContextPolicy:
    """The policy a configuration names.

    >>> make_policy({"name": "window", "turns": 4}).turns
    4
    """
    if isinstance(choice, ContextPolicy):
        return choice
    part = {"name": choice} if isinstance(choice, str) else choice
    if not isinstance(part, Mapping):
        raise ConfigError(f"env.context is a name or an entry like {{name: window, turns: 4}}; found {choice!r}")
    policy: ContextPolicy = bind_part(context_policies, "env.context", part)()
    return policy


@context_policies.register("append")
class Append(ContextPolicy):
    """The whole history."""

    def show(self, history: History) -> Messages:
        """All messages."""
        return history.messages


@context_policies.register("window")
class Window(ContextPolicy):
    """The task and the last `turns` turns. A tool's answer stays with the call it answers.

    With turns=1, [task, call 1, answer 1, call 2, answer 2] is shown as [task, call 2, answer 2].
    """

    def __init__(self, turns: Count = 4) -> None:
        _check(Window, turns=turns)
        self.turns = turns

    def show(self, history: History) -> Messages:
        """The task and the last turns."""
        return replace(history, turns=history.turns[-self.turns :]).messages


@context_policies.register("drop_thinking")
class DropThinking(ContextPolicy):
    """The whole history without the thinking of earlier turns; the last `keep` turns keep theirs."""

    def __init__(self, keep: CountOrZero = 0) -> None:
        _check(DropThinking, keep=keep)
        self.keep = keep

    def show(self, history: History) -> Messages:
        """All messages, earlier turns without their thinking."""
        first_kept = len(history.turns) - self.keep
        turns = tuple(
            tuple(_strip_message(message) for message in turn) if index < first_kept else turn
            for index, turn in enumerate(history.turns)
        )
        return replace(history, turns=turns).messages


@context_policies.register("summarise")
class Summarise(ContextPolicy):
    """The whole history until it is longer than `characters`; then the model is asked to summarise it.

    The summary is a step of its own, and the episode continues with

        task, assistant: <the summary>, user: "That is your summary of the work so far. Go on from it."
    """

    def __init__(
        self,
        characters: Count = 8000,
        instruction: str = "The conversation is getting long. Summarise what you have done and found so far and what "
        "is left to do. Only your summary will be kept. Do not call a tool.",
        afterwards: str = "That is your summary of the work so far. Go on from it.",
    ) -> None:
        _check(Summarise, characters=characters)
        self.characters = characters
        self.instruction = instruction
        self.afterwards = afterwards

    def show(self, history: History) -> Messages:
        """Everything since the last summary."""
        return history.messages

    def question(self, history: History) -> Message | None:
        """The request for a summary, when the history is too long and has turns since the last one."""
        if not history.turns or num_characters(history.messages) <= self.characters:
            return None
        return {"role": "user", "content": self.instruction}

    def rewrite(self, history: History, answer: Action) -> History:
        """The task and the summary."""
        summary = strip_thinking(answer.text)
        return History(
            task=history.task,
            summary=({"role": "assistant", "content": summary}, {"role": "user", "content": self.afterwards}),
        )


class Conversation:
    """The history of one episode, as a policy shows it to the model; environments use this to apply a policy.

    conversation = Conversation(policy, task.prompt)
    if conversation.takes(action):            # it answers the policy, not the environment
        return StepResult(observation=Observation(messages=conversation.messages), ...)
    conversation.add(action.as_message(), *answers)
    """

    def __init__(self, policy: ContextPolicy, task: Sequence[Message], turns: Sequence[Messages] = ()) -> None:
        self._policy = policy
        self._history = History(task=tuple(task), turns=tuple(turns))
        self._question: Message | None = policy.question(self._history) if turns else None

    @property
    def messages(self) -> Messages:
        """What the next observation shows."""
        messages = self._policy.show(self._history)
        return messages if self._question is None else (*messages, self._question)

    def takes(self, action: Action) -> bool:
        """Whether the action answers the policy's question; if so, the answer is added to the history."""
        if self._question is None:
            return False
        self._history = self._policy.rewrite(self._history, action)
        self._question = None
        return True

    def add(self, *turn: Message) -> None:
        """Add a turn: the model's message and the replies to it."""
        self._history = replace(self._history, turns=(*self._history.turns, turn))
        self._question = self._policy.question(self._history)


def turns_of(messages: Sequence[Message]) -> tuple[Messages, ...]:
    """Messages as turns: each begins with a message of the model and has the replies to it.

    >>> [[message["role"] for message in turn] for turn in turns_of([{"role": "assistant"}, {"role": "user"}] * 2)]
    [['assistant', 'user'], ['assistant', 'user']]
    """
    turns: list[list[Message]] = []
    for message in messages:
        if not turns or message.get("role") == "assistant":
            turns.append([])
        turns[-1].append(message)
    return tuple(map(tuple, turns))


def num_characters(messages: Sequence[Message]) -> int:
    """The length of messages as text; tool calls count as their JSON, images as `image_characters` says.

    >>> num_characters([{"role": "user", "content": "four"}])
    4
    """
    return sum(_length(message.get("content")) + _length(message.get("tool_calls")) for message in messages)


def _length(part: Any) -> int:
    """The length of a text, of a list of content parts, or of tool calls."""
    if not part or isinstance(part, str):
        return len(part or "")
    return sum(map(_part_length, part))


def _part_length(part: Any) -> int:
    if isinstance(part, Mapping) and media_in([{"content": [part]}]):
        return image_characters(part.get("image"))
    return len(json.dumps(part, default=str))


def image_characters(image: Any) -> int:
    """How many characters an image counts as: what a model reads of it is about one token of four characters for each
    28 x 28 pixels, and it counts as 256 characters at least."""
    pixels = image.width * image.height if isinstance(image, Picture) else 0
    return max(256, 4 * pixels // (28 * 28))


def _check(policy: type[ContextPolicy], **arguments: Any) -> None:
    check_arguments(policy, "env.context.", arguments, "context policy")


_THINKING = re.compile(r"<think>.*?</think>\s*", re.DOTALL)


def strip_thinking(text: str) -> str:
    """The text without `<think>` blocks; the opening tag may be in the prompt, the closing one may be cut off.

    >>> strip_thinking("<think>6 * 7</think>42"), strip_thinking("6 * 7</think> 42"), strip_thinking("<think>6 *")
    ('42', '42', '')
    """
    text = _THINKING.sub("", text)
    text = text.rpartition("</think>")[2].lstrip() if "</think>" in text else text
    return text.partition("<think>")[0]


def _strip_message(message: Message) -> Message:
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, str):
        return message
    return {**message, "content": strip_thinking(content)}
