"""The customer that a model plays, behind any OpenAI-compatible server.

    agent-r1 eval recipes/tau_retail env.user=openai env.user_server.url=http://127.0.0.1:8000/v1

All episodes of an event loop share one client per server, which is closed when the last of them ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from agent_r1.engines.openai import OpenAIEngine, ServerSettings
from agent_r1.errors import ConfigError
from agent_r1.types import Observation, SamplingParams
from agent_r1.web import key_from_env

from .customers import Customer, said_text

STOP = "###STOP###"
GREETING = "Hello, how can I help you?"
SETTINGS = ("url", "model", "key_env", "temperature", "max_tokens", "timeout", "retries", "concurrency")

SYSTEM = """You play a customer who writes to the service of an online shop. This is who you are and what you want:

{instruction}

- Write only what the customer says next: one or two sentences.
- Do not tell everything at once. Say what you want first; say who you are, and details, when you are asked for them.
- Say nothing that the text above does not say. When you are asked for something else, you do not remember it.
- When the agent lists a change that you want and asks whether to make it, say yes.
- When all that you want is done, or cannot be done, or a human agent takes over, write {stop} and nothing else."""


@dataclass(kw_only=True)
class _Shared:
    engine: OpenAIEngine
    num_users: int = 0


_engines: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]] = WeakKeyDictionary()


class ModelCustomer(Customer):
    """A customer whose words a server writes.

    Args:
        instruction: Who the customer is and what it wants.
        settings: `url`; also `model` (else the first that the server lists), `key_env` (the environment variable with
            the key), `temperature`, `max_tokens`, `timeout`, `retries` and `concurrency`.
    """

    def __init__(self, instruction: str, settings: Mapping[str, Any]) -> None:
        given = {name: value for name, value in settings.items() if value is not None}
        unknown = sorted(set(given) - set(SETTINGS))
        if unknown:
            raise ConfigError(f"env.user_server has no {', '.join(unknown)}. Known: {', '.join(SETTINGS)}")
        if not isinstance(given.get("url"), str):
            raise ConfigError("env.user=openai needs a server: env.user_server.url=http://127.0.0.1:8000/v1")
        self._settings = given
        self._sampling = SamplingParams(
            max_tokens=int(given.get("max_tokens", 200)), temperature=float(given.get("temperature", 0.0))
        )
        self._messages: list[dict[str, str]] = [
            {"role": "system", "content": SYSTEM.format(instruction=instruction, stop=STOP)}
        ]
        self._key = json.dumps(given, sort_keys=True)
        self._engine: OpenAIEngine | None = None

    async def begin(self) -> str:
        """What the model says to the greeting."""
        return await self.reply(GREETING) or first_words(self._messages)

    async def reply(self, text: str) -> str | None:
        """What the model says; None once it has stopped."""
        self._messages.append({"role": "user", "content": text or "(no text)"})
        _, action = await self._client().chat(Observation(messages=tuple(self._messages)), self._sampling)
        reply = said_text(action)
        self._messages.append({"role": "assistant", "content": reply})
        return None if STOP in reply or not reply else reply

    async def close(self) -> None:
        """Leave the client; the last one closes it."""
        if self._engine is None:
            return
        self._engine = None
        shared = _engines[asyncio.get_running_loop()]
        shared[self._key].num_users -= 1
        if shared[self._key].num_users == 0:
            await shared.pop(self._key).engine.close()

    def _client(self) -> OpenAIEngine:
        if self._engine is None:
            shared = _engines.setdefault(asyncio.get_running_loop(), {})
            if self._key not in shared:
                shared[self._key] = _Shared(engine=_make_engine(self._settings))
            shared[self._key].num_users += 1
            self._engine = shared[self._key].engine
        return self._engine


def first_words(messages: list[dict[str, str]]) -> str:
    """What is shown of a customer who had nothing to say."""
    return messages[-1]["content"].replace(STOP, "").strip() or "Hello."


def _make_engine(given: Mapping[str, Any]) -> OpenAIEngine:
    key = key_from_env(given["key_env"], "env.user_server.key_env") if "key_env" in given else None
    settings = ServerSettings(
        key=key,
        timeout=float(given.get("timeout", 300.0)),
        retries=int(given.get("retries", 3)),
        concurrency=int(given.get("concurrency", 64)),
    )
    return OpenAIEngine([given["url"]], model=given.get("model"), settings=settings)
