"""Demonstrations of looking for papers: the expert's episodes, played with the tools of the environment."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from agent_r1.console import progress_counter
from agent_r1.envs import ContextPolicy, Conversation
from agent_r1.tools.workers import map_in_workers

from .library import View, open_library
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


@dataclass(frozen=True, kw_only=True)
class Start:
    """What an episode of the expert begins with."""

    library: str
    """The folder of the collection."""
    query: Any
    limit: int
    """Papers that may be shown."""
    page: int
    """Papers per call."""
    tools: Sequence[str]

    def reading(self) -> Reading:
        """The state in which nothing was read."""
        view = View(library=open_library(self.library), hidden=self.query.versions, day=self.query.day)
        return Reading(view=view, query=self.query.text, limit=self.limit, page=self.page)


async def demonstrate_all(starts: Sequence[Start]) -> list[Demonstration]:
    """The expert's episodes, played in worker processes."""
    demonstrations = []
    async with aclosing(map_in_workers(played, starts)) as results:
        with progress_counter("queries", len(starts)) as progress:
            progress("demonstrating", 0)
            async for _, (calls, numbers, recall) in results:
                moves = [(Move(tool=tool, arguments=arguments), text) for tool, arguments, text in calls]
                demonstrations.append(Demonstration(calls=moves, numbers=numbers, recall=recall))
                progress("demonstrating", len(demonstrations))
    return demonstrations


def played(start: Start) -> tuple[list[tuple[str, Mapping[str, Any], str]], Sequence[int], float]:
    """The calls, numbers and recall of the expert's episode: what a process can send."""
    rng = random.Random(f"{start.query.source} {start.query.text}")
    shown = demonstrate(start.reading(), start.query.relevant, start.tools, rng)
    return [(move.tool, move.arguments, text) for move, text in shown.calls], shown.numbers, shown.recall


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
