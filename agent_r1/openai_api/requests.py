"""Requests of the API as records: checked, and in the project's terms."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from agent_r1.openai_api.errors import ApiError
from agent_r1.openai_api.fields import ChatFields, CompletionFields, read_fields
from agent_r1.openai_api.messages import messages_from_openai, tools_from_openai
from agent_r1.seeds import mix_seed
from agent_r1.types import Message, SamplingParams, TokenIds, ToolSchema, media_in

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the completions of a request are sampled."""

    max_tokens: int | None = None
    """The limit in the request; None: as many as the server and the context allow."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    """None: the server draws one per request."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion; they are not part of it."""

    def params(self, *, max_tokens: int, stop_ids: TokenIds, seed: int, index: int = 0) -> SamplingParams:
        """What an engine gets for choice `index`. The first choice has the seed itself, the others seeds drawn
        from it."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=stop_ids,
            seed=seed if index == 0 else mix_seed(seed, index),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolChoice:
    """What the client wants of the tools."""

    mode: Literal["auto", "none", "required"] = "auto"
    """`auto`: the model decides. `none`: no calls. `required`: at least one call."""
    name: str | None = None
    """With `required`: the only tool that may be called."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRequest:
    """A request to `/v1/chat/completions`."""

    model: str
    messages: tuple[Message, ...]
    """The messages, as an environment would have written them; see `messages`."""
    tools: tuple[ToolSchema, ...] = ()
    """The tools, as the client gave them."""
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    """False: only the first call of a completion is returned."""
    sampling: Sampling = Sampling()
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    """A stream ends with a chunk that has the usage."""
    logprobs: bool = False
    top_logprobs: int = 0
    """1: the sampled token is listed; an engine gives no alternatives."""
    return_token_ids: bool = False
    """Choices have `token_ids`, the response has `prompt_token_ids`."""

    @property
    def offered_tools(self) -> tuple[ToolSchema, ...]:
        """The tools that the model sees: none with `none`, the named one alone with a named one."""
        if self.tool_choice.mode == "none":
            return ()
        name = self.tool_choice.name
        return tuple(tool for tool in self.tools if name is None or tool["function"]["name"] == name)


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionRequest:
    """A request to `/v1/completions`."""

    model: str
    prompts: tuple[str | TokenIds, ...]
    """Texts, whose control tokens are ordinary characters, or exact ids."""
    sampling: Sampling = Sampling()
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    echo: bool = False
    """The text of a choice begins with its prompt."""
    logprobs: bool = False
    return_token_ids: bool = False


async def read_async(read: Callable[[Any], T], body: Mapping[str, Any]) -> T:
    """What `read` makes of a body. Images in its messages are read in a thread: the event loop continues meanwhile."""
    messages = body.get("messages")
    if isinstance(messages, list) and media_in(messages):
        return await asyncio.to_thread(read, body)
    return read(body)


def read_chat_request(body: Mapping[str, Any], *, ignored: Collection[str] = ()) -> ChatRequest:
    """The record of a request's body, without the fields in `ignored`. Raises `ApiError` (status 400) for what is wrong
    or cannot be honored."""
    fields = read_fields(body, ChatFields, ignored=ignored)
    tools = tools_from_openai(fields.tools)
    if fields.top_logprobs and not fields.logprobs:
        raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs")
    _check_alternatives(fields.top_logprobs, "top_logprobs")
    return ChatRequest(
        model=fields.model,
        messages=messages_from_openai(fields.messages),
        tools=tools,
        tool_choice=_tool_choice(fields.tool_choice, tools),
        parallel_tool_calls=fields.parallel_tool_calls,
        sampling=_sampling(fields, fields.max_completion_tokens),
        n=fields.n,
        stream=fields.stream,
        include_usage=_include_usage(fields),
        logprobs=fields.logprobs,
        top_logprobs=fields.top_logprobs,
        return_token_ids=fields.return_token_ids,
    )


def read_completion_request(body: Mapping[str, Any], *, ignored: Collection[str] = ()) -> CompletionRequest:
    """The record of a request's body, without the fields in `ignored`. Raises `ApiError` (status 400) for what is wrong
    or cannot be honored."""
    fields = read_fields(body, CompletionFields, ignored=ignored)
    _check_alternatives(fields.logprobs or 0, "logprobs")
    if fields.echo and fields.logprobs is not None:
        raise ApiError("echo with logprobs is not supported: the engine scores sampled tokens only", param="echo")
    return CompletionRequest(
        model=fields.model,
        prompts=_prompts(fields.prompt),
        sampling=_sampling(fields, 16 if fields.max_tokens is None else None),
        n=fields.n,
        stream=fields.stream,
        include_usage=_include_usage(fields),
        echo=fields.echo,
        logprobs=fields.logprobs is not None,
        return_token_ids=fields.return_token_ids,
    )


def _check_alternatives(count: int, field: str) -> None:
    if count > 1:
        raise ApiError(
            f"{field} is {count}; this server gives the log-probability of the sampled token only, so at most 1",
            param=field,
            code="unsupported_value",
        )


def _include_usage(fields: ChatFields | CompletionFields) -> bool:
    if fields.stream_options is not None and not fields.stream:
        raise ApiError("stream_options needs stream: true", param="stream_options")
    return fields.stream_options is not None and fields.stream_options.include_usage


def _sampling(fields: ChatFields | CompletionFields, max_tokens: int | None) -> Sampling:
    stop = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ())
    return Sampling(
        max_tokens=fields.max_tokens if max_tokens is None else max_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=max(fields.top_k, 0),
        seed=fields.seed,
        stop=tuple(text for text in stop if text),
    )


def _tool_choice(choice: str | dict[str, Any] | None, tools: tuple[ToolSchema, ...]) -> ToolChoice:
    names = [tool["function"]["name"] for tool in tools]
    if choice in (None, "auto", "none"):
        return ToolChoice(mode="none" if choice == "none" else "auto")
    if not tools:
        raise ApiError("tool_choice needs tools", param="tool_choice")
    if choice == "required":
        return ToolChoice(mode="required")
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if name not in names:
        raise ApiError(
            f"tool_choice must be auto, none, required or {{'type': 'function', 'function': {{'name': NAME}}}} with "
            f"one of {', '.join(names)}; found {choice!r:.80}",
            param="tool_choice",
        )
    return ToolChoice(mode="required", name=str(name))


def _prompts(prompt: str | list[Any]) -> tuple[str | TokenIds, ...]:
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt:
        raise ApiError("prompt is empty; give text or token ids", param="prompt")
    if isinstance(prompt[0], int):
        return (tuple(prompt),)
    return tuple(entry if isinstance(entry, str) else tuple(entry) for entry in prompt)
