"""The report of `agent-r1 check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agent_r1.findings import Finding

Status = Literal["ok", "warning", "problem", "skipped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The result of one check."""

    title: str
    """The name of the check."""
    findings: tuple[Finding, ...] = ()
    """What is wrong."""
    seen: str = ""
    """What was observed, in one line."""
    skipped: bool = False
    """There was nothing to check; `seen` says why."""

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
    """The results of all checks, in order."""

    @property
    def problems(self) -> list[Finding]:
        """Findings that will spoil the run."""
        return [finding for result in self.results for finding in result.findings if finding.severity == "problem"]

    @property
    def warnings(self) -> list[Finding]:
        """Findings that may be intended."""
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
