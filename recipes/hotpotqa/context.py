"""The context policy `search_notes`: each prompt is the question with notes of what was found.

    agent-r1 train recipes/hotpotqa 'env.context={name: search_notes, characters: 3000}'

The prompt stays as short as the notes are, however many searches came before; what the model said in earlier steps is
gone, but for its queries.
"""

from __future__ import annotations

import json
import re

from agent_r1.envs import ContextPolicy, History, Messages, context_policies
from agent_r1.errors import ConfigError
from agent_r1.tools.builtin.search import shorten
from agent_r1.types import Message

_PASSAGE = re.compile(r"^\[\d+\] (?P<title>.+)\n(?P<text>.*(?:\n(?!\[\d+\] |Results for \").*)*)", re.MULTILINE)


@context_policies.register("search_notes")
class SearchNotes(ContextPolicy):
    """The task, and in its last message the queries so far and every passage that was found, once.

    Args:
        characters: Length of the passages together; each is shortened to its share.
    """

    def __init__(self, characters: int = 3000) -> None:
        if characters < 1:
            raise ConfigError(f"env.context.characters={characters} must be at least 1")
        self.characters = characters

    def show(self, history: History) -> Messages:
        """The task with the notes."""
        if not history.turns:
            return history.task
        *before, question = history.task
        return (*before, {**question, "content": f"{question['content']}\n\n{self.notes(history)}"})

    def notes(self, history: History) -> str:
        """Queries and passages; of a search that went wrong, what was wrong.

        Searched for: "Tea"; "Coffee"
        Found:
        [1] Tea
        A drink made of leaves.
        """
        queries = [query for turn in history.turns for message in turn for query in asked(message)]
        answers = [str(message["content"]) for turn in history.turns for message in turn if message["role"] == "tool"]
        passages: dict[str, str] = {}
        for found in (found for text in answers for found in _PASSAGE.finditer(text)):
            # The longest piece of each: later searches may show less of it.
            passages[found["title"]] = max(passages.get(found["title"], ""), found["text"].strip(), key=len)
        share = max(self.characters // max(len(passages), 1), 1)
        lines = [f"[{n}] {title}\n{shorten(text, share)}" for n, (title, text) in enumerate(passages.items(), start=1)]
        troubles = [text for text in answers if not _PASSAGE.search(text)]
        said = "; ".join(json.dumps(query, ensure_ascii=False) for query in dict.fromkeys(queries))
        return "\n".join([f"Searched for: {said or 'nothing'}", *troubles[-1:], "Found:", *(lines or ["nothing yet"])])


def asked(message: Message) -> list[str]:
    """The queries of an assistant's calls; what it wrote in their place is left out."""
    given = [call["function"]["arguments"].get("query") for call in message.get("tool_calls") or ()]
    entries = [query for entry in given for query in (entry if isinstance(entry, list) else [entry])]
    return [query for query in entries if isinstance(query, str) and query]
