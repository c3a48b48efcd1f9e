"""Whether the customer was told what a task asks for.

tau-bench looks for the text of an output anywhere in what the agent said, so that "10" is found in "2103". Here a
number must be that number, and a word that word: stricter, and "$180.10" is still 180.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def missing_outputs(outputs: Iterable[str], said: Iterable[str]) -> list[str]:
    """The outputs that no message has.

    >>> missing_outputs(["1497.65", "10", "64GB"], ["You paid $1,497.65 for 2103 things of 64gb."])
    ['10']
    """
    texts = [re.sub(r"(?<=\d),(?=\d{3})", "", text).lower() for text in said]
    return [output for output in outputs if not any(_has(text, output.lower().replace(",", "")) for text in texts)]


def _has(text: str, output: str) -> bool:
    if _NUMBER.fullmatch(output):
        return any(_same_number(found, output) for found in _NUMBER.findall(text))
    before = r"(?<!\w)" if output[:1].isalnum() else ""
    after = r"(?!\w)" if output[-1:].isalnum() else ""
    return re.search(before + re.escape(output) + after, text) is not None


def _same_number(found: str, output: str) -> bool:
    """Equal up to zeros after the point."""
    return found == output or _without_zeros(found) == _without_zeros(output)


def _without_zeros(number: str) -> str:
    return number.rstrip("0").rstrip(".") if "." in number else number
