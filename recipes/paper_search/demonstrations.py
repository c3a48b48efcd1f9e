"""Demonstrations of looking for papers: the expert's episodes, played with the tools of the environment."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_r1.envs import ContextPolicy, Conversation

from .policies import Move, expert
from .prompts import answer_message, call_message, shown_message
from .reading import Reading


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """An episode of the expert."""

    calls: Sequence[tuple[Move, str]]
    """The calls with their answers."""
    numbers: Sequence[int]
    """The relevant papers that were shown, by the numbers under which they were shown."""
    recall: float


def demonstrate(
    reading: Reading, relevant: Collection[int], tools: Collection[str], rng: random.Random
) -> Demonstration:
    """Play an episode; the answer is what is relevant among the papers that were shown."""
    calls = list(expert(reading, relevant, tools, rng))
    numbers = [number for number, paper in enumerate(reading.papers, start=1) if paper in relevant]
    return Demonstration(calls=calls, numbers=numbers, recall=len(numbers) / len(relevant))


def conversations(
    prompt: Sequence[Mapping[str, Any]],
    demonstration: Demonstration,
    policy: ContextPolicy,
    schemas: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """A demonstration as rows for the warm start, as an environment with this context policy would show it: one row
    where the policy keeps all of the history, one per step where it rewrites it."""
    conversation = Conversation(policy, [dict(message) for message in prompt])
    rows: list[list[Mapping[str, Any]]] = []

    def say(message: Mapping[str, Any]) -> None:
        shown = [*conversation.messages, message]
        if rows and shown[: len(rows[-1])] == rows[-1]:
            rows.pop()
        rows.append(shown)

    for move, text in demonstration.calls:
        message = call_message(move.tool, move.arguments)
        say(message)
        conversation.add(message, shown_message(move.tool, text))
    say(answer_message(demonstration.numbers))
    return [{"messages": messages, "tools": [dict(schema) for schema in schemas]} for messages in rows]
