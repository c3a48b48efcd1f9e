"""Cache of what a chat template writes around tool answers, so that the template need not be rendered every turn.

Most templates copy a tool's answer unchanged between constant texts:

    <|end|><|tool|>7<|end|><|assistant|>    for the answer "7"

Rendered once with an answer that contains everything a template might change (quotes, tags, line breaks, braces), such
a template reveals the constant texts: a `DeltaPattern`. The pattern is used after it has agreed with the template a few
times, and only for answers of the kind it was made with, in conversations that begin the assistant's turn in the same
way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

TIMES_AGREED = 3
"""How often a pattern must agree with the template before it is trusted."""

_PROBE = ': "quoted" \\ \\n \'s <tag x="y">&amp;</tag> {{ braces }} {% if %} [1, 2]\n\t\u00e9\u4e16 end'
"""In an answer, what any escaping, parsing or shortening would change."""

RenderAnswers = Callable[[Sequence[str], bool], str | None]
"""What a template writes after a turn for these tool answers, with or without the text that begins the next turn; None
when that cannot be told apart from the rest."""


@dataclass(frozen=True, slots=True)
class DeltaPattern:
    """The constant texts around tool answers."""

    pieces: tuple[str, ...]
    """One more than there are answers."""
    turn_start: str
    """The text that begins the assistant's turn, at the end of the last piece."""
    keeps_space: bool = True
    """Whether the template keeps whitespace around an answer."""

    def fits(self, answers: Sequence[str], rendered: str) -> bool:
        """Whether it may be used for these answers, after a conversation that was rendered as `rendered`."""
        alike = all(answer and (self.keeps_space or answer == answer.strip()) for answer in answers)
        return alike and rendered.endswith(self.turn_start)

    def fill(self, answers: Sequence[str]) -> str:
        """The text with these answers.

        >>> DeltaPattern(("<", "|", ">"), ">").fill(["a", "b"])
        '<a|b>'
        """
        first, *others = self.pieces
        return first + "".join(answer + piece for answer, piece in zip(answers, others, strict=True))


class DeltaCache:
    """The patterns of one template, one for each kind of turn."""

    def __init__(self) -> None:
        self._patterns: dict[Hashable, DeltaPattern | None] = {}
        self._agreed: dict[Hashable, int] = {}

    def text(self, kind: Hashable, answers: Sequence[str], rendered: str) -> str | None:
        """What the template would write; None when it must be rendered."""
        pattern = self._patterns.get(kind)
        if pattern is None or self._agreed[kind] < TIMES_AGREED or not pattern.fits(answers, rendered):
            return None
        return pattern.fill(answers)

    def learn(
        self, kind: Hashable, answers: Sequence[str], rendered: str, text: str, render_answers: RenderAnswers
    ) -> None:
        """Compare the pattern with `text`, which the template wrote; make the pattern the first time."""
        if kind not in self._patterns:
            self._patterns[kind], self._agreed[kind] = make_pattern(render_answers, len(answers)), 0
        pattern = self._patterns[kind]
        if pattern is not None and pattern.fits(answers, rendered):
            self._agreed[kind] += 1
            if pattern.fill(answers) != text:
                self._patterns[kind] = None


def make_pattern(render_answers: RenderAnswers, num_answers: int) -> DeltaPattern | None:
    """The pattern of a template; None when the template does not copy answers unchanged.

    >>> make_pattern(lambda answers, begin: f"<tool>{answers[0]}</tool>" + "<bot>" * begin, 1)
    DeltaPattern(pieces=('<tool>', '</tool><bot>'), turn_start='<bot>', keeps_space=True)
    >>> make_pattern(lambda answers, begin: f"<tool>{answers[0]!r}</tool>", 1)
    """
    answers = [f"AGENTR1 {number}{_PROBE}" for number in range(num_answers)]
    text, text_to_end = render_answers(answers, True), render_answers(answers, False)
    if text is None or text_to_end is None or not text.startswith(text_to_end):
        return None
    pieces, rest = list[str](), text
    for answer in answers:
        before, copied, rest = rest.partition(answer)
        if not copied:
            return None
        pieces.append(before)
    pattern = DeltaPattern((*pieces, rest), text[len(text_to_end) :])
    spaced = [f" \n{answer}\t\n " for answer in answers]
    keeps_space = render_answers(spaced, True) == pattern.fill(spaced)
    return pattern if keeps_space else DeltaPattern(pattern.pieces, pattern.turn_start, keeps_space=False)
