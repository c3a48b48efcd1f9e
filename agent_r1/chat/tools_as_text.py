"""Conversations with tools for chat templates without tools: everything about tools becomes plain text.

The schemas go into the system message, the assistant's calls into its text as the tool format writes them, and tool
answers into user messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1.chat.formats import ToolFormat
from agent_r1.images import Picture
from agent_r1.types import Message, ToolCall, ToolSchema

_Answer = tuple[str, list[Any]]
"""The text of a tool's answer, and its images."""


def knows_tools(chat_template: Any) -> bool:
    """Whether a chat template (or one of several, by name) reads `tools`."""
    templates = chat_template.values() if isinstance(chat_template, Mapping) else [chat_template]
    return any(re.search(r"\btools\b", str(template)) for template in templates)


def without_tools(messages: Sequence[Message], tools: Sequence[ToolSchema], tool_format: ToolFormat) -> list[Message]:
    """The same conversation with system, user and assistant messages only.

    With the hermes format `[user "Price?", assistant calling price, tool "7"]` becomes `[system "You can call these
    tools: ...", user "Price?", assistant "<tool_call>...", user "<tool_response>7</tool_response>"]`. Answers that
    follow one another share one message, for templates that require alternating turns. Images of an answer follow its
    text.
    """
    schemas = tool_format.schemas_text(tools)
    first = messages[0] if messages and messages[0]["role"] == "system" else None
    system_text = f"{_text_of(first['content'])}\n\n{schemas}" if first else schemas
    rewritten: list[Message] = [{"role": "system", "content": system_text}]
    answers: list[_Answer] = []
    for message in messages[1:] if first else messages:
        if message["role"] == "tool":
            text = tool_format.result_text(str(message.get("name") or ""), _text_of(message["content"]))
            answers.append((text, _images_of(message["content"])))
            continue
        rewritten.extend(_as_user(answers))
        answers = []
        rewritten.append(_with_calls_as_text(message, tool_format))
    return [*rewritten, *_as_user(answers)]


def orphan_tool_results_as_user(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same conversation, with every tool answer that follows no call as a user message.

    >>> orphan_tool_results_as_user([{"role": "assistant", "content": "{"}, {"role": "tool", "content": "Error: ..."}])
    ({'role': 'assistant', 'content': '{'}, {'role': 'user', 'content': 'Error: ...'})
    """
    rewritten: list[Message] = []
    may_answer = False
    for message in messages:
        if message["role"] != "tool":
            may_answer = bool(message.get("tool_calls"))
            rewritten.append(message)
        else:
            rewritten.append(message if may_answer else {"role": "user", "content": message["content"]})
    return tuple(rewritten)


def _as_user(answers: Sequence[_Answer]) -> list[Message]:
    if not any(images for _, images in answers):
        return [{"role": "user", "content": "\n".join(text for text, _ in answers)}] if answers else []
    parts: list[Any] = []
    for text, images in answers:
        parts += [{"type": "text", "text": f"\n{text}" if parts else text}, *images]
    return [{"role": "user", "content": parts}]


def _with_calls_as_text(message: Message, tool_format: ToolFormat) -> Message:
    if not message.get("tool_calls"):
        return message
    calls = [_call(entry.get("function", entry)) for entry in message["tool_calls"]]
    return {"role": message["role"], "content": tool_format.call_text(calls, _text_of(message.get("content")))}


def _call(function: Mapping[str, Any]) -> ToolCall:
    arguments = function.get("arguments", {})
    # The OpenAI form has the arguments as a string of JSON, chat templates have them as an object.
    return ToolCall(name=function["name"], arguments=json.loads(arguments) if isinstance(arguments, str) else arguments)


def _text_of(content: Any) -> str:
    """The text of a message's content, which may be a list of parts."""
    if isinstance(content, str) or content is None:
        return content or ""
    return "\n".join(part["text"] for part in content if part.get("type") == "text")


def _images_of(content: Any) -> list[Any]:
    parts = content if isinstance(content, list | tuple) else ()
    return [part for part in parts if isinstance(part, Mapping) and isinstance(part.get("image"), Picture)]
