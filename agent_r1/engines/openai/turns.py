"""Turns of a conversation as requests of `/chat/completions`, and its answers, whole or streamed, as actions."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_r1.chat import orphan_tool_results_as_user
from agent_r1.codec import is_deeper_than
from agent_r1.errors import EngineError, EngineRequestError
from agent_r1.images import normal_observation, openai_messages
from agent_r1.types import MAX_ARGUMENT_DEPTH, Action, Completion, FinishReason, Observation, SamplingParams, ToolCall


def request_fields(observation: Observation, sampling: SamplingParams) -> dict[str, Any]:
    """The fields of a request. Arguments of calls are JSON text and images data URLs, as the API has them."""
    if observation.messages is None:
        raise EngineRequestError("this environment shows raw text or token ids, which a chat server does not take")
    # What an environment says to a malformed action answers no call, and the API refuses that.
    messages = openai_messages(orphan_tool_results_as_user(normal_observation(observation).messages or ()))
    request: dict[str, Any] = {
        "messages": _with_unique_ids(_message(message) for message in messages),
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


def _with_unique_ids(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with an id of its own for each call: environments and agents number the calls of each turn anew."""
    used: set[str] = set()
    new_ids: dict[str, str] = {}
    result = []
    for number, message in enumerate(messages):
        if message.get("tool_calls"):
            new_ids = {}
            for index, call in enumerate(message["tool_calls"]):
                call_id = call.get("id") or ""
                new_ids[call_id] = call_id if call_id and call_id not in used else f"c{number:04d}{index:04d}"
                used.add(new_ids[call_id])
            calls = [{**call, "id": new_ids[call.get("id") or ""]} for call in message["tool_calls"]]
            message = {**message, "tool_calls": calls}
        elif message.get("tool_call_id") in new_ids:
            message = {**message, "tool_call_id": new_ids[message["tool_call_id"]]}
        result.append(message)
    return result


@dataclass
class _Call:
    """A tool call as far as it has come."""

    index: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass
class Reply:
    """The turn that an answer, or the chunks of a stream, add up to."""

    text: str = ""
    calls: list[_Call] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    has_message: bool = False
    """Whether a message or a part of one has come; it may be empty."""
    _pairs: _SurrogatePairs = field(default_factory=lambda: _SurrogatePairs())

    def add(self, part: Mapping[str, Any]) -> str:
        """Take a whole answer or one chunk; returns its text. Raises `EngineError` for what is no such answer."""
        try:
            return self._add(part)
        except (AttributeError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise EngineError(f"the server's answer has an unexpected form: {json.dumps(part)[:300]}") from error

    def _add(self, part: Mapping[str, Any]) -> str:
        self.usage.update(_usage(part.get("usage") or {}))
        if part.get("error") and not part.get("choices"):  # with status 200, as routers in front of servers answer
            raise EngineError(f"the server answered with an error: {json.dumps(part['error'])[:300]}")
        choices = part.get("choices") or [{}]
        choice = choices[0]
        is_whole = choice.get("message") is not None
        turn = choice["message"] if is_whole else choice.get("delta")
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if turn is None:
            return ""
        self.has_message = True
        for position, call in enumerate(turn.get("tool_calls") or ()):
            self._add_call(call, position, is_whole=is_whole)
        text = self._pairs.join(_text_of(turn.get("content")) or str(turn.get("refusal") or ""))
        self.text += text
        return text

    def _add_call(self, call: Mapping[str, Any], position: int, *, is_whole: bool) -> None:
        """Take a call of a whole answer, or a part of one. Of the parts, some servers give all calls one index, or
        repeat the id and the name."""
        index = position if call.get("index") is None else int(call["index"])
        call_id = str(call.get("id") or "")
        begun = [entry for entry in self.calls if entry.index == index]
        if is_whole or not begun or (call_id and begun[-1].call_id not in ("", call_id)):
            begun.append(_Call(index))
            self.calls.append(begun[-1])
        entry, function = begun[-1], call.get("function") or {}
        entry.call_id = call_id or entry.call_id
        name, arguments = function.get("name") or "", function.get("arguments")
        entry.name += name if name != entry.name else ""
        if arguments is not None:  # text; some servers send the object
            entry.arguments += arguments if isinstance(arguments, str) else json.dumps(arguments)

    def finish(self) -> tuple[Completion, Action]:
        """The completion (without ids) and the action."""
        if self.finish_reason is None:
            raise EngineError("the server's answer ended in the middle of a turn")
        if not self.has_message:
            raise EngineError(f"the server's answer is finished ({self.finish_reason!r:.60}) and has no message")
        text = self.text + self._pairs.join("", final=True)
        is_cut = self.finish_reason == "length"
        reason: FinishReason = "length" if is_cut else "stop"
        completion = Completion(
            token_ids=(), logprobs=(), finish_reason=reason, policy_versions=(), usage=self.usage or None
        )
        calls: list[ToolCall] = []
        call_ids: set[str] = set()
        problem: str | None = "the turn was cut by the length limit" if is_cut else None
        for number, call in enumerate(sorted(self.calls, key=lambda call: call.index)):
            try:
                arguments = json.loads(call.arguments or "{}")
            except (ValueError, RecursionError):
                arguments = None
            if isinstance(arguments, dict) and not is_deeper_than(arguments, MAX_ARGUMENT_DEPTH):
                call_id = call.call_id if call.call_id not in ("", *call_ids) else f"call{number}"
                call_ids.add(call_id)
                calls.append(ToolCall(name=_joined_pairs(call.name), arguments=arguments, call_id=call_id))
            else:
                problem = (
                    f"the arguments of {call.name} are not a JSON object of at most {MAX_ARGUMENT_DEPTH} levels: "
                    f"{call.arguments!r:.200}"
                )
        if problem is not None:
            calls = []
        call_texts = _joined_pairs("".join(f"\n{call.name}({call.arguments})" for call in self.calls))
        return completion, Action(
            text=text + call_texts,
            content=text,
            tool_calls=tuple(calls),
            parse_error=None if problem is None else _joined_pairs(problem),
        )


class _SurrogatePairs:
    """Joins the halves of surrogate pairs: servers escape them in JSON, and may send them in two chunks. Half of a pair
    alone can be neither printed nor sent to a server again; it becomes a replacement character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-16-le")("replace")

    def join(self, text: str, *, final: bool = False) -> str:
        """The next text, without the first half of a pair at its end unless `final`."""
        return self._decoder.decode(text.encode("utf-16-le", "surrogatepass"), final)


def _joined_pairs(text: str) -> str:
    return _SurrogatePairs().join(text, final=True)


def _text_of(content: Any) -> str:
    """The text of a turn whose content is text or a list of parts; parts that are no text, such as thoughts, are left
    out.

    >>> _text_of([{"type": "thinking", "thinking": []}, {"type": "text", "text": "4"}, {"type": "text", "text": "2"}])
    '42'
    """
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part.get("text"), str))
    if content is not None and not isinstance(content, str):
        raise TypeError("content is neither text nor a list of parts")
    return content or ""


def _usage(usage: Mapping[str, Any]) -> dict[str, int]:
    """What a request took, as far as the server says; what is no count is left out.

    >>> _usage({"prompt_tokens": 9, "completion_tokens": "2", "prompt_tokens_details": {"cached_tokens": 8}})
    {'prompt_tokens': 9, 'completion_tokens': 2, 'cached_prompt_tokens': 8}
    """
    counts = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_prompt_tokens": _object(usage.get("prompt_tokens_details")).get("cached_tokens"),
        "reasoning_tokens": _object(usage.get("completion_tokens_details")).get("reasoning_tokens"),
    }
    return {name: count for name, value in counts.items() if (count := _count(value)) is not None}


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> int | None:
    """A count of tokens, which some servers write as text or as a float; None for anything else."""
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return count if count >= 0 else None
