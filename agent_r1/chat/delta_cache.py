"""What a chat template writes around the answers of tools, learned so that it need not be asked every time.

Most templates write a tool's answer as it is, between words that are always the same:

    <|end|><|tool|>7<|end|><|assistant|>    for the answer "7"

Asked once with an answer that has everything in it that a template might change (quotes, tags, line breaks, braces),
such a template shows the words alone: a stencil. It is used after it has given a few times what the template gave, and
only for answers like those it was made with, in conversations that begin the assistant's turn as it does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

TIMES_AGREED = 3
"""How often what was learned of a template must give what the template gives before it is trusted."""

_HARD = ': "quoted" \\ \\n \'s <tag x="y">&amp;</tag> {{ braces }} {% if %} [1, 2]\n\t\u00e9\u4e16 end'
"""In an answer, what any escaping, parsing or shortening would change."""

Ask = Callable[[Sequence[str], bool], str | None]
"""What a template writes after a turn when tools gave these answers, with or without the words that begin the next
turn; None when it cannot be told."""


@dataclass(frozen=True, slots=True)
class Stencil:
    """The words around answers."""

    pieces: tuple[str, ...]
    """One more than there are answers."""
    beginning: str
    """The words that begin the assistant's turn, at the end of the last piece."""
    keeps_space: bool = True
    """Whether space around an answer is written too."""

    def fits(self, answers: Sequence[str], told: str) -> bool:
        """Whether it may be used for these answers, in a conversation of which this much was written."""
        alike = all(answer and (self.keeps_space or answer == answer.strip()) for answer in answers)
        return alike and told.endswith(self.beginning)

    def fill(self, answers: Sequence[str]) -> str:
        """The text with these answers.

        >>> Stencil(("<", "|", ">"), ">").fill(["a", "b"])
        '<a|b>'
        """
        first, *others = self.pieces
        return first + "".join(answer + piece for answer, piece in zip(answers, others, strict=True))


class Stencils:
    """The stencils of one template, for each kind of turn."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Stencil | None] = {}
        self._agreed: dict[Hashable, int] = {}

    def text(self, kind: Hashable, answers: Sequence[str], told: str) -> str | None:
        """What the template would write; None when it must be asked."""
        stencil = self._known.get(kind)
        if stencil is None or self._agreed[kind] < TIMES_AGREED or not stencil.fits(answers, told):
            return None
        return stencil.fill(answers)

    def learn(self, kind: Hashable, answers: Sequence[str], told: str, text: str, ask: Ask) -> None:
        """The template was asked, and wrote this text."""
        if kind not in self._known:
            self._known[kind], self._agreed[kind] = make_stencil(ask, len(answers)), 0
        stencil = self._known[kind]
        if stencil is not None and stencil.fits(answers, told):
            self._agreed[kind] += 1
            if stencil.fill(answers) != text:
                self._known[kind] = None


def make_stencil(ask: Ask, num_answers: int) -> Stencil | None:
    """The stencil of a template, or None when it does not write answers as they are.

    >>> make_stencil(lambda answers, begin: f"<tool>{answers[0]}</tool>" + "<bot>" * begin, 1)
    Stencil(pieces=('<tool>', '</tool><bot>'), beginning='<bot>', keeps_space=True)
    >>> make_stencil(lambda answers, begin: f"<tool>{answers[0]!r}</tool>", 1)
    """
    answers = [f"AGENTR1 {number}{_HARD}" for number in range(num_answers)]
    text, ended = ask(answers, True), ask(answers, False)
    if text is None or ended is None or not text.startswith(ended):
        return None
    pieces, rest = list[str](), text
    for answer in answers:
        before, found, rest = rest.partition(answer)
        if not found:
            return None
        pieces.append(before)
    stencil = Stencil((*pieces, rest), text[len(ended) :])
    spaced = [f" \n{answer}\t\n " for answer in answers]
    return stencil if ask(spaced, True) == stencil.fill(spaced) else Stencil(stencil.pieces, stencil.beginning, False)
