"""A solved episode as a demonstration: one conversation, in the form of the rows that `sft.data` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from agent_r1.data.demonstrations import check_demonstration
from agent_r1.errors import AgentR1Error
from agent_r1.types import Message, StopReason, Task, Trajectory, media_in


class UnfitEpisodeError(AgentR1Error, ValueError):
    """An episode that cannot be written as one conversation."""


def solved_episode(task: Task, trajectory: Trajectory) -> dict[str, Any] | None:
    """An episode as a demonstration when it solved its task, was not cut at a limit and has no malformed turn, else
    None. Raises `UnfitEpisodeError` for a solved episode that is not one conversation.

    A function of `sft.from_episode` that only adds a condition calls it first:

        def with_a_call(task, trajectory):
            row = solved_episode(task, trajectory)
            return row if row is not None and trajectory.num_tool_calls else None
    """
    is_complete = bool(trajectory.steps) and trajectory.stop_reason is StopReason.DONE
    if not is_complete or trajectory.success < 1:
        return None
    if any(step.action.parse_error is not None for step in trajectory.steps):
        return None
    return episode_row(task, trajectory)


def episode_row(task: Task, trajectory: Trajectory) -> dict[str, Any]:
    """The whole conversation of an episode as a row, whatever its outcome: what the last prompt showed, and the last
    action. Raises `UnfitEpisodeError` when the prompts are not one conversation that grows turn by turn."""
    _check_growth(trajectory)
    last = trajectory.steps[-1]
    messages = [*(last.observation.messages or ()), last.action.as_message()]
    try:
        row = json.loads(json.dumps({"messages": messages, "tools": list(last.observation.tools)}, default=dict))
        check_demonstration(row)
    except (TypeError, ValueError) as error:
        raise UnfitEpisodeError(f"its conversation is not a row of JSON: {error}") from error
    return {**row, "control_tokens": True} if task.control_tokens else dict(row)


def conversation_key(row: Mapping[str, Any]) -> str:
    """Equal for conversations that say the same; the ids of tool calls do not count.

    >>> one = {"role": "tool", "content": "4", "tool_call_id": "a"}
    >>> conversation_key({"messages": [one]}) == conversation_key({"messages": [{**one, "tool_call_id": "b"}]})
    True
    """
    return json.dumps([_content_of(message) for message in row["messages"]], sort_keys=True, default=repr)


def _check_growth(trajectory: Trajectory) -> None:
    steps = trajectory.steps
    for step in steps:
        messages = step.observation.messages
        if messages is None:
            raise UnfitEpisodeError("its prompts are text or token ids, not messages")
        if step.observation.images or media_in(messages):
            raise UnfitEpisodeError("its prompts have images")
    for number, (before, after) in enumerate(pairwise(steps), start=2):
        expected = [*(before.observation.messages or ()), before.action.as_message()]
        next_messages = list(after.observation.messages or ())
        if list(map(_content_of, next_messages[: len(expected)])) != list(map(_content_of, expected)):
            raise UnfitEpisodeError(
                f"the prompt of its step {number} does not continue the conversation of step {number - 1} (a context "
                "policy, an environment that shows each state by itself, or a flow with several conversations)"
            )
        if after.observation.tools != before.observation.tools:
            raise UnfitEpisodeError(f"step {number} has other tools than step {number - 1}")


def _content_of(message: Message) -> tuple[Any, ...]:
    """What a message says, however it is written: without ids, arguments of calls as objects."""
    calls = [_call_of(call) for call in message.get("tool_calls") or ()]
    return message.get("role"), message.get("content") or "", calls


def _call_of(call: Mapping[str, Any]) -> tuple[Any, ...]:
    function = call.get("function")
    named = function if isinstance(function, Mapping) else call
    return named.get("name"), _as_object(named.get("arguments"))


def _as_object(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
