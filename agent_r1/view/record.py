"""One trajectory as the page shows it: steps with their messages, actions, results, rewards and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1.images import MAX_IMAGE_TOKENS, is_content_hash
from agent_r1.types import StepCredit
from agent_r1.view.index.scan import message_text
from agent_r1.view.pictures import references_in
from agent_r1.view.tokens import TokenTexts, writer_of, writers_of

MAX_TOKENS = 50_000
"""Tokens of one answer; later steps have none, and `tokens_cut` says how many."""
_ACTION_KEYS = ("text", "content", "tool_calls", "parse_error", "repairs", "final_answer")


def whole_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A decoded line, ready to be shown, without tokens."""
    steps = record["steps"]
    return {
        "prompt": record.get("prompt") or [],
        "tool_schemas": next((step["tools"] for step in steps if isinstance(step.get("tools"), list)), []),
        "steps": [_step(steps, index) for index in range(len(steps))],
        "reward_parts": record.get("reward_parts") or {},
        "metrics": record.get("metrics") or {},
        "vote": record.get("vote") or "",
        "error": record.get("error"),
        "failed_attempts": record.get("failed_attempts") or [],
    }


def light_steps(record: Mapping[str, Any], credit: Sequence[StepCredit] | None = None) -> list[dict[str, Any]]:
    """The steps for a comparison of several trajectories: what was done, what came back and what it earned."""
    steps = record["steps"]
    return [
        {
            **_action(step),
            "results": [_result(message) for message in _results(steps, index)],
            "reward": number(step.get("reward")),
            "advantage": number(credit[index].advantage) if credit and index < len(credit) else None,
        }
        for index, step in enumerate(steps)
    ]


def add_tokens(
    shown: dict[str, Any],
    record: Mapping[str, Any],
    tokenizer: TokenTexts | None,
    credit: Sequence[StepCredit] | None = None,
) -> None:
    """Give each shown step its new tokens, and what the learner made of those that were sampled."""
    tokens_left = MAX_TOKENS
    for index, (view, step) in enumerate(zip(shown["steps"], record["steps"], strict=False)):
        learned = credit[index] if credit is not None and index < len(credit) else None
        if learned is not None:
            view["advantage"], view["value"] = number(learned.advantage), number(learned.value)
            view["return"], view["credited_reward"] = number(learned.observed_return), number(learned.reward)
        size = len(_prompt_entries(step)) + len(_ids(step.get("action_ids")))
        if size > tokens_left:
            view["tokens_cut"] = size
            continue
        tokens_left -= size
        view["tokens"] = [
            *_prompt_tokens(step, tokenizer, is_rewritten=view["rewritten"]),
            *_action_tokens(step, tokenizer, learned),
        ]


def _prompt_tokens(
    step: Mapping[str, Any], tokenizer: TokenTexts | None, *, is_rewritten: bool
) -> list[dict[str, Any]]:
    entries = _prompt_entries(step)
    messages = _messages_in_new_ids(step, is_rewritten)
    texts: Sequence[str | None] = [None] * len(entries)
    writers = texts
    if tokenizer is not None:
        split = tokenizer.split([-1 if isinstance(entry, dict) else entry for entry in entries])
        texts = known = ["" if isinstance(entry, dict) else text for entry, text in zip(entries, split, strict=True)]
        writers = writers_of(known, messages)
    owners = {reference["picture"]: writer_of(message) for message in messages for reference in references_in(message)}
    return [
        _image_token(entry, owners) if isinstance(entry, dict) else _token(entry, text, writer)
        for entry, text, writer in zip(entries, texts, writers, strict=True)
    ]


def _prompt_entries(step: Mapping[str, Any]) -> list[Any]:
    """The ids of a prompt, and its runs of image tokens: `{"image", "tokens", "picture"}`."""
    value = step.get("prompt_ids")
    return [entry for entry in value if type(entry) is int or _is_run(entry)] if isinstance(value, list) else []


def _is_run(entry: Any) -> bool:
    return isinstance(entry, dict) and type(entry.get("tokens")) is int and 0 < entry["tokens"] <= MAX_IMAGE_TOKENS


def _image_token(entry: Mapping[str, Any], owners: Mapping[str, str]) -> dict[str, Any]:
    """The tokens of an image as one."""
    picture = entry.get("picture") if is_content_hash(entry.get("picture")) else None
    token = _token(str(entry.get("image"))[:20], f"[image: {entry['tokens']} tokens]", owners.get(str(picture), "user"))
    return token | {"image": {"tokens": entry["tokens"], "picture": picture}}


def _action_tokens(
    step: Mapping[str, Any], tokenizer: TokenTexts | None, learned: StepCredit | None
) -> list[dict[str, Any]]:
    ids = _ids(step.get("action_ids"))
    texts = [None] * len(ids) if tokenizer is None else tokenizer.split(ids)
    logprobs = step.get("rollout_logprobs")
    columns = {"logprob": logprobs}
    if learned is not None:
        columns |= {
            "entropy": learned.entropies,
            "advantage": learned.advantages,
            "ratio": learned.ratios,
            "value": learned.values,
        }
    return [
        _token(token, text, "model", is_action=True) | {name: _at(column, i) for name, column in columns.items()}
        for i, (token, text) in enumerate(zip(ids, texts, strict=True))
    ]


def number(value: Any) -> float | int | None:
    """A finite number, else None; an integer of hundreds of digits is none."""
    return value if isinstance(value, int | float) and abs(value) < 1e300 else None


def _step(steps: Sequence[Mapping[str, Any]], index: int) -> dict[str, Any]:
    step = steps[index]
    shared = _count(step.get("shared_messages"))
    messages = _list(step.get("messages"))
    before = _num_messages(steps[index - 1]) if index else 0
    return {
        "index": index,
        "messages": messages,
        "num_messages": shared + len(messages),
        "rewritten": shared < before,
        "prompt_text": step.get("prompt_text") or None,
        **_action(step),
        "results": [_result(message) for message in _results(steps, index)],
        "reward": number(step.get("reward")),
        "done": bool(step.get("done")),
        "advantage": None,
        "info": step.get("info") or {},
        "timings": step.get("timings") or {},
        "policy_versions": sorted(set(_ids(step.get("policy_versions")))),
        "num_prompt_tokens": _count(step.get("shared")) + _num_tokens(step),
        "num_action_tokens": len(_ids(step.get("action_ids"))),
        "tokens": [],
    }


def _action(step: Mapping[str, Any]) -> dict[str, Any]:
    lists = {name: _list(step.get(name)) for name in ("tool_calls", "repairs")}
    return {name: step.get(name) for name in _ACTION_KEYS} | lists


def _result(message: Mapping[str, Any]) -> dict[str, Any]:
    pictures = references_in(message)
    return {
        "call_id": str(message.get("tool_call_id") or ""),
        "name": str(message.get("name") or ""),
        "role": str(message.get("role") or ""),
        "content": message_text(message),
        **({"pictures": pictures} if pictures else {}),
    }


def _results(steps: Sequence[Mapping[str, Any]], index: int) -> list[dict[str, Any]]:
    """What the environment said after a step: the messages that the next step adds after the action."""
    if index + 1 >= len(steps):
        return []
    messages = _objects(steps[index + 1].get("messages"))
    ends = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    return messages[ends[-1] + 1 if ends else 0 :]


def _messages_in_new_ids(step: Mapping[str, Any], is_rewritten: bool) -> list[dict[str, Any]]:
    """The messages whose text is among the new ids of a prompt: an action that follows its prompt is already there."""
    messages = _objects(step.get("messages"))
    return messages if is_rewritten else [message for message in messages if message.get("role") != "assistant"]


def _token(token: int | str, text: str | None, writer: str | None, is_action: bool = False) -> dict[str, Any]:
    return {
        "id": token,
        "text": text,
        "logprob": None,
        "entropy": None,
        "advantage": None,
        "ratio": None,
        "writer": writer,
        "action": is_action,
    }


def _num_tokens(step: Mapping[str, Any]) -> int:
    return sum(entry["tokens"] if isinstance(entry, dict) else 1 for entry in _prompt_entries(step))


def _num_messages(step: Mapping[str, Any]) -> int:
    return _count(step.get("shared_messages")) + len(_list(step.get("messages")))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _objects(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _ids(value: Any) -> list[int]:
    return [entry for entry in value if type(entry) is int] if isinstance(value, list) else []


def _count(value: Any) -> int:
    return value if type(value) is int else 0


def _at(values: Any, index: int) -> float | None:
    return number(values[index]) if isinstance(values, list | tuple) and index < len(values) else None
