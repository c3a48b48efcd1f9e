"""Turns that were sampled, so that the request that continues a conversation keeps their exact ids.

The API has no state: a client sends the whole conversation again, as text. Rendered from scratch, a turn can get other
ids than those the model sampled. Training continues from the sampled ids (`ChatRenderer.next_prompt`), so the server
does as well, for the conversations it remembers. A conversation it has forgotten, or that the client changed, is
rendered from scratch.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

from agent_r1.chat import ChatRenderer, Prompt
from agent_r1.codec import write_json
from agent_r1.images import picture_key
from agent_r1.types import Action, Message, Observation, ToolSchema


class TurnMemory:
    """The newest turns, found by the conversation up to and including them.

    memory = TurnMemory(renderer)
    prompt = memory.prompt(observation)   # from scratch
    memory.remember(prompt, action)
    memory.prompt(next_observation)       # previous prompt ids + sampled ids + rendered delta
    """

    def __init__(self, renderer: ChatRenderer, *, max_turns: int = 1024, max_tokens: int = 2_000_000) -> None:
        """`max_tokens` bounds the prompts of all turns together."""
        self._renderer = renderer
        self._max_turns = max_turns
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._turns: OrderedDict[bytes, tuple[Prompt, Action]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._turns)

    def remember(self, prompt: Prompt, action: Action) -> None:
        """Keep a turn; the oldest one is forgotten when there are too many."""
        observation = prompt.observation
        if observation.messages is None:
            return
        key = _key((*observation.messages, action.as_message()), observation.tools)
        self._forget(key)
        self._turns[key] = prompt, action
        self._num_tokens += len(prompt.token_ids)
        while len(self._turns) > self._max_turns or (self._num_tokens > self._max_tokens and len(self._turns) > 1):
            self._forget(next(iter(self._turns)))

    def _forget(self, key: bytes) -> None:
        turn = self._turns.pop(key, None)
        self._num_tokens -= len(turn[0].token_ids) if turn is not None else 0

    def prompt(self, observation: Observation) -> Prompt:
        """The prompt of a conversation, bridged over its latest remembered turn. Raises what `render` raises."""
        messages = observation.messages or ()
        last = next((i for i in range(len(messages) - 2, -1, -1) if messages[i].get("role") == "assistant"), None)
        if last is not None:
            key = _key(messages[: last + 1], observation.tools)
            if (turn := self._turns.get(key)) is not None:
                self._turns.move_to_end(key)
                return self._renderer.next_prompt(*turn, observation)
        return self._renderer.render(observation)


def _key(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> bytes:
    """The key of the whole conversation: of its messages and tools, in order."""
    text = write_json([list(messages), list(tools)], default=picture_key)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
