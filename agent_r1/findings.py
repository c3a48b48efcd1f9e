"""`Finding`: one thing that is wrong, in the form every check reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong.

    >>> print(Finding(what="rewards are finite", found="step 0 gave nan", do="Give a number"))
    rewards are finite: step 0 gave nan. Give a number
    """

    what: str
    """The rule that is broken."""
    found: str
    """What was seen."""
    do: str
    """What mends it."""
    severity: Literal["problem", "warning"] = "problem"
    """A `problem` will cost the run; a `warning` may be meant."""

    def __str__(self) -> str:
        return f"{self.what}: {self.found}. {self.do}"
