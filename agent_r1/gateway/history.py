"""Which recorded call a request continues.

An agent sends its whole conversation with every request. When the conversation begins with what an earlier call was
sent and what the model answered there, the request continues that call: its prompt is bridged over the sampled ids.
Anything else (a history that the agent rewrote, the first request of a sub-agent, another set of tools) begins a
conversation of its own.

Messages are compared as `agent_r1.openai_api` reads them, so it does not matter how a client writes a message: content
as null, "" or parts of text, arguments of a call with other spaces, ids of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent_r1.chat import Prompt
from agent_r1.flows import Turn
from agent_r1.images import picture_key
from agent_r1.types import Message, Observation, TokenIds, ToolSchema


@dataclass(slots=True, eq=False)
class RecordedCall:
    """One model call that became a step."""

    index: int
    """The index of its step."""
    turn: Turn
    """Its prompt, its sampled ids and the action."""
    num_continuations: int = 0
    """Later calls that continue it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """A request's conversation, and the call it continues."""

    observation: Observation
    """What the model is asked."""
    parent: RecordedCall | None
    """The call whose conversation it continues; None: it begins one."""
    key: bytes
    """Identifies the conversation."""


@dataclass(slots=True)
class History:
    """The calls of one rollout, found by the conversations they ended.

    conversation = history.find(messages, tools)
    history.add(conversation, RecordedCall(0, turn))
    history.find([*messages, answer, {"role": "user", "content": "And now?"}], tools).parent  # that call
    """

    _calls: dict[bytes, list[RecordedCall]] = field(default_factory=dict)
    _texts: list[tuple[str, RecordedCall]] = field(default_factory=list)

    def find(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Conversation:
        """The conversation of a request. It continues the last call that it contains."""
        key, parent = _digest(b"", list(tools)), None
        for number, message in enumerate(messages, start=1):
            key = _digest(key, message)
            if message["role"] == "assistant" and number < len(messages):
                parent = self._call_at(key) or parent
        observation = Observation(messages=tuple(messages), tools=tuple(tools))
        return Conversation(observation=observation, parent=parent, key=key)

    def add(self, conversation: Conversation, call: RecordedCall) -> None:
        """Remember a call, so that requests can continue it."""
        if conversation.parent is not None:
            conversation.parent.num_continuations += 1
        key = _digest(conversation.key, call.turn.action.as_message())
        self._calls.setdefault(key, []).append(call)

    def find_text(self, text: str) -> tuple[RecordedCall | None, str]:
        """For a raw prompt: the call whose prompt and completion it begins with, and the text after these."""
        matches = [
            (len(whole), call) for whole, call in self._texts if text.startswith(whole) and len(text) > len(whole)
        ]
        if not matches:
            return None, text
        length, call = max(matches, key=lambda entry: (entry[0], -entry[1].num_continuations, -entry[1].index))
        return call, text[length:]

    def add_text(self, prompt: str, parent: RecordedCall | None, call: RecordedCall) -> None:
        """Remember a call with a raw prompt."""
        if parent is not None:
            parent.num_continuations += 1
        self._texts.append((prompt + call.turn.action.text, call))

    def _call_at(self, key: bytes) -> RecordedCall | None:
        """The call that ended a conversation. Of several that said the same, the one that is continued least."""
        return min(self._calls.get(key, ()), key=lambda call: (call.num_continuations, call.index), default=None)


def text_prompt(
    text: str, encode: Callable[[str], TokenIds], stop_ids: TokenIds, call: RecordedCall | None, rest: str
) -> Prompt:
    """The prompt of a raw text: over the sampled ids of the call it continues, without an end of turn, since the text
    continues after them; then `rest`."""
    observation = Observation(text=text)
    if call is None:
        return Prompt(observation=observation, token_ids=encode(text))
    sampled = call.turn.completion.token_ids
    without_stop = sampled[:-1] if sampled[-1] in stop_ids else sampled
    return Prompt(
        observation=observation, token_ids=call.turn.prompt.token_ids + without_stop + encode(rest), bridged=True
    )


def digest_of(value: object) -> bytes:
    """Identifies messages, or anything else that JSON can hold; images by their content."""
    return _digest(b"", value)


def _digest(before: bytes, value: object) -> bytes:
    content = json.dumps(value, sort_keys=True, default=picture_key).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(before + content, digest_size=16).digest()
