"""`TextStream`: the text of ids that are sampled one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from agent_r1.chat.renderer import ChatRenderer

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Gives what each new id adds to the text of one turn.

    A character whose bytes are spread over several ids is given when its last id arrives. The parts add up to the text
    of all ids, without the end of turn:

        stream.add([17]) + stream.add([4, 9]) + stream.add([END], is_last=True)

    Only the ids since the last complete character, and those before them that a decoder may need as context, are
    decoded again, so a long turn costs no more per id than a short one.
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        self._tokenizer = renderer.tokenizer
        self._stop_ids = frozenset(renderer.stop_ids)
        self._ids: list[int] = []
        self._context_start = 0
        self._num_given = 0

    def add(self, token_ids: Sequence[int], *, is_last: bool = False) -> str:
        """The text that these ids add; the last call also gives an incomplete character, as the decoder writes it."""
        self._ids += [token for token in token_ids if token not in self._stop_ids]
        if self._num_given == len(self._ids):
            return ""
        old_text = self._decode(self._ids[self._context_start : self._num_given])
        text = self._decode(self._ids[self._context_start :])
        if not is_last and (text.endswith(_INCOMPLETE) or len(text) <= len(old_text)):
            return ""
        self._context_start, self._num_given = self._num_given, len(self._ids)
        return text[len(old_text) :]

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False)) if token_ids else ""
