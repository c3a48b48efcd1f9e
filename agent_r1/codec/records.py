"""Tasks, actions, observations and step results as JSON and back, exactly.

    >>> observation = Observation(token_ids=(1, 2))
    >>> observation_from_json(json.loads(json.dumps(observation_to_json(observation)))) == observation
    True

Images, also in messages, are encoded as base64: bytes unchanged, pictures and Pillow images as PNG, which are received
as `Picture`s. Image tokens are written in runs. Numpy arrays and numbers become lists and numbers. Received JSON is
checked: anything unexpected is a `WireError`.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agent_r1.codec.checks import WireError, each, flag, integer, integers, mapping, number, optional, record, text
from agent_r1.errors import ImageError
from agent_r1.images import Picture, compact_ids, expand_ids, read_picture
from agent_r1.types import Action, Message, Observation, StepResult, Task, ToolCall

Json = dict[str, Any]

WriteImage = Callable[[Any], Any]
"""Turns an image into JSON."""
ReadImage = Callable[[Any, str], Any]
"""The image of what `WriteImage` gave; the second argument says where it stands."""


def dumps(value: Any) -> bytes:
    """JSON text. A value that JSON cannot hold is a TypeError that names its type."""
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
    """A task as JSON."""
    return {
        "task_id": task.task_id,
        "prompt": messages_to_json(task.prompt),
        "agent_name": task.agent_name,
        "reward_model": task.reward_model,
        "env_kwargs": task.env_kwargs,
        "data_source": task.data_source,
        "extra_info": task.extra_info,
        "difficulty": task.difficulty,
        "control_tokens": task.control_tokens,
    }


def task_from_json(value: Any) -> Task:
    """The task of `task_to_json`."""
    fields = {
        "task_id": text,
        "prompt": lambda entry, where: _received_messages(entry, where, image_from_json),
        "agent_name": text,
        "reward_model": mapping,
        "env_kwargs": mapping,
        "data_source": text,
        "extra_info": mapping,
        "difficulty": optional(integer),
        "control_tokens": flag,
    }
    return Task(**record(value, "task", fields, ("task_id", "prompt")))


def action_to_json(action: Action) -> Json:
    """An action as JSON."""
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
    """The action of `action_to_json`."""
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


def observation_to_json(observation: Observation, write_image: WriteImage | None = None) -> Json:
    """An observation as JSON; `write_image` replaces `image_to_json`."""
    write_image = write_image or image_to_json
    ids = observation.token_ids
    return {
        "messages": None if observation.messages is None else messages_to_json(observation.messages, write_image),
        "text": observation.text,
        "token_ids": None if ids is None else compact_ids(ids),
        "images": [write_image(image) for image in observation.images],
        "tools": list(observation.tools),
        "anchor": observation.anchor,
        "privileged": observation.privileged,
    }


def observation_from_json(value: Any, read_image: ReadImage | None = None) -> Observation:
    """The observation of `observation_to_json`; `read_image` replaces `image_from_json`."""
    image = read_image or image_from_json
    fields = {
        "messages": optional(lambda entry, where: _received_messages(entry, where, image)),
        "text": optional(text),
        "token_ids": optional(_received_ids),
        "images": each(image),
        "tools": each(mapping),
        "anchor": optional(text),
        "privileged": optional(text),
    }
    entries = record(value, "observation", fields, ())
    try:
        return Observation(**entries)
    except ValueError as error:
        raise WireError(str(error)) from None


def result_to_json(result: StepResult) -> Json:
    """A step result as JSON."""
    observation = result.observation
    return {
        "observation": None if observation is None else observation_to_json(observation),
        "reward": result.reward,
        "done": result.done,
        "truncated": result.truncated,
        "info": result.info,
        "answer": result.answer,
    }


def result_from_json(value: Any) -> StepResult:
    """The step result of `result_to_json`."""
    fields = {
        "observation": lambda entry, where: None if entry is None else observation_from_json(entry),
        "reward": number,
        "done": flag,
        "truncated": flag,
        "info": mapping,
        "answer": optional(text),
    }
    return StepResult(**record(value, "result", fields, ("observation",)))


def _received_ids(value: Any, where: str) -> tuple[int, ...]:
    try:
        value = list(expand_ids(value)) if isinstance(value, list) else value
    except ValueError as error:
        raise WireError(f"{where}: {error}") from None
    return integers(value, where)


def _received_messages(value: Any, where: str, read_image: ReadImage) -> tuple[Message, ...]:
    messages = each(mapping)(value, where)
    for index, message in enumerate(messages):
        if isinstance(message.get("content"), list):
            each(mapping)(message["content"], f"{where}[{index}].content")
    return tuple(messages_to_json(messages, lambda image: read_image(image, f"an image of {where}")))


def messages_to_json(messages: Iterable[Message], write_image: WriteImage | None = None) -> list[Message]:
    """The messages with the images among their content parts as JSON; `write_image` replaces `image_to_json`."""
    convert = write_image or image_to_json
    return [
        {**message, "content": [_part(part, convert) for part in message["content"]]}
        if isinstance(message.get("content"), list | tuple)
        else message
        for message in messages
    ]


def _part(part: Any, convert: WriteImage) -> Any:
    return {**part, "image": convert(part["image"])} if isinstance(part, Mapping) and "image" in part else part


def image_to_json(image: Any) -> Any:
    """An image as JSON: `{"png"}` for a picture, `{"bytes"}`, or `{"value"}` for what is JSON already."""
    if isinstance(image, bytes):
        return {"bytes": base64.b64encode(image).decode()}
    if isinstance(image, Picture):
        return {"png": base64.b64encode(image.png()).decode()}
    if hasattr(image, "save") and hasattr(image, "getbands"):
        file = io.BytesIO()
        image.save(file, format="PNG")
        return {"png": base64.b64encode(file.getvalue()).decode()}
    return {"value": image}


def image_from_json(value: Any, where: str) -> Any:
    """The image of `image_to_json`; a PNG becomes a `Picture`."""
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
    if kind == "bytes":
        return data
    try:
        return read_picture(data)
    except ImageError as error:
        raise WireError(f"{where} is not a PNG that can be read: {error}") from None
