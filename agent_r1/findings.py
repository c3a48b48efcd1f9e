"""`Finding`: one problem, as every check reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One problem that a check found.

    >>> print(Finding(rule="rewards are finite", observed="step 0 gave nan", fix="Give a number"))
    rewards are finite: step 0 gave nan. Give a number
    """

    rule: str
    """The rule that is violated."""
    observed: str
    """What was seen."""
    fix: str = ""
    """What fixes it; "" where `observed` says it."""
    severity: Literal["problem", "warning"] = "problem"
    """A `problem` makes training fail or useless; a `warning` may be intended."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.observed}{f'. {self.fix}' if self.fix else ''}"
