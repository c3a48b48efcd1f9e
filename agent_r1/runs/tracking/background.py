"""A tracker in a thread of its own: what it does, raises or waits for never reaches the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType

from agent_r1.errors import INTERRUPTIONS, TrackerError, described
from agent_r1.runs.tracking.protocol import StatusTracker, Tracker

MAX_FAILURES = 3
"""A tracker that fails so many times in a row is not used any more."""
CLOSE_SECONDS = 60.0
"""How long a run waits at its end for a tracker that has not written everything yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackerFailure:
    """Something that a tracker could not do."""

    reason: str
    """In words, for a warning."""
    step: int | None
    """The step that it could not log; None at its end."""


class BackgroundTracker:
    """Passes metrics to a tracker in order, in one thread, and keeps what it raises until it is asked for."""

    def __init__(self, name: str, tracker: Tracker, *, close_seconds: float = CLOSE_SECONDS) -> None:
        self._name = name
        self._tracker = tracker
        self._close_seconds = close_seconds
        self._entries: SimpleQueue[tuple[int, Mapping[str, float]] | None] = SimpleQueue()
        self._failures: SimpleQueue[TrackerFailure] = SimpleQueue()
        self._is_used = True
        self._has_failed = False
        # A daemon: a tracker that hangs must not keep the process alive.
        self._thread = Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the metrics over; returns at once."""
        if self._is_used:
            self._entries.put((step, dict(metrics)))

    def failures(self) -> list[TrackerFailure]:
        """What failed since the last call."""
        failures: list[TrackerFailure] = []
        while True:
            try:
                failures.append(self._failures.get_nowait())
            except Empty:
                return failures

    def stop(self, *, failed: bool = False) -> None:
        """Close the tracker once it has logged everything, with `failed` as a run that failed; returns at once."""
        self._has_failed = failed
        self._entries.put(None)

    def wait(self) -> None:
        """Wait until it is closed, but not for ever."""
        self._thread.join(self._close_seconds)
        if self._thread.is_alive():
            reason = (
                f"tracker '{self._name}' is not closed {self._close_seconds:g} s after the end of the run and is "
                "abandoned; metrics.jsonl has every metric"
            )
            self._failures.put(TrackerFailure(reason=reason, step=None))

    def _work(self) -> None:
        in_a_row = 0
        while (entry := self._entries.get()) is not None:
            if not self._is_used:
                continue
            step, metrics = entry
            try:
                with guarded(self._name, "failed"):
                    self._tracker.log(step, metrics)
                in_a_row = 0
            except TrackerError as error:
                in_a_row += 1
                self._is_used = in_a_row < MAX_FAILURES
                after = "" if self._is_used else f"; after {MAX_FAILURES} failures in a row it is not used any more"
                self._failures.put(TrackerFailure(reason=f"{error}{after}", step=step))
        try:
            with guarded(self._name, "could not be closed"):
                if self._has_failed and isinstance(self._tracker, StatusTracker):
                    self._tracker.mark_failed()
                self._tracker.close()
        except TrackerError as error:
            self._failures.put(TrackerFailure(reason=str(error), step=None))


class guarded:  # noqa: N801 - it is used like a function
    """Turn everything that a tracker raises, `SystemExit` too, into a `TrackerError` that names it.

    >>> with guarded("mine", "failed"):
    ...     raise ConnectionError("no route")
    Traceback (most recent call last):
    agent_r1.errors.TrackerError: tracker 'mine' failed (ConnectionError: no route)
    """

    def __init__(self, name: str, what: str) -> None:
        self._text = f"tracker '{name}' {what}"

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, INTERRUPTIONS):
            raise TrackerError(f"{self._text} ({described(error)})") from error
