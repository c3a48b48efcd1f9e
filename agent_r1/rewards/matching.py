"""Answer matching: the one place that decides whether an answer is right.

    exact_match("the Beatles!", ["Beatles", "Fab Four"])     text, up to case, punctuation, articles and spaces
    same_text(" 14 ", "14")                                  text, up to the spaces around it
    number_matches(find_last_number("so 1,250.50."), 1250.5)  numbers, by their exact value

Two rules hold for all of them. Text that is empty in its normal form (`""`, `"!!!"`) matches nothing, not even itself.
A missing ground truth is an error, never a match and never a zero: `truth_problem` says what is wrong with one.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

from agent_r1.errors import DataError
from agent_r1.rewards.number_reading import find_last_number, find_marked_number, to_number

TruthKind = Literal["text", "exact", "number"]
"""What a reward function compares: text by its normal form, text letter for letter, or numbers."""

_ARTICLES = frozenset({"a", "an", "the"})
_VERDICTS = frozenset({"yes", "no", "noanswer"})
_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-"))
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
# Without these characters 1.5 would be 15, and -5 would be 5.
_OF_NUMBERS = r"(?<=\d)[-.,/:](?=\d)|(?<![\w.])-(?=[$€£¥₹]?\.?\d)|(?<![\w.])\.(?=\d)"
_PUNCTUATION = re.compile(rf"(?P<kept>{_OF_NUMBERS})|[{re.escape(string.punctuation)}]")


def normalise_text(text: str) -> str:
    """Lower case, without punctuation, articles and extra spaces; "" when nothing is left.

    The points, commas, dashes and slashes of numbers stay, but for commas between thousands. Articles alone stay too: a
    letter may be an answer.

    >>> normalise_text("The  Eiffel-Tower!"), normalise_text("-1,000.5"), normalise_text("(A)"), normalise_text("!!!")
    ('eiffeltower', '-1000.5', 'a', '')
    """
    plain = _THOUSANDS.sub("", text.lower().translate(_DASHES))
    words = _PUNCTUATION.sub(lambda match: match["kept"] or "", plain).split()
    return " ".join([word for word in words if word not in _ARTICLES] or words)


def accepted_answers(truth: Any) -> list[str]:
    """The right answers that a ground truth holds: it is one, or a list of them; [] when it is missing.

    >>> accepted_answers("Rome"), accepted_answers(["Rome", "Roma"]), accepted_answers(12), accepted_answers(None)
    (['Rome'], ['Rome', 'Roma'], ['12'], [])
    """
    entries = truth if isinstance(truth, list | tuple | set | frozenset) else [truth]
    return [str(entry) for entry in entries if entry is not None and not isinstance(entry, Mapping)]


def truth_problem(truth: Any, kind: TruthKind = "text") -> str | None:
    """Why no answer can match a ground truth; None when one can.

    >>> truth_problem(None)
    'it has no ground truth (reward_model.ground_truth)'
    >>> truth_problem("three", "number")
    "its ground truth 'three' is not a number"
    """
    if isinstance(truth, Mapping) and truth:
        return f"its ground truth {truth!r:.60} is a mapping; give text, a number or a list of them"
    accepted = accepted_answers(truth)
    if not any(entry.strip() for entry in accepted):
        return "it has no ground truth (reward_model.ground_truth)"
    if kind == "number":
        numbers = [to_number(entry) for entry in _entries(truth)]
        return (
            None if any(number is not None for number in numbers) else f"its ground truth {truth!r:.60} is not a number"
        )
    if kind == "text" and not any(normalise_text(entry) for entry in accepted):
        return f"its ground truth {truth!r:.60} is empty without punctuation, so that no answer can match it"
    return None


def exact_match(answer: str, accepted: Sequence[str] | str) -> bool:
    """Whether an answer is one of those that are right, up to case, punctuation, articles and spaces.

    >>> exact_match("the Beatles!", ["Beatles", "Fab Four"]), exact_match("", ["Beatles"]), exact_match("!!!", ["!!!"])
    (True, False, False)
    """
    normal = normalise_text(answer)
    return bool(normal) and any(normal == normalise_text(right) for right in accepted_answers(accepted))


def same_text(answer: str, truth: Any) -> bool:
    """Whether an answer is what the ground truth says, letter for letter, up to the spaces around it.

    >>> same_text(" 14\\n", "14"), same_text("14.", "14"), same_text("", "14")
    (True, False, False)
    """
    _refuse(truth, "exact")
    text = answer.strip()
    return bool(text) and any(text == right.strip() for right in accepted_answers(truth))


def number_matches(number: Fraction | None, truth: Any) -> bool:
    """Whether a number that was found is the one that is right, by its exact value.

    >>> number_matches(find_last_number("3/2"), "1/2"), number_matches(find_last_number("$1,000.00"), 1000)
    (False, True)
    """
    _refuse(truth, "number")
    return number is not None and any(number == to_number(entry) for entry in _entries(truth))


def last_number(text: str) -> float | None:
    """`find_last_number` as a float; to compare, use `number_matches`.

    >>> last_number("12 pears cost 1,250.50 in all.")
    1250.5
    """
    return _as_float(find_last_number(text))


def marked_number(text: str) -> float | None:
    """`find_marked_number` as a float; to compare, use `number_matches`.

    >>> marked_number("12 pears at 104 each.\\n#### $1,248"), marked_number("#### 12 or 13"), marked_number("12")
    (1248.0, None, None)
    """
    return _as_float(find_marked_number(text))


def f1_score(answer: str, accepted: Sequence[str] | str) -> float:
    """The F1 score of an answer's words against the nearest right answer: the harmonic mean of precision and recall.
    "yes" and "no" share nothing with any other answer.

    "Nick Hexum" for "Nicholas Lofton Hexum": precision 1/2, recall 1/3, 2 * (1/2 * 1/3) / (1/2 + 1/3) =

    >>> round(f1_score("Nick Hexum", ["Nicholas Lofton Hexum", "Nicholas L. Hexum Jr."]), 3)
    0.4
    """
    normal = normalise_text(answer)
    return max((_words_in_common(normal, normalise_text(right)) for right in accepted_answers(accepted)), default=0.0)


def _words_in_common(answer: str, right: str) -> float:
    if answer != right and {answer, right} & _VERDICTS:
        return 0.0
    answer_words, right_words = answer.split(), right.split()
    shared = (Counter(answer_words) & Counter(right_words)).total()
    return 2 * shared / (len(answer_words) + len(right_words)) if shared else 0.0


def _refuse(truth: Any, kind: TruthKind) -> None:
    problem = truth_problem(truth, kind)
    if problem is not None:
        raise DataError(f"a row cannot be scored: {problem}")


def _entries(truth: Any) -> list[Any]:
    return list(truth) if isinstance(truth, list | tuple | set | frozenset) else [truth]


def _as_float(number: Fraction | None) -> float | None:
    try:
        return None if number is None else float(number)
    except OverflowError:
        return None
