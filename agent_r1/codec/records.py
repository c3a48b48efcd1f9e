"""Tasks, actions, observations and step results as JSON and back, exactly.

    >>> observation = Observation(token_ids=(1, 2))
    >>> observation_from_json(json.loads(json.dumps(observation_to_json(observation)))) == observation
    True

Images, in messages too, travel as base64: bytes as they are, pictures of Pillow as PNG. Arrays and numbers of numpy
become plain lists and numbers. What comes from the other side is checked: anything unexpected is a `WireError`.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agent_r1.codec.checks import WireError, each, flag, integers, mapping, number, optional, record, text
from agent_r1.types import Action, Message, Observation, StepResult, Task, ToolCall

Json = dict[str, Any]

_MAX_PIXELS = 64_000_000


def dumps(value: Any) -> bytes:
    """JSON text. Anything it cannot hold is refused by name."""
    return json.dumps(value, default=_plain).encode()


def loads(content: bytes) -> Json:
    """The object in a JSON text; `WireError` for anything else."""
    try:
        value = json.loads(content)
    except RecursionError:
        raise WireError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise WireError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise WireError(f"expected a JSON object, got {type(value).__name__}")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be sent as JSON; use numbers, text, lists and dicts")


def task_to_json(task: Task) -> Json:
    """A row."""
    return {
        "task_id": task.task_id,
        "prompt": _messages(task.prompt, _image_to_json),
        "agent_name": task.agent_name,
        "reward_model": task.reward_model,
        "env_kwargs": task.env_kwargs,
        "data_source": task.data_source,
        "extra_info": task.extra_info,
    }


def task_from_json(value: Any) -> Task:
    """The row again."""
    fields = {
        "task_id": text,
        "prompt": _received_messages,
        "agent_name": text,
        "reward_model": mapping,
        "env_kwargs": mapping,
        "data_source": text,
        "extra_info": mapping,
    }
    return Task(**record(value, "task", fields, ("task_id", "prompt")))


def action_to_json(action: Action) -> Json:
    """An action."""
    calls = [{"name": c.name, "arguments": c.arguments, "call_id": c.call_id} for c in action.tool_calls]
    return {
        "text": action.text,
        "content": action.content,
        "token_ids": action.token_ids,
        "tool_calls": calls,
        "parse_error": action.parse_error,
        "repairs": action.repairs,
        "final_answer": action.final_answer,
        "history_text": action.history_text,
    }


def action_from_json(value: Any) -> Action:
    """The action again."""
    fields = {
        "text": text,
        "content": text,
        "token_ids": integers,
        "tool_calls": each(_received_call),
        "parse_error": optional(text),
        "repairs": each(text),
        "final_answer": optional(text),
        "history_text": optional(text),
    }
    return Action(**record(value, "action", fields, ("text",)))


def _received_call(value: Any, where: str) -> ToolCall:
    fields = {"name": text, "arguments": mapping, "call_id": text}
    return ToolCall(**record(value, where, fields, ("name", "arguments")))


def observation_to_json(observation: Observation) -> Json:
    """An observation."""
    return {
        "messages": None if observation.messages is None else _messages(observation.messages, _image_to_json),
        "text": observation.text,
        "token_ids": observation.token_ids,
        "images": [_image_to_json(image) for image in observation.images],
        "tools": list(observation.tools),
        "anchor": observation.anchor,
        "privileged": observation.privileged,
    }


def observation_from_json(value: Any) -> Observation:
    """The observation again."""
    fields = {
        "messages": optional(_received_messages),
        "text": optional(text),
        "token_ids": optional(integers),
        "images": each(_received_image),
        "tools": each(mapping),
        "anchor": optional(text),
        "privileged": optional(text),
    }
    found = record(value, "observation", fields, ())
    try:
        return Observation(**found)
    except ValueError as error:
        raise WireError(str(error)) from None


def result_to_json(result: StepResult) -> Json:
    """What a step returned."""
    seen = result.observation
    return {
        "observation": None if seen is None else observation_to_json(seen),
        "reward": result.reward,
        "done": result.done,
        "truncated": result.truncated,
        "info": result.info,
    }


def result_from_json(value: Any) -> StepResult:
    """The step result again."""
    fields = {
        "observation": lambda given, where: None if given is None else observation_from_json(given),
        "reward": number,
        "done": flag,
        "truncated": flag,
        "info": mapping,
    }
    return StepResult(**record(value, "result", fields, ("observation",)))


def _received_messages(value: Any, where: str) -> tuple[Message, ...]:
    messages = each(mapping)(value, where)
    for place, message in enumerate(messages):
        if isinstance(message.get("content"), list):
            each(mapping)(message["content"], f"{where}[{place}].content")
    return tuple(_messages(messages, lambda image: _received_image(image, f"an image of {where}")))


def _messages(messages: Iterable[Message], convert: Callable[[Any], Any]) -> list[Message]:
    """The messages with `convert` done to the images among their content parts."""
    return [
        {**message, "content": [_part(part, convert) for part in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def _part(part: Json, convert: Callable[[Any], Any]) -> Json:
    return {**part, "image": convert(part["image"])} if "image" in part else part


def _image_to_json(image: Any) -> Any:
    if isinstance(image, bytes):
        return {"bytes": base64.b64encode(image).decode()}
    if hasattr(image, "save") and hasattr(image, "getbands"):
        file = io.BytesIO()
        image.save(file, format="PNG")
        return {"png": base64.b64encode(file.getvalue()).decode()}
    return {"value": image}


def _received_image(value: Any, where: str) -> Any:
    """An image again: what `_image_to_json` made of it."""
    kinds = {"value", "bytes", "png"}
    if not isinstance(value, dict) or len(value) != 1 or not value.keys() <= kinds:
        raise WireError(f"{where} must be an object with one of {', '.join(sorted(kinds))}")
    [(kind, content)] = value.items()
    if kind == "value":
        return content
    try:
        data = base64.b64decode(text(content, where), validate=True)
    except ValueError as error:
        raise WireError(f"{where} is not base64: {error}") from None
    return data if kind == "bytes" else _picture(data, where)


def _picture(data: bytes, where: str) -> Any:
    from PIL import Image

    with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
        try:
            picture = Image.open(io.BytesIO(data), formats=["PNG"])
            if picture.width * picture.height > _MAX_PIXELS:
                raise WireError(f"{where} has {picture.width} x {picture.height} pixels; at most {_MAX_PIXELS}")
            picture.load()
        except WireError:
            raise
        except (
            OSError,
            SyntaxError,
            ValueError,
            EOFError,
            Image.DecompressionBombError,
            struct.error,
            zlib.error,
        ) as error:
            raise WireError(f"{where} is not a PNG that can be read: {error}") from None
    return picture
