"""One trajectory as the page shows it: steps with their messages, actions, results, rewards and tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1.view.index.scan import message_text
from agent_r1.view.tokens import TokenTexts, writers_of

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


def light_steps(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The steps for a comparison of several trajectories: what was done, what came back and what it earned."""
    steps = record["steps"]
    return [
        {
            **_action(step),
            "results": [_result(message) for message in _results(steps, index)],
            "reward": number(step.get("reward")),
            "advantage": None,
        }
        for index, step in enumerate(steps)
    ]


def add_tokens(
    shown: dict[str, Any],
    record: Mapping[str, Any],
    tokenizer: TokenTexts | None,
    credit: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Give each shown step its new tokens. `credit` has per step the entropies, advantages and ratios of its action."""
    left = MAX_TOKENS
    for index, (view, step) in enumerate(zip(shown["steps"], record["steps"], strict=False)):
        numbers = credit[index] if credit is not None and index < len(credit) else {}
        prompt, action = _ids(step.get("prompt_ids")), _ids(step.get("action_ids"))
        if len(prompt) + len(action) > left:
            view["tokens_cut"], view["tokens"] = len(prompt) + len(action), []
            continue
        left -= len(prompt) + len(action)
        texts = None if tokenizer is None else tokenizer.split(prompt)
        writers = None if texts is None else writers_of(texts, _rendered_here(step, view["rewritten"]))
        view["tokens"] = [
            _token(token, texts[i] if texts else None, writers[i] if writers else None, is_action=False)
            for i, token in enumerate(prompt)
        ]
        texts = None if tokenizer is None else tokenizer.split(action)
        logprobs = step.get("rollout_logprobs") or []
        for i, token in enumerate(action):
            view["tokens"].append(
                _token(token, texts[i] if texts else None, "model", is_action=True, logprob=_at(logprobs, i))
                | {name: _at(numbers.get(name), i) for name in ("entropy", "advantage", "ratio")}
            )
        advantages = [value for value in numbers.get("advantage") or () if number(value) is not None]
        view["advantage"] = sum(advantages) / len(advantages) if advantages else None


def number(value: Any) -> float | int | None:
    """A finite number, else None."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


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
        "num_prompt_tokens": _count(step.get("shared")) + len(_ids(step.get("prompt_ids"))),
        "num_action_tokens": len(_ids(step.get("action_ids"))),
        "tokens": [],
    }


def _action(step: Mapping[str, Any]) -> dict[str, Any]:
    lists = {name: _list(step.get(name)) for name in ("tool_calls", "repairs")}
    return {name: step.get(name) for name in _ACTION_KEYS} | lists


def _result(message: Mapping[str, Any]) -> dict[str, str]:
    return {
        "call_id": str(message.get("tool_call_id") or ""),
        "name": str(message.get("name") or ""),
        "role": str(message.get("role") or ""),
        "content": message_text(message),
    }


def _results(steps: Sequence[Mapping[str, Any]], index: int) -> list[dict[str, Any]]:
    """What the environment said after a step: the messages that the next step adds after the action."""
    if index + 1 >= len(steps):
        return []
    messages = _objects(steps[index + 1].get("messages"))
    ends = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    return messages[ends[-1] + 1 if ends else 0 :]


def _rendered_here(step: Mapping[str, Any], is_rewritten: bool) -> list[dict[str, Any]]:
    """The messages whose text is among the new ids of a prompt: an action that follows its prompt is already there."""
    messages = _objects(step.get("messages"))
    return messages if is_rewritten else [message for message in messages if message.get("role") != "assistant"]


def _token(
    token: int, text: str | None, writer: str | None, *, is_action: bool, logprob: float | None = None
) -> dict[str, Any]:
    return {
        "id": token,
        "text": text,
        "logprob": logprob,
        "entropy": None,
        "advantage": None,
        "ratio": None,
        "writer": writer,
        "action": is_action,
    }


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
