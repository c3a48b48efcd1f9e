"""Read trajectory lines for the index: what is listed, filtered and searched, without decoding the rest.

Most bytes of a line are token ids, log-probs, tool schemas and notes. `shorten` cuts them out before the line is
decoded. A quote inside a JSON string is escaped, so text never looks like one of the keys at which it cuts. A key of a
tool call or of a schema may: a cut that ends at another depth than it begins leaves brackets that do not match, and
then the whole line is decoded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from agent_r1.types import StopReason

MAX_LINE_BYTES = 256 << 20
"""A longer line is counted as corrupt."""
MAX_NAME_CHARS = 300
"""Task ids, data sources and names of tools are cut to this length in the index."""
MAX_SEARCH_CHARS = 100_000
"""How much text of a trajectory is searchable."""
PREVIEW_CHARS = 240
_MAX_TOOLS = 50
_CHUNK_BYTES = 4 << 20
_MAX_INTEGER = 2**53


class _Marks(NamedTuple):
    """Where a line is cut, as it is written with spaces; `compact` without."""

    head_array: bytes = b'"next_prompt_ids": ['
    prompt_ids: bytes = b'"prompt_ids": ['
    observation_rest: bytes = b'"token_ids": '
    observation_end: bytes = b', "anchor": '
    action_ids: bytes = b'"action_ids": ['
    step_end: bytes = b', "timings": {'

    @classmethod
    def compact(cls) -> _Marks:
        return cls(*(mark.replace(b" ", b"") for mark in cls()))


_SPACED, _COMPACT = _Marks(), _Marks.compact()


def _loader() -> Callable[[bytes], Any]:
    try:
        from orjson import loads
    except ImportError:
        return json.loads
    return loads


_fast_loads = _loader()


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One line of the index."""

    task_id: str
    """The row it came from."""
    policy_step: int
    """The version of the weights when it was collected."""
    group_id: int
    """Equal for the members of a group."""
    member: int
    """-1 is the greedy one."""
    reward: float | None
    """The outcome reward."""
    process_reward: float | None
    """The sum of the steps' rewards."""
    success: float | None
    """As `Trajectory.success`."""
    stop_reason: str
    """Why it ended."""
    failed: bool
    """Whether it failed for a reason outside the policy."""
    retries: int
    """Failed attempts before this one."""
    num_steps: int
    """How many steps it has."""
    tool_calls: int
    """Well-formed calls."""
    tools: tuple[str, ...]
    """The tools it called, sorted."""
    tokens: int
    """Sampled tokens."""
    data_source: str
    """The row's data source."""
    repairs: int
    """Calls that were malformed and repaired."""
    parse_errors: int
    """Malformed actions."""
    prompt: str
    """The text of the first observation."""
    preview: str
    """The beginning of the last action."""
    text: str
    """What is searchable besides the prompt."""


def lines_of(file: BinaryIO) -> Iterator[tuple[int, int, bytes | None]]:
    """Each line of a file as (offset, length, content); the content of a line that is too long is None. Blank lines are
    left out."""
    offset, pending, skipped = 0, b"", 0
    while chunk := file.read(_CHUNK_BYTES):
        lines = (pending + chunk).split(b"\n")
        pending = lines.pop()
        for line in lines:
            if skipped or line.strip():
                yield offset, skipped + len(line), None if skipped else line
            offset += skipped + len(line) + 1
            skipped = 0
        if skipped or len(pending) > MAX_LINE_BYTES:
            skipped, pending = skipped + len(pending), b""
    if skipped or pending.strip():
        yield offset, skipped + len(pending), None if skipped else pending


def decode(line: bytes) -> dict[str, Any]:
    """The record of a whole line; `ValueError` when it is not one."""
    try:
        record = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return _check_record(record)


def decode_short(line: bytes) -> dict[str, Any]:
    """The record of a line, with numbers in place of the token arrays where that is possible."""
    try:
        return _check_record(_fast_loads(shorten(line)))
    except (ValueError, RecursionError):  # lone surrogates, NaN; keys of a tool call that look like ours
        return decode(line)


def shorten(line: bytes) -> bytes:
    """A line with the length in place of each array of token ids, without log-probs, images, tools and notes.

    >>> shorten(b'{"steps": [{"prompt_ids": [1, 2, 3], "text": "x", "action_ids": [], "reward": 1, "timings": {}}]}')
    b'{"steps": [{"prompt_ids": 3, "text": "x", "action_ids": 0, "timings": {}}]}'
    """
    parts: list[bytes] = []
    marks = _SPACED if b'": ' in line[:100] else _COMPACT
    position = _cut_array(line, 0, marks.head_array, parts)
    while True:
        begin = position
        position = _cut_array(line, position, marks.prompt_ids, parts)
        position = _cut_between(line, position, marks.observation_rest, marks.observation_end, parts)
        start = position
        position = _cut_array(line, position, marks.action_ids, parts)
        if position == start:
            break
        end = line.find(marks.step_end, position)
        position = position if end < 0 else end
        if position == begin:
            break
    parts.append(line[position:])
    return b"".join(parts)


def _cut_array(line: bytes, position: int, key: bytes, parts: list[bytes]) -> int:
    """Copy up to the next array of this key, and its length; returns where it ends, or `position` without one."""
    place = line.find(key, position)
    start = place + len(key)
    end = line.find(b"]", start) if place >= 0 else -1
    if end < 0:
        return position
    count = line.count(b",", start, end) + 1 if end > start else 0
    parts += [line[position : start - 1], b"%d" % count]
    return end + 1


def _cut_between(line: bytes, position: int, key: bytes, end_mark: bytes, parts: list[bytes]) -> int:
    """Copy up to the value of the next such key, and null; returns where the mark begins, or `position` without one."""
    place = line.find(key, position)
    end = line.find(end_mark, place) if place >= 0 else -1
    if end < 0:
        return position
    parts += [line[position : place + len(key)], b"null"]
    return end


def _check_record(record: Any) -> dict[str, Any]:
    if not isinstance(record, dict) or not isinstance(record.get("steps"), list):
        raise ValueError("not a trajectory: an object with steps")
    if not all(isinstance(step, dict) for step in record["steps"]):
        raise ValueError("not a trajectory: a step is not an object")
    return record


def entry_of(record: Mapping[str, Any]) -> Entry:
    """The index entry of a decoded record. Fields that are missing or odd get neutral values: the record is shown as it
    is anyway."""
    steps = record["steps"]
    calls = [call for step in steps for call in _objects(step.get("tool_calls"))]
    reward = _number(record.get("outcome_reward"))
    parts = record.get("reward_parts")
    success = _number(parts.get("success")) if isinstance(parts, dict) and "success" in parts else None
    reason = _name(record.get("stop_reason"))
    return Entry(
        task_id=_name(record.get("task_id")),
        policy_step=_integer(record.get("policy_step")),
        group_id=_integer(record.get("group_id")),
        member=_integer(record.get("member")),
        reward=reward,
        process_reward=_number(record.get("process_reward")),
        success=float(reward is not None and reward >= 1.0) if success is None else success,
        stop_reason=reason,
        failed=reason in _REASONS and StopReason(reason).is_failure,
        retries=_integer(record.get("num_retries")),
        num_steps=len(steps),
        tool_calls=len(calls),
        tools=tuple(sorted({_name(call.get("name")) for call in calls}))[:_MAX_TOOLS],
        tokens=sum(_length(step.get("action_ids")) for step in steps),
        data_source=_name(record.get("data_source")),
        repairs=sum(_length(step.get("repairs")) for step in steps),
        parse_errors=sum(step.get("parse_error") is not None for step in steps),
        prompt=clean(_prompt(record))[:MAX_SEARCH_CHARS],
        preview=clean(_last_text(steps)[: 2 * PREVIEW_CHARS])[:PREVIEW_CHARS],
        text=clean(_searchable(record)),
    )


_REASONS = {str(reason) for reason in StopReason}


def message_text(message: Any) -> str:
    """The text of a chat message.

    >>> message_text({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]})
    'a'
    """
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in _objects(content)]
    return "\n".join(text for text in texts if isinstance(text, str))


def clean(text: str) -> str:
    """Text that SQLite can hold: without NUL and without lone surrogates.

    >>> clean("a\\x00b\\ud800")
    'a\\ufffdb\\ufffd'
    """
    if text.isascii():
        return text.replace("\0", "\ufffd") if "\0" in text else text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")


def _prompt(record: Mapping[str, Any]) -> str:
    first = record["steps"][0] if record["steps"] else {}
    messages = _objects(first.get("messages")) or _objects(record.get("prompt"))
    text = first.get("prompt_text")
    return "\n".join([*map(message_text, messages), *([text] if isinstance(text, str) and text else [])])


def _searchable(record: Mapping[str, Any]) -> str:
    """Actions, what the environment said after them, and errors."""
    texts: list[str] = []
    for index, step in enumerate(record["steps"]):
        if index:  # the first observation is the prompt; assistant messages repeat actions
            texts += [message_text(m) for m in _objects(step.get("messages")) if m.get("role") != "assistant"]
            texts.append(step.get("prompt_text") or "")
        texts += [step.get("text") or "", step.get("parse_error") or ""]
    texts.append(record.get("error") or "")
    texts += [attempt.get("error") or "" for attempt in _objects(record.get("failed_attempts"))]
    return "\n".join(text for text in texts if isinstance(text, str) and text)[:MAX_SEARCH_CHARS]


def _last_text(steps: list[dict[str, Any]]) -> str:
    text = steps[-1].get("text") if steps else ""
    return text if isinstance(text, str) else ""


def _objects(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _length(value: Any) -> int:
    """The length of an array, or what `shorten` put in its place."""
    return len(value) if isinstance(value, list) else _integer(value)


def _integer(value: Any) -> int:
    return value if type(value) is int and abs(value) <= _MAX_INTEGER else 0


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or (isinstance(value, int) and abs(value) > _MAX_INTEGER):
        return None
    return float(value) if math.isfinite(value) else None


def _name(value: Any) -> str:
    return clean(value[: 2 * MAX_NAME_CHARS])[:MAX_NAME_CHARS] if isinstance(value, str) else ""
