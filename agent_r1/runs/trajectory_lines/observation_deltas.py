"""Observations of a recorded trajectory, each without what it repeats of the one before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1.images import compact_ids
from agent_r1.types import common_prefix

_FORMS = ("messages", "text", "token_ids")
NOTHING_SEEN: Mapping[str, Any] = {"messages": None, "text": None, "images": [], "tools": None}
"""What stands before the first observation."""


def observation_delta(before: Mapping[str, Any], seen: Mapping[str, Any], prompt_ids: Sequence[int]) -> dict[str, Any]:
    """An observation, without what it repeats of the one before and of its own prompt."""
    messages, text, images = seen["messages"] or [], seen["text"] or "", seen["images"]
    token_ids = seen["token_ids"]
    shared_messages = common_prefix(before["messages"] or [], messages)
    shared_text = common_prefix(before["text"] or "", text)
    shared_images = common_prefix(before["images"], images)
    return {
        "form": next(form for form in _FORMS if seen[form] is not None),
        "shared_messages": shared_messages,
        "messages": messages[shared_messages:],
        "shared_text": shared_text,
        "prompt_text": text[shared_text:],
        "token_ids": None if token_ids is None or token_ids == compact_ids(prompt_ids) else token_ids,
        "shared_images": shared_images,
        "images": images[shared_images:],
        "tools": "same" if seen["tools"] == before["tools"] else seen["tools"],
        "anchor": seen["anchor"],
        "privileged": seen["privileged"],
    }


def whole_observation(
    before: Mapping[str, Any], entry: Mapping[str, Any], prompt_ids: tuple[int, ...]
) -> dict[str, Any]:
    """The observation of an entry, in the form of `observation_to_json`."""
    messages = [*(before["messages"] or [])[: entry["shared_messages"]], *entry["messages"]]
    # Records of earlier versions have no form: without messages, the prompt is its token ids.
    form = entry.get("form") or ("messages" if messages else "token_ids")
    text = (before["text"] or "")[: entry.get("shared_text", 0)] + entry.get("prompt_text", "")
    token_ids = entry.get("token_ids")
    return {
        "messages": messages if form == "messages" else None,
        "text": text if form == "text" else None,
        "token_ids": list(prompt_ids if token_ids is None else token_ids) if form == "token_ids" else None,
        "images": [*before["images"][: entry.get("shared_images", 0)], *entry.get("images", ())],
        "tools": before["tools"] or [] if entry["tools"] == "same" else entry["tools"],
        "anchor": entry["anchor"],
        "privileged": entry["privileged"],
    }
