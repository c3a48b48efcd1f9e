"""Figures of a server in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Histogram:
    """Seconds, counted by upper bound."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        place = next((index for index, bound in enumerate(_BUCKETS) if seconds <= bound), len(_BUCKETS))
        self.counts[place] += 1
        self.total += seconds

    def lines(self, name: str) -> Iterable[str]:
        """The lines of the text format."""
        so_far = 0
        for bound, count in zip((*map(str, _BUCKETS), "+Inf"), self.counts, strict=True):
            so_far += count
            yield f'{name}_bucket{{le="{bound}"}} {so_far}'
        yield f"{name}_sum {self.total:.6f}"
        yield f"{name}_count {so_far}"


@dataclass
class ServerMetrics:
    """What the server counts."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Requests by path and status; 499: the client hung up."""
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    tool_calls: int = 0
    """Calls that the agent mode ran."""
    first_token: Histogram = field(default_factory=Histogram)
    """Seconds from a streamed request to its first event."""
    duration: Histogram = field(default_factory=Histogram)

    def text(self, gauges: dict[str, tuple[str, Callable[[], float]]]) -> str:
        """Everything as text; `gauges` are values that are read now: name, help and function."""
        lines: list[str] = []

        def add(name: str, kind: str, help_: str, values: Iterable[str]) -> None:
            lines.extend([f"# HELP agent_r1_{name} {help_}", f"# TYPE agent_r1_{name} {kind}", *values])

        by_path = [
            f'agent_r1_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self.requests.items())
        ]
        add("requests_total", "counter", "Requests by path and status.", by_path)
        for name, help_ in (
            ("prompt_tokens", "Tokens of prompts."),
            ("sampled_tokens", "Tokens that clients got."),
            ("tool_calls", "Tool calls that the server ran."),
        ):
            add(f"{name}_total", "counter", help_, [f"agent_r1_{name}_total {getattr(self, name)}"])
        for name, help_ in (
            ("first_token", "Seconds from a streamed request to its first token."),
            ("duration", "Seconds per request."),
        ):
            values = getattr(self, name).lines(f"agent_r1_{name}_seconds")
            add(f"{name}_seconds", "histogram", help_, values)
        for name, (help_, read) in gauges.items():
            add(name, "gauge", help_, [f"agent_r1_{name} {read():g}"])
        return "\n".join(lines) + "\n"
