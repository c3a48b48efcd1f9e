"""A recorded line of JSON as a trajectory.

Each value is checked: files may be damaged, edited or somebody else's, and what computes with a trajectory relies on
its types. What is wrong is a `WireError` that names the place in the line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent_r1.codec import Check, each, flag, integer, mapping, number, observation_from_json, optional, text
from agent_r1.images import expand_ids
from agent_r1.runs.trajectory_lines.observation_deltas import NOTHING_SEEN, whole_observation
from agent_r1.types import Action, FailedAttempt, Message, Observation, Step, StopReason, ToolCall, Trajectory


def prompt_from_json(line: Any) -> list[Message]:
    """The prompt of a line's task, in which pictures stay references."""
    return list(each(mapping)(mapping(line, "the line").get("prompt", []), "prompt"))


def trajectory_from_json(line: Mapping[str, Any], read_image: Callable[[Any, str], Any]) -> Trajectory:
    """The trajectory of a line."""
    ids_before: tuple[int, ...] = ()
    seen = NOTHING_SEEN
    steps = []
    for index, entry in enumerate(each(mapping)(line["steps"], "steps")):
        where = f"steps[{index}]"
        prompt_ids = ids_before[: integer(entry["shared"], f"{where}.shared")] + expand_ids(entry["prompt_ids"])
        seen = whole_observation(seen, entry, prompt_ids)
        steps.append(_step_from_json(entry, where, prompt_ids, observation_from_json(seen, read_image)))
        ids_before = prompt_ids + steps[-1].action_ids
    following = line["next_prompt_ids"]
    return Trajectory(
        task_id=text(line["task_id"], "task_id"),
        group_id=integer(line["group_id"], "group_id"),
        member=integer(line["member"], "member"),
        data_source=text(line["data_source"], "data_source"),
        steps=tuple(steps),
        outcome_reward=number(line["outcome_reward"], "outcome_reward"),
        reward_parts=_numbers(line["reward_parts"], "reward_parts", number),
        vote=text(line["vote"], "vote"),
        stop_reason=StopReason(line["stop_reason"]),
        next_prompt_ids=None if following is None else expand_ids(following),
        next_privileged=optional(text)(line["next_privileged"], "next_privileged"),
        error=optional(text)(line["error"], "error"),
        num_retries=integer(line["num_retries"], "num_retries"),
        failed_attempts=each(_attempt_from_json)(line.get("failed_attempts", []), "failed_attempts"),
        metrics=_numbers(line["metrics"], "metrics", optional(number)),
        given_answer=optional(text)(line.get("given_answer"), "given_answer"),
        posted_reward=optional(number)(line.get("posted_reward"), "posted_reward"),
    )


def _step_from_json(
    entry: Mapping[str, Any], where: str, prompt_ids: tuple[int, ...], observation: Observation
) -> Step:
    action_ids = _many(entry["action_ids"], f"{where}.action_ids", {int}, integer)
    return Step(
        observation=observation,
        prompt_ids=prompt_ids,
        action=Action(
            text=text(entry["text"], f"{where}.text"),
            content=text(entry["content"], f"{where}.content"),
            token_ids=action_ids,
            tool_calls=each(_call_from_json)(entry["tool_calls"], f"{where}.tool_calls"),
            parse_error=optional(text)(entry["parse_error"], f"{where}.parse_error"),
            repairs=each(text)(entry.get("repairs", []), f"{where}.repairs"),
            final_answer=optional(text)(entry.get("final_answer"), f"{where}.final_answer"),
            history_text=optional(text)(entry.get("history_text"), f"{where}.history_text"),
        ),
        action_ids=action_ids,
        # null stands for a number that was not finite
        rollout_logprobs=_many(entry["rollout_logprobs"], f"{where}.rollout_logprobs", {int, float}, optional(number)),
        reward=number(entry["reward"], f"{where}.reward"),
        done=flag(entry["done"], f"{where}.done"),
        policy_versions=_many(entry["policy_versions"], f"{where}.policy_versions", {int}, integer),
        info=mapping(entry["info"], f"{where}.info"),
        timings=_numbers(entry["timings"], f"{where}.timings", optional(number)),
        parent=optional(integer)(entry.get("parent"), f"{where}.parent"),
    )


def _call_from_json(value: Any, where: str) -> ToolCall:
    call = mapping(value, where)
    return ToolCall(
        name=text(call["name"], f"{where}.name"),
        arguments=mapping(call["arguments"], f"{where}.arguments"),
        call_id=text(call["call_id"], f"{where}.call_id"),
    )


def _attempt_from_json(value: Any, where: str) -> FailedAttempt:
    attempt = mapping(value, where)
    return FailedAttempt(
        stop_reason=StopReason(attempt["stop_reason"]),
        error=text(attempt["error"], f"{where}.error"),
        num_steps=integer(attempt.get("num_steps", 0), f"{where}.num_steps"),
        metrics=_numbers(attempt.get("metrics", {}), f"{where}.metrics", optional(number)),
    )


def _numbers(value: Any, where: str, check: Check[Any]) -> dict[str, Any]:
    """Numbers by name."""
    return {name: check(entry, f"{where}.{name}") for name, entry in mapping(value, where).items()}


def _many(value: Any, where: str, kinds: set[type], check: Check[Any]) -> tuple[Any, ...]:
    """The numbers of the tokens of an action; checked one by one only where they are of unexpected kinds."""
    is_usual = isinstance(value, list) and set(map(type, value)) <= kinds
    return tuple(value) if is_usual else each(check)(value, where)
