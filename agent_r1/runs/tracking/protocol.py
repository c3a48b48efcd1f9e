"""The `Tracker` protocol: what the run calls of a tracker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


class Tracker(Protocol):
    """Takes the metrics of one step. Its methods are called one after the other, in a thread of the tracker's own."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics."""
        ...

    def close(self) -> None:
        """Finish writing."""
        ...


@runtime_checkable
class StatusTracker(Tracker, Protocol):
    """A tracker that shows how a run ended. Optional: `close` alone means that it finished."""

    def mark_failed(self) -> None:
        """Called before `close` when an error or a signal ended the run before its last step."""
        ...


class NoTracker:
    """Writes nothing: for a process of a run whose metrics another one writes."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Drop the metrics."""

    def close(self) -> None:
        """There is nothing to finish."""
