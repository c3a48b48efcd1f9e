"""What a check of a recipe says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agent_r1.findings import Finding

Status = Literal["ok", "warning", "problem", "skipped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One check."""

    title: str
    """What was looked at."""
    findings: tuple[Finding, ...] = ()
    """What is wrong."""
    seen: str = ""
    """What was seen, in one line."""
    skipped: bool = False
    """There was nothing to look at; `seen` says why."""

    @property
    def status(self) -> Status:
        """The worst of its findings."""
        if self.skipped:
            return "skipped"
        severities = {finding.severity for finding in self.findings}
        return "problem" if "problem" in severities else "warning" if severities else "ok"


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All checks of a recipe."""

    results: tuple[Result, ...] = field(default_factory=tuple)
    """In the order they were made."""

    @property
    def problems(self) -> list[Finding]:
        """What will cost the run."""
        return [finding for result in self.results for finding in result.findings if finding.severity == "problem"]

    @property
    def warnings(self) -> list[Finding]:
        """What may be meant."""
        return [finding for result in self.results for finding in result.findings if finding.severity == "warning"]

    def as_json(self) -> dict[str, Any]:
        """For a file: `{"checks": [{"title", "status", "seen", "findings": [...]}]}`."""
        return {
            "checks": [
                {
                    "title": result.title,
                    "status": result.status,
                    "seen": result.seen,
                    "findings": [asdict(finding) for finding in result.findings],
                }
                for result in self.results
            ]
        }


def without_repeats(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Each finding once, in order."""
    return tuple(dict.fromkeys(findings))
