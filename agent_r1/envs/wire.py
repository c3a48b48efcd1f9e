"""Tasks, actions, observations and step results as JSON and back, exactly.

    >>> observation = Observation(token_ids=(1, 2))
    >>> observation_from_json(observation_to_json(observation)) == observation
    True

Images, in messages too, travel as base64: bytes as they are, pictures of Pillow as PNG. Arrays and numbers of numpy
become plain lists and numbers.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agent_r1.types import Action, Message, Observation, StepResult, Task, ToolCall

Json = dict[str, Any]


def dumps(value: Any) -> bytes:
    """JSON text. Anything it cannot hold is refused by name."""
    return json.dumps(value, default=_plain).encode()


def loads(text: bytes) -> Json:
    """The object in a JSON text; ValueError for anything else."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
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


def task_from_json(value: Json) -> Task:
    """The row again."""
    return Task(**{**value, "prompt": tuple(_messages(value["prompt"], _image_from_json))})


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


def action_from_json(value: Json) -> Action:
    """The action again."""
    calls = tuple(ToolCall(**call) for call in value["tool_calls"])
    tuples = {name: tuple(value[name]) for name in ("token_ids", "repairs")}
    return Action(**{**value, **tuples, "tool_calls": calls})


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


def observation_from_json(value: Json) -> Observation:
    """The observation again."""
    sequences = {name: None if value[name] is None else tuple(value[name]) for name in ("token_ids", "tools")}
    messages = None if value["messages"] is None else tuple(_messages(value["messages"], _image_from_json))
    images = tuple(_image_from_json(image) for image in value["images"])
    return Observation(**{**value, **sequences, "messages": messages, "images": images})


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


def result_from_json(value: Json) -> StepResult:
    """The step result again."""
    seen = value["observation"]
    return StepResult(**{**value, "observation": None if seen is None else observation_from_json(seen)})


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


def _image_from_json(value: Json) -> Any:
    [(kind, content)] = value.items()
    if kind == "value":
        return content
    data = base64.b64decode(content)
    if kind == "bytes":
        return data
    from PIL import Image

    picture = Image.open(io.BytesIO(data))
    picture.load()
    return picture
