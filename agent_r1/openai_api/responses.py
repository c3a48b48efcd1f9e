"""Responses of the API: whole ones as JSON objects, streams as server-sent events.

Beyond OpenAI's fields, with `return_token_ids`: `prompt_token_ids` on the response (the first chunk of a stream), and
`token_ids` on every choice, exactly as sampled.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_r1.chat import TokenTexts
from agent_r1.codec import write_json
from agent_r1.openai_api.answers import Choice, ChoiceDelta
from agent_r1.openai_api.messages import tool_calls_to_openai
from agent_r1.openai_api.requests import ChatRequest, CompletionRequest
from agent_r1.types import Completion, TokenIds

DONE = b"data: [DONE]\n\n"
"""The end of every stream."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResponseHead:
    """What all parts of one response have in common."""

    kind: str
    """`chat.completion` or `text_completion`."""
    model: str
    fingerprint: str = ""
    """Changes when the weights do."""
    response_id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def fields(self, *, chunk: bool = False) -> dict[str, Any]:
        """The fields that every response and chunk has."""
        is_chat = self.kind == "chat.completion"
        return {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{self.response_id}",
            "object": "chat.completion.chunk" if chunk and is_chat else self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def usage(num_prompt: int, completions: Iterable[Completion]) -> dict[str, int]:
    """The `usage` of a response: counted, or of a model behind a chat API what its server said."""
    completions = list(completions)
    counts = [completion.usage for completion in completions if completion.usage is not None]
    num_sampled = sum(len(completion.token_ids) for completion in completions)
    if counts:
        num_prompt = max(part.get("prompt_tokens", 0) for part in counts)
        num_sampled = sum(part.get("completion_tokens", 0) for part in counts)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_sampled,
        "total_tokens": num_prompt + num_sampled,
    }


def chat_response(
    head: ResponseHead, request: ChatRequest, prompt_ids: TokenIds, choices: Sequence[Choice], texts: TokenTexts
) -> dict[str, Any]:
    """A whole response of `/v1/chat/completions`."""
    response = head.fields()
    response["choices"] = [_chat_choice(request, choice, texts) for choice in choices]
    response["usage"] = usage(len(prompt_ids), (choice.completion for choice in choices))
    if request.return_token_ids:
        response["prompt_token_ids"] = list(prompt_ids)
    return response


def _chat_choice(request: ChatRequest, choice: Choice, texts: TokenTexts) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text or None, "refusal": None}
    if choice.tool_calls:
        message["tool_calls"] = tool_calls_to_openai(choice.tool_calls)
    else:
        message["content"] = choice.text
    sampled = choice.completion
    logprobs = chat_logprobs(sampled.token_ids, sampled.logprobs, texts, request) if request.logprobs else None
    return {
        "index": choice.index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
        **({"token_ids": list(sampled.token_ids)} if request.return_token_ids else {}),
    }


def chat_logprobs(
    ids: Sequence[int], logprobs: Sequence[float], texts: TokenTexts, request: ChatRequest
) -> dict[str, Any]:
    """`logprobs` of a chat choice: every sampled token, the end of turn included."""
    entries = []
    for token_id, logprob in zip(ids, logprobs, strict=True):
        text, raw = texts.of(token_id)
        entry: dict[str, Any] = {"token": text, "logprob": logprob, "bytes": list(raw)}
        entries.append({**entry, "top_logprobs": [entry] if request.top_logprobs else []})
    return {"content": entries, "refusal": None}


def completion_response(
    head: ResponseHead,
    request: CompletionRequest,
    prompts: Sequence[TokenIds],
    prompt_texts: Sequence[str],
    choices: Sequence[Choice],
    texts: TokenTexts,
) -> dict[str, Any]:
    """A whole response of `/v1/completions`; the choices of prompt `p` are those from `p * n` on."""
    entries = []
    for choice in choices:
        prompt = choice.index // request.n
        sampled = choice.completion
        logprobs = text_logprobs(sampled.token_ids, sampled.logprobs, texts) if request.logprobs else None
        entry: dict[str, Any] = {
            "index": choice.index,
            "text": (prompt_texts[prompt] if request.echo else "") + choice.text,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
        }
        if request.return_token_ids:
            entry |= {"token_ids": list(sampled.token_ids), "prompt_token_ids": list(prompts[prompt])}
        entries.append(entry)
    used = usage(sum(map(len, prompts)), (choice.completion for choice in choices))
    return {**head.fields(), "choices": entries, "usage": used}


def text_logprobs(ids: Sequence[int], logprobs: Sequence[float], texts: TokenTexts, offset: int = 0) -> dict[str, Any]:
    """`logprobs` of a plain completion; offsets count the characters of the tokens' own texts."""
    tokens = [texts.of(token_id)[0] for token_id in ids]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": list(logprobs),
        "top_logprobs": [{token: logprob} for token, logprob in zip(tokens, logprobs, strict=True)],
        "text_offset": offsets,
    }


class ChatChunks:
    """The events of a streamed response of `/v1/chat/completions`."""

    def __init__(self, head: ResponseHead, request: ChatRequest, prompt_ids: TokenIds, texts: TokenTexts) -> None:
        self._request = request
        self._prompt_ids = prompt_ids
        self._texts = texts
        self._head = write_json(head.fields(chunk=True))[:-1]
        self._usage = ', "usage": null' if request.include_usage else ""

    def first(self, index: int) -> bytes:
        """The event that begins a choice."""
        more = {"prompt_token_ids": list(self._prompt_ids)} if self._request.return_token_ids and not index else {}
        return self._event(index, '{"role": "assistant", "content": ""}', more=more)

    def delta(self, index: int, delta: ChoiceDelta) -> bytes:
        """What a choice has gained; at its end also the calls and the reason. Empty when the client gets nothing."""
        request, content = self._request, delta.text
        extra = ""
        if request.logprobs and delta.token_ids:
            entries = chat_logprobs(delta.token_ids, delta.logprobs, self._texts, request)
            extra = f', "logprobs": {write_json(entries)}'
        if request.return_token_ids and delta.token_ids:
            extra += f', "token_ids": {list(delta.token_ids)}'
        events = b""
        if content or extra:
            events = self._event(index, f'{{"content": {write_json(content)}}}', extra)
        if delta.choice is not None:
            if delta.choice.tool_calls:
                calls = [{"index": i, **call} for i, call in enumerate(tool_calls_to_openai(delta.choice.tool_calls))]
                events += self._event(index, f'{{"tool_calls": {write_json(calls)}}}')
            events += self._event(index, "{}", finish_reason=delta.choice.finish_reason)
        return events

    def usage(self, completions: Iterable[Completion]) -> bytes:
        """The event with the usage, for clients that want it."""
        if not self._request.include_usage:
            return b""
        used = write_json(usage(len(self._prompt_ids), completions))
        return f'data: {self._head}, "choices": [], "usage": {used}}}\n\n'.encode()

    def _event(
        self, index: int, delta: str, extra: str = "", finish_reason: str = "", more: dict[str, Any] | None = None
    ) -> bytes:
        reason = f'"{finish_reason}"' if finish_reason else "null"
        added = f", {write_json(more)[1:-1]}" if more else ""
        choice = f'{{"index": {index}, "delta": {delta}{extra}, "finish_reason": {reason}}}'
        return f'data: {self._head}, "choices": [{choice}]{self._usage}{added}}}\n\n'.encode()


class CompletionChunks:
    """The events of a streamed response of `/v1/completions`."""

    def __init__(
        self, head: ResponseHead, request: CompletionRequest, prompts: Sequence[TokenIds], texts: TokenTexts
    ) -> None:
        self._request = request
        self._prompts = prompts
        self._texts = texts
        self._head = write_json(head.fields(chunk=True))[:-1]
        self._usage = ', "usage": null' if request.include_usage else ""
        self._offsets: dict[int, int] = {}

    def first(self, index: int, echo: str = "") -> bytes:
        """The event that begins a choice: the echoed prompt and its ids, if the client wants them."""
        if not self._request.return_token_ids:
            return self._event(index, echo) if echo else b""
        prompt = self._prompts[index // self._request.n]
        return self._event(index, echo, f', "prompt_token_ids": {list(prompt)}')

    def delta(self, index: int, delta: ChoiceDelta) -> bytes:
        """What a choice has gained, and at its end the reason."""
        request, extra = self._request, ""
        if request.logprobs and delta.token_ids:
            offset = self._offsets.get(index, 0)
            entries = text_logprobs(delta.token_ids, delta.logprobs, self._texts, offset)
            self._offsets[index] = offset + sum(map(len, entries["tokens"]))
            extra = f', "logprobs": {write_json(entries)}'
        if request.return_token_ids and delta.token_ids:
            extra += f', "token_ids": {list(delta.token_ids)}'
        reason = "" if delta.choice is None else delta.choice.finish_reason
        return self._event(index, delta.text, extra, reason) if delta.text or extra or reason else b""

    def usage(self, completions: Iterable[Completion]) -> bytes:
        """The event with the usage, for clients that want it."""
        if not self._request.include_usage:
            return b""
        used = write_json(usage(sum(map(len, self._prompts)), completions))
        return f'data: {self._head}, "choices": [], "usage": {used}}}\n\n'.encode()

    def _event(self, index: int, text: str, extra: str = "", finish_reason: str = "") -> bytes:
        reason = f'"{finish_reason}"' if finish_reason else "null"
        choice = f'{{"index": {index}, "text": {write_json(text)}{extra}, "finish_reason": {reason}}}'
        return f'data: {self._head}, "choices": [{choice}]{self._usage}}}\n\n'.encode()


def error_event(body: dict[str, Any]) -> bytes:
    """An error after the beginning of a stream, whose status has been sent."""
    return f"data: {write_json(body)}\n\n".encode()


def models_response(names: Sequence[str], created: int, **more: Any) -> dict[str, Any]:
    """The response of `/v1/models`; `more` are fields of every model."""
    models = [{"id": name, "object": "model", "created": created, "owned_by": "agent-r1", **more} for name in names]
    return {"object": "list", "data": models}
