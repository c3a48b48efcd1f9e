"""Demonstrations of searching, made of a question and the titles of the passages that answer it.

A demonstration only asks for what can be known at that point: words of the question, or a title that stands in a
passage already found. Every search is really run, and what it finds is what the demonstration shows. Where the passages
cannot be reached that way, or the answer cannot be read off them, there is no demonstration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_r1.envs import ContextPolicy, Conversation
from agent_r1.rewards import normalise_text
from agent_r1.tools import SearchTool

from .prompts import answer_message, found_message, question_messages, search_message, thought_about

MAX_SEARCHES = 3

_TITLE_LINE = re.compile(r"^\[\d+\] (.+)$", re.MULTILINE)
_DISAMBIGUATION = re.compile(r"\s*\([^()]*\)$")


@dataclass(frozen=True, kw_only=True)
class Search:
    """One search of a demonstration."""

    queries: tuple[str, ...]
    """What is asked, all in one call."""
    thought: str
    """What is thought before."""
    found: str
    """What the tool answered."""


async def plan_searches(row: Mapping[str, Any], tool: SearchTool) -> list[Search] | None:
    """Searches that find all supporting passages of a row and its answer; None when there are none.

    "Which band was formed first, The Exies or Circus Diablo?" names both titles: one search with two queries.
    "Who directed the film shot in Leland, North Carolina in 1986?" names one: a search for it finds a passage that
    mentions "Maximum Overdrive", the other title, which is searched for next.
    """
    question, titles = str(row["question"]), [str(title) for title in row["supporting_titles"]]
    searches: list[Search] = []
    seen = question
    while len(searches) < MAX_SEARCHES:
        missing = [title for title in titles if title not in shown_titles(seen)]
        topics = [topic for topic in map(topic_of, missing) if is_named(topic, seen)]
        asked = {query for search in searches for query in search.queries}
        queries = [topic for topic in topics if topic not in asked] or [question]
        if not missing or queries[0] in asked:
            break
        answered, *_ = await tool.execute({"query": queries[0] if len(queries) == 1 else queries})
        thought = thought_about(queries if queries != [question] else [])
        searches.append(Search(queries=tuple(queries), thought=thought, found=answered.text))
        seen += "\n" + answered.text
    complete = set(titles) <= set(shown_titles(seen))
    return searches if complete and can_be_read(str(row["answer"]), seen, question) else None


def topic_of(title: str) -> str:
    """A title without what tells it from others of the same name.

    >>> topic_of("Lilu (mythology)")
    'Lilu'
    """
    return _DISAMBIGUATION.sub("", title) or title


def is_named(topic: str, text: str) -> bool:
    """Whether a text has a topic in it as whole words, whatever their case.

    >>> is_named("Lilu", "If Gallu is a demon, what is lilu?"), is_named("Lilu", "The lilut is a lute.")
    (True, False)
    """
    return re.search(rf"(?<!\w){re.escape(topic)}(?!\w)", text, re.IGNORECASE) is not None


def shown_titles(text: str) -> list[str]:
    """The titles in answers of the tool.

    >>> shown_titles("[1] Tea\\nA drink.\\n\\n[2] Alû\\nA demon.")
    ['Tea', 'Alû']
    """
    return _TITLE_LINE.findall(text)


def can_be_read(answer: str, seen: str, question: str) -> bool:
    """Whether an answer stands in what was seen, or is a verdict on it."""
    wanted = normalise_text(answer)
    return wanted in ("yes", "no") or f" {wanted} " in f" {normalise_text(seen.removeprefix(question))} "


def conversations(
    row: Mapping[str, Any], searches: Sequence[Search], policy: ContextPolicy, tool: SearchTool
) -> Iterator[dict[str, Any]]:
    """A demonstration as rows for the warm start, as an environment with this context policy would show it.

    One row where the policy keeps all of the history; one per step where it rewrites it.
    """
    conversation = Conversation(policy, question_messages(str(row["question"])))
    said = [search_message(search.queries, search.thought) for search in searches]
    rows: list[list[Mapping[str, Any]]] = []
    for message, search in zip([*said, answer_message(str(row["answer"]))], [*searches, None], strict=True):
        shown = [*conversation.messages, message]
        if rows and shown[: len(rows[-1])] == rows[-1]:
            rows.pop()
        rows.append(shown)
        if search is not None:
            conversation.add(message, found_message(search.found))
    yield from ({"messages": messages, "tools": [dict(tool.tool_schema)]} for messages in rows)
