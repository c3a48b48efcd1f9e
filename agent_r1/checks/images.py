"""Checks of images: the model sees, its template shows them in every role, and they fit context and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from agent_r1.chat import ChatRenderer
from agent_r1.errors import AgentR1Error, ChatTemplateError, ImageError
from agent_r1.findings import Finding
from agent_r1.images import FAMILIES, is_image_id, normal_observation, pictures_in, read_picture
from agent_r1.types import Observation, Task, media_in

_SHOWN = 5
_MARKS = ("<image>", "<|image_pad|>")
"""Placeholders that rows of other programs have in their text."""


def has_images(observation: Observation) -> bool:
    """Whether an observation has images in any form."""
    return bool(observation.images) or "image" in media_in(observation.messages or ())


def image_findings(
    renderer: ChatRenderer,
    shown: Sequence[tuple[Task, Observation]],
    *,
    context: int,
    max_images: int | None,
) -> list[Finding]:
    """What is wrong with the images of the rows' first prompts."""
    with_images = [(task, observation) for task, observation in shown if has_images(observation)]
    if with_images and not renderer.sees_images:
        observed = f"{len(with_images)} of {len(shown)} rows have images, and the model reads text only"
        fix = f"Choose a model of a family that sees ({', '.join(FAMILIES)}), or leave the images out"
        return [Finding(rule="the model sees images", observed=observed, fix=fix)]
    unread, hidden, long, many = list[str](), list[str](), list[str](), list[str]()
    for task, observation in with_images:
        try:
            normal = normal_observation(observation)
            ids = renderer.render(normal, trusted=task.trusted).token_ids
        except ImageError as error:
            unread.append(f"'{task.task_id}' ({error})")
            continue
        except ChatTemplateError as error:
            hidden.append(f"'{task.task_id}' ({error})")
            continue
        num_images = sum(1 for _ in pictures_in(normal.messages or ()))
        if len(ids) >= context:
            of_images = sum(map(is_image_id, ids))
            long.append(f"'{task.task_id}' ({len(ids)} of {context} tokens, {of_images} of {num_images} images)")
        if max_images is not None and num_images > max_images:
            many.append(f"'{task.task_id}' ({num_images})")
    fewer = f"Raise rollout.max_images and rollout.max_episode_images, of which the smaller is {max_images}"
    return [
        *_finding("every image is within the limits", unread, "Make the images smaller, or raise the limits"),
        *_finding("the template shows every image", hidden, "Give the model a template that shows images there"),
        *_finding("every image fits the context", long, "Make the images smaller, or raise rollout.context_length"),
        *_finding("no row has more images than allowed", many, fewer),
        *_placeholders_in_text(renderer, shown),
    ]


def tool_image_findings(renderer: ChatRenderer, observation: Observation) -> list[Finding]:
    """Whether a tool may return an image: the template must show one in its answer. Nothing for a model of text."""
    if not renderer.sees_images or observation.messages is None or not observation.tools:
        return []
    name = observation.tools[0]["function"]["name"]
    dot = read_picture(np.zeros((8, 8, 3), dtype=np.uint8))
    call = {"id": "call00000", "type": "function", "function": {"name": name, "arguments": {}}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    content = [{"type": "text", "text": "Here:"}, {"type": "image", "image": dot}]
    answer = {"role": "tool", "name": name, "tool_call_id": "call00000", "content": content}
    next_observation = Observation(messages=(*observation.messages, turn, answer), tools=observation.tools)
    return _attempt(lambda: renderer.render(next_observation))


def _attempt(render: Callable[[], object]) -> list[Finding]:
    try:
        render()
    except ChatTemplateError as error:
        fix = "Nothing, when no tool returns images; else use a template that writes a placeholder for them"
        rule = "the template shows images of tools"
        return [Finding(rule=rule, observed=str(error), fix=fix, severity="warning")]
    except AgentR1Error:
        return []  # another check reports it
    return []


def _placeholders_in_text(renderer: ChatRenderer, shown: Sequence[tuple[Task, Observation]]) -> list[Finding]:
    """Rows with a placeholder in their text: it stands for no image, only an image itself does."""
    if renderer.processor is None:
        return []
    marks = {*_MARKS, renderer.processor.placeholder}
    named = [f"'{task.task_id}'" for task, observation in shown if any(mark in _text(observation) for mark in marks)]
    fix = "Give the image as a content part or in the row's images, and take the placeholder out of the text"
    return _finding("every placeholder stands for an image", named, fix)


def _text(observation: Observation) -> str:
    texts = list[str]()
    for message in observation.messages or ():
        content = message.get("content")
        parts = content if isinstance(content, list | tuple) else [{"text": content}]
        texts += [str(part["text"]) for part in parts if isinstance(part, dict) and part.get("text") is not None]
    return "\n".join(texts)


def _finding(rule: str, entries: Sequence[str], fix: str) -> list[Finding]:
    if not entries:
        return []
    more = f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
    return [Finding(rule=rule, observed=f"{len(entries)} rows: {', '.join(entries[:_SHOWN])}{more}", fix=fix)]
