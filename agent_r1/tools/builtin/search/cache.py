"""`AnswerCache`: answers to searches that were made before, the least recently used forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from agent_r1.tools.builtin.search.answers import SearchAnswer, SearchRequest

MAX_CHARACTERS = 16_000_000
_OVERHEAD = 500
"""Characters' worth of memory that an entry takes besides its texts."""


class SearchKey(NamedTuple):
    """A request to one state of an index."""

    folder: Path
    """The folder of the index."""
    version: int
    """The index's `index_version`."""
    request: SearchRequest
    """What was asked."""


class AnswerCache:
    """Keeps answers up to a total length. Members of a group often ask the same."""

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_characters = max_characters
        self._num_characters = 0
        self._answers: OrderedDict[SearchKey, SearchAnswer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: SearchKey) -> SearchAnswer | None:
        """The answer to a request, if it was kept."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def keep(self, key: SearchKey, answer: SearchAnswer) -> None:
        """Keep an answer, unless it alone would take a large part of the room."""
        if key in self._answers or _size(key, answer) > self._max_characters // 16:
            return
        self._answers[key] = answer
        self._num_characters += _size(key, answer)
        while self._num_characters > self._max_characters:
            self._num_characters -= _size(*self._answers.popitem(last=False))


def _size(key: SearchKey, answer: SearchAnswer) -> int:
    return len(answer.text) + sum(map(len, key.request.queries)) + _OVERHEAD
