"""`ServerEngine`: an agent on an OpenAI-compatible server. The server renders the chat template; the tools run here.

Servers do not tell token ids, so there are none in its steps: such an agent can be talked to, not trained.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

from agent_r1.chat import ChatRenderer
from agent_r1.engines import MessageEngine
from agent_r1.errors import EngineError, MissingExtraError
from agent_r1.types import Action, Completion, FinishReason, Observation, SamplingParams, TokenIds, ToolCall

_MAX_CONTEXT = 2**31 - 1
"""A server knows its own context; it refuses what does not fit."""


class ServerTemplate:
    """Stands where an agent with local weights has its renderer: the server renders and parses itself."""

    stop_ids: TokenIds = ()


class ServerEngine(MessageEngine):
    """Calls `/chat/completions` of a server.

    Args:
        url: The server's base address, with or without `/v1`.
        model: The model's name there; None: the first one that it lists.
        key: Sent as a bearer token.
        timeout: Seconds without any byte from the server after which a request fails.
    """

    def __init__(self, url: str, *, model: str | None = None, key: str | None = None, timeout: float = 300.0) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtraError("httpx", "remote", "a chat on a server") from error
        if not url.startswith(("http://", "https://")):
            raise EngineError(f"the server's address must begin with http:// or https://, found {url!r:.80}")
        base = url.rstrip("/")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.url = base if base.endswith("/v1") else f"{base}/v1"
        self.model = model
        self._errors = httpx.HTTPError, httpx.InvalidURL
        self._client = httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(timeout, connect=10.0))

    @property
    def renderer(self) -> ChatRenderer:
        """What the flow needs of a renderer when the server renders."""
        return cast(ChatRenderer, ServerTemplate())

    async def find_model(self) -> str:
        """The model's name at the server: the given one, else the first that the server lists."""
        if self.model is None:
            listed = await self._get("/models")
            names = [entry["id"] for entry in listed.get("data", ()) if isinstance(entry, dict) and "id" in entry]
            if not names:
                raise EngineError(f"{self.url}/models lists no model; name one")
            self.model = str(names[0])
        return self.model

    async def chat(
        self, observation: Observation, sampling: SamplingParams, on_text: Callable[[str], None]
    ) -> tuple[Completion, Action]:
        """One turn, streamed."""
        request = {"model": await self.find_model(), "stream": True, **_request(observation, sampling)}
        reply = _Reply()
        async for chunk in self._stream("/chat/completions", request):
            text = reply.add(chunk)
            if text:
                on_text(text)
        return reply.finish()

    async def _get(self, path: str) -> Mapping[str, Any]:
        try:
            response = await self._client.get(self.url + path)
        except self._errors as error:
            raise EngineError(_unreachable(self.url, error)) from error
        if response.status_code != 200:
            raise EngineError(_refusal(self.url + path, response.status_code, response.text))
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise EngineError(
                f"{self.url + path} did not answer with a JSON object; is this an OpenAI-compatible server?"
            )
        return answer

    async def _stream(self, path: str, request: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """The JSON objects of a stream of server-sent events."""
        try:
            async with self._client.stream("POST", self.url + path, json=request) as response:
                if response.status_code != 200:
                    body = (await response.aread()).decode(errors="replace")
                    raise EngineError(_refusal(self.url + path, response.status_code, body))
                async for line in response.aiter_lines():
                    data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                    if data == "[DONE]":
                        return
                    if data:
                        yield _chunk(data, self.url)
        except self._errors as error:
            raise EngineError(_unreachable(self.url, error)) from error

    # --- the rest of an engine ---

    @property
    def policy_version(self) -> int:
        """The server's weights do not change."""
        return 0

    @property
    def context_length(self) -> int:
        """Unknown here: the server refuses what does not fit."""
        return _MAX_CONTEXT

    @property
    def adapters(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def pauses_during_update(self) -> bool:
        """There are no updates."""
        return False

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Not possible: the server takes messages."""
        raise EngineError("this server takes messages, not token ids")

    async def update_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Not possible."""
        raise EngineError("the weights of a server cannot be changed from here")

    def paused(self) -> nullcontext[None]:
        """Nothing to pause."""
        return nullcontext()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _request(observation: Observation, sampling: SamplingParams) -> dict[str, Any]:
    """The request's fields. Arguments of calls are JSON text, as the API has them."""
    if observation.messages is None:
        raise EngineError("this environment shows raw text or token ids, which a chat server does not take")
    request: dict[str, Any] = {
        "messages": [_message(message) for message in observation.messages],
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed % 2**31,
    }
    if sampling.top_k:
        request["top_k"] = sampling.top_k
    if observation.tools:
        request["tools"] = [dict(tool) for tool in observation.tools]
    return request


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return dict(message)
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


@dataclass
class _Reply:
    """The turn that the chunks of a stream add up to."""

    text: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    finish_reason: str | None = None

    def add(self, chunk: Mapping[str, Any]) -> str:
        """Take one chunk; returns its text."""
        choices = chunk.get("choices") or [{}]
        choice = choices[0] if isinstance(choices, list) and isinstance(choices[0], dict) else {}
        delta = choice.get("delta") or {}
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        for position, call in enumerate(delta.get("tool_calls") or ()):
            known = self.calls.setdefault(int(call.get("index", position)), {"id": "", "name": "", "arguments": ""})
            function = call.get("function") or {}
            known["id"] += call.get("id") or ""
            known["name"] += function.get("name") or ""
            known["arguments"] += function.get("arguments") or ""
        text = str(delta.get("content") or "")
        self.text += text
        return text

    def finish(self) -> tuple[Completion, Action]:
        """The completion (without ids) and the action."""
        if self.finish_reason is None:
            raise EngineError("the server's stream ended in the middle of a turn")
        is_cut = self.finish_reason == "length"
        reason: FinishReason = "length" if is_cut else "stop"
        completion = Completion(token_ids=(), logprobs=(), finish_reason=reason, policy_versions=())
        calls: list[ToolCall] = []
        problem: str | None = "the turn was cut by the length limit" if is_cut else None
        for number, call in sorted(self.calls.items()):
            try:
                arguments = json.loads(call["arguments"] or "{}")
            except ValueError:
                arguments = None
            if isinstance(arguments, dict):
                calls.append(ToolCall(name=call["name"], arguments=arguments, call_id=call["id"] or f"call{number}"))
            else:
                problem = f"the arguments of {call['name']} are not a JSON object: {call['arguments']!r:.200}"
        if problem is not None:
            calls = []
        written = "".join(f"\n{call['name']}({call['arguments']})" for call in self.calls.values())
        return completion, Action(
            text=self.text + written, content=self.text, tool_calls=tuple(calls), parse_error=problem
        )


def _chunk(data: str, url: str) -> Mapping[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        raise EngineError(f"{url} sent an event that is not a JSON object: {data!r:.200}")
    if chunk.get("error"):
        raise EngineError(f"{url} reports an error: {json.dumps(chunk['error'])[:500]}")
    return chunk


def _unreachable(url: str, error: Exception) -> str:
    reason = str(error) or type(error).__name__
    return f"the server {url} cannot be reached or stopped answering ({reason}); is it running at this address?"


def _refusal(address: str, status: int, body: str) -> str:
    try:
        answer = json.loads(body)
        reason = answer.get("error", answer) if isinstance(answer, dict) else answer
        reason = reason.get("message", reason) if isinstance(reason, dict) else reason
    except ValueError:
        reason = body.strip()
    hint = {401: "; give its key (--key-env NAME)", 404: "; is the model's name right?"}.get(status, "")
    return f"{address} refused the request with {status}: {str(reason)[:500]}{hint}"
