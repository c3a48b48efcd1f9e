"""Messages, tools and tool calls between the API and the project's records.

Messages of a request become exactly what an environment of a training run would have written: arguments are objects,
a tool's answer has the name of its tool, and call ids are the numbers of the calls in their turn. (The API's ids must
be unique in a conversation, so responses have random ones; templates that show ids see the same ids as in training.)
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent_r1.codec import read_json, write_json
from agent_r1.errors import ImageError, MissingExtraError
from agent_r1.images import Picture, read_picture
from agent_r1.openai_api.errors import ApiError
from agent_r1.types import Message, ToolCall, ToolSchema, media_in, turn_call_id

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_IGNORED = frozenset(
    (
        "annotations",
        "audio",
        "function_call",
        "name",
        "provider_specific_fields",
        "reasoning",
        "reasoning_content",
        "refusal",
        "thinking_blocks",
    )
)
"""What clients add to a message of the model and send back with it; LiteLLM has fields of its own."""
_ALLOWED = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}


def messages_from_openai(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """The messages of a request as those of an environment, with images read. `ApiError` names the message and what is
    wrong with it.

    >>> messages_from_openai([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])
    ({'role': 'user', 'content': 'Hi'},)
    """
    if media := [kind for kind in media_in(messages) if kind != "image"]:
        raise ApiError(f"messages: this server reads text and images, found {', '.join(media)}", param="messages")
    calls: dict[str, ToolCall] = {}
    return tuple(_message(message, f"messages.{index}", calls) for index, message in enumerate(messages))


def _message(message: Mapping[str, Any], where: str, calls: dict[str, ToolCall]) -> Message:
    fields = {name: value for name, value in message.items() if value is not None}
    role = _ROLES.get(fields.get("role", "")) if isinstance(fields.get("role"), str) else None
    if role is None:
        raise _error(where, f"role must be one of {', '.join(_ROLES)}, found {fields.get('role')!r:.60}")
    unknown = sorted(fields.keys() - _ALLOWED[role] - _IGNORED)
    if unknown:
        raise _error(where, f"a message of {role} has no field {unknown[0]!r:.60}")
    tool_calls = _tool_calls(fields["tool_calls"], where) if fields.get("tool_calls") else ()
    if "content" not in fields and role != "assistant":  # clients write an empty turn of the model as null
        raise _error(where, "content is missing")
    content = _content(fields.get("content", ""), where, may_have_images=role in ("user", "tool"))
    if role == "tool":
        return _tool_answer(fields, content, where, calls)
    if not tool_calls:
        return {"role": role, "content": content}
    message_calls = []
    for number, (call_id, name, arguments) in enumerate(tool_calls):
        call = calls[call_id] = ToolCall(name=name, arguments=arguments, call_id=turn_call_id(number))
        message_calls.append(
            {"id": call.call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        )
    return {"role": role, "content": content, "tool_calls": message_calls}


def _tool_answer(fields: Mapping[str, Any], content: Any, where: str, calls: Mapping[str, ToolCall]) -> Message:
    if "tool_call_id" not in fields:  # what an environment says to a malformed call
        return {"role": "tool", "content": content}
    call_id = fields["tool_call_id"]
    if not isinstance(call_id, str):
        raise _error(where, f"tool_call_id must be text, found {call_id!r:.60}")
    call = calls.get(call_id)
    if call is None:
        raise _error(where, f"tool_call_id {call_id!r:.60} belongs to no tool call before it")
    return {"role": "tool", "name": call.name, "tool_call_id": call.call_id, "content": content}


def _content(content: Any, where: str, *, may_have_images: bool) -> str | list[dict[str, Any]]:
    """A content: a string, or parts. Parts of text alone are one string; with images they stay parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _error(where, f"content must be text or a list of parts, found {type(content).__name__}")
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            parts.append({"type": "text", "text": part["text"]})
        elif kind == "image_url" and may_have_images:
            parts.append({"type": "image", "image": _picture(part.get("image_url"), f"{where}.content.{number}")})
        else:
            forms = "{'type': 'text', 'text': ...}"
            forms += " or {'type': 'image_url', 'image_url': {'url': 'data:image/...'}}" if may_have_images else ""
            raise _error(where, f"a part must be {forms}, found {part!r:.80}")
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _picture(image_url: Any, where: str) -> Picture:
    address = image_url.get("url") if isinstance(image_url, dict) else image_url
    if not isinstance(address, str) or address[:5].lower() != "data:":
        raise _error(
            where,
            f"image_url.url must be a data URL (data:image/png;base64,...), found {address!r:.60}; nothing is "
            "downloaded here",
        )
    try:
        return read_picture(address, where="the image")
    except (ImageError, MissingExtraError) as error:
        raise _error(where, str(error)) from None


def _tool_calls(value: Any, where: str) -> tuple[tuple[str, str, dict[str, Any]], ...]:
    if not isinstance(value, list):
        raise _error(where, f"tool_calls must be a list, found {type(value).__name__}")
    calls = []
    for number, call in enumerate(value):
        place = f"{where}.tool_calls.{number}"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type", "function") != "function":
            raise _error(place, "expected {'id', 'type': 'function', 'function': {'name', 'arguments'}}")
        name, call_id = function.get("name"), call.get("id", "")
        if not isinstance(name, str) or not name or not isinstance(call_id, str):
            raise _error(place, "function.name and id must be text")
        calls.append((call_id, name, arguments_from_json(function.get("arguments"), place)))
    return tuple(calls)


def arguments_from_json(text: Any, where: str) -> dict[str, Any]:
    """The arguments of a call, which the API writes as a string of JSON.

    >>> arguments_from_json('{"a": 1}', "call")
    {'a': 1}
    """
    try:
        arguments = read_json(text) if isinstance(text, str) and text.strip() else text
    except ValueError as error:
        raise _error(where, f"function.arguments is {error}") from None
    if arguments in ("", None):
        return {}
    if not isinstance(arguments, dict):
        raise _error(where, f"function.arguments must be a JSON object in a string, found {arguments!r:.60}")
    return arguments


def tools_from_openai(tools: Sequence[Any]) -> tuple[ToolSchema, ...]:
    """The tools of a request. `strict` is dropped: arguments are what the model writes. A tool without parameters gets
    an empty schema of them, which is what their absence means."""
    schemas: list[ToolSchema] = []
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict):
            raise ApiError(
                f"tools.{index}: only tools of type 'function' are supported, found {tool!r:.80}", param="tools"
            )
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ApiError(f"tools.{index}: the name must match {_NAME.pattern}, found {name!r:.80}", param="tools")
        if not isinstance(function.get("description") or "", str):
            raise ApiError(f"tools.{index}: the description must be text", param="tools")
        if not isinstance(function.get("parameters") or {}, dict):
            raise ApiError(f"tools.{index}: parameters must be a JSON schema (an object)", param="tools")
        fields = {key: value for key, value in function.items() if key != "strict" and value is not None}
        fields.setdefault("parameters", {"type": "object", "properties": {}})  # chat templates expect them
        schemas.append({"type": "function", "function": fields})
    names = [schema["function"]["name"] for schema in schemas]
    if len(set(names)) < len(names):
        raise ApiError("tools: two tools have the same name", param="tools")
    return tuple(schemas)


def tool_calls_to_openai(calls: Iterable[ToolCall], *, keep_ids: bool = False) -> list[dict[str, Any]]:
    """Calls as a response shows them: arguments as a string of JSON, and random ids of nine letters and digits unless
    `keep_ids`."""
    return [
        {
            "id": call.call_id if keep_ids else f"c{secrets.token_hex(4)}",
            "type": "function",
            "function": {"name": call.name, "arguments": write_json(dict(call.arguments))},
        }
        for call in calls
    ]


def _error(where: str, what: str) -> ApiError:
    return ApiError(f"{where}: {what}", param="messages")
