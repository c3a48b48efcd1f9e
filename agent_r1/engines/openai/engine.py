"""`OpenAIEngine`: a model behind `/chat/completions`. The server renders the chat template; the tools run here.

Such servers do not tell token ids, so there are none in the steps: the model can be evaluated and talked to, not
trained.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from agent_r1.engines.base import MessageEngine
from agent_r1.engines.openai.servers import Servers, ServerSettings
from agent_r1.engines.openai.turns import Reply, request_fields
from agent_r1.errors import EngineError, EngineRequestError
from agent_r1.types import Action, Completion, Observation, SamplingParams

_UNBOUNDED = 2**31 - 1
"""A server knows its own context; it refuses what does not fit."""
_PATH = "/chat/completions"
_UNKNOWN_FIELD = re.compile(
    r" 4(00|22): .*(unsupported|not support|unknown|unrecogni|unexpected|not permitted)", re.IGNORECASE | re.DOTALL
)


class OpenAIEngine(MessageEngine):
    """Calls OpenAI-compatible servers that have the same model.

    Args:
        urls: Their base addresses, with or without `/v1`.
        model: The model's name there; None: the first one that the first server lists.
        settings: Key, timeout, retries and the bound on open requests.
        omit: Fields of requests that the servers do not take, such as `seed`.
        extra: Fields to add to every request, such as `reasoning_effort`.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        model: str | None = None,
        settings: ServerSettings | None = None,
        omit: Sequence[str] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self._servers = Servers(urls, settings or ServerSettings())
        self.model = model
        self._omitted = frozenset(omit)
        self._extra = dict(extra or {})
        self._limit_field = "max_tokens"
        self._finding = asyncio.Lock()

    @property
    def url(self) -> str:
        """The first server's base address."""
        return self._servers.urls[0]

    async def check(self) -> None:
        """Ask every server for its models: it must be there and take the key. Raises `EngineError`. A server without
        such a list passes where the model is named."""
        for url in self._servers.urls:
            try:
                await self._servers.get(url, "/models")
            except EngineRequestError as error:
                if self.model is None or not any(f" {status}:" in str(error) for status in (404, 405, 501)):
                    raise
        await self.find_model()

    async def find_model(self) -> str:
        """The model's name at the servers: the given one, else the first that the first server lists."""
        async with self._finding:
            if self.model is None:
                models = (await self._servers.get(self.url, "/models")).get("data")
                entries = models if isinstance(models, list) else []
                names = [entry["id"] for entry in entries if isinstance(entry, dict) and "id" in entry]
                if not names:
                    raise EngineError(f"{self.url}/models lists no model; name one")
                self.model = str(names[0])
        return self.model

    async def chat(
        self, observation: Observation, sampling: SamplingParams, on_text: Callable[[str], None] | None = None
    ) -> tuple[Completion, Action]:
        """One turn; streamed where `on_text` listens."""
        fields = {"model": await self.find_model(), **request_fields(observation, sampling), **self._extra}
        request = {name: value for name, value in fields.items() if name not in self._omitted}
        try:
            return await self._ask(self._with_limit_field(request), on_text)
        except EngineRequestError as error:
            # Models that reason call their limit so, and refuse the other name.
            if self._limit_field in request and "max_completion_tokens" in str(error):
                self._limit_field = "max_completion_tokens"
                return await self._ask(self._with_limit_field(request), on_text)
            raise _with_hint(error, request) from error

    def _with_limit_field(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request with its limit under the name that the servers take."""
        return {self._limit_field if name == "max_tokens" else name: value for name, value in request.items()}

    async def _ask(
        self, request: Mapping[str, Any], on_text: Callable[[str], None] | None
    ) -> tuple[Completion, Action]:
        reply = Reply()
        if on_text is None:
            answer, retries = await self._servers.post(_PATH, request)
            reply.add(answer)
            reply.usage |= {"requests": retries + 1}
            return reply.finish()
        async for chunk in self._servers.stream(_PATH, {**request, "stream": True}):
            text = reply.add(chunk)
            if text:
                on_text(text)
        return reply.finish()

    # --- the rest of an engine ---

    @property
    def policy_version(self) -> int:
        """The servers' weights do not change."""
        return 0

    @property
    def context_length(self) -> int:
        """Unknown here: the server refuses what does not fit."""
        return _UNBOUNDED

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names no layers: a server's model has no adapters here."""
        return ()

    @property
    def pauses_during_update(self) -> bool:
        """There are no updates."""
        return False

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Not possible: the server takes messages."""
        raise EngineRequestError("this server takes messages, not token ids")

    async def update_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Raises `EngineError`: a server behind a chat API takes no weights."""
        raise EngineError("the weights of a server cannot be changed from here")

    def paused(self) -> nullcontext[None]:
        """Does nothing: the model runs at its server."""
        return nullcontext()

    async def close(self) -> None:
        """Close the connections."""
        await self._servers.close()


def _with_hint(error: EngineRequestError, request: Mapping[str, Any]) -> EngineRequestError:
    """The refusal, with what to do about a field that this server does not take."""
    named = [name for name in request if name not in ("model", "messages", "tools") and name in str(error)]
    if not named or _UNKNOWN_FIELD.search(str(error)) is None:
        return error
    fields = ",".join(named)
    return EngineRequestError(f"{error}; to leave {fields} out of requests: engine.arguments.omit=[{fields}]")
