"""How long this process has waited for `torch.compile`. The first steps of a run on a GPU compile, so they are slow.

Whoever compiles something calls `watch_compilation` first; processes that compile nothing do not import the compiler.
"""

from __future__ import annotations

import threading
import time


class CompileClock:
    """Adds up the seconds between the callbacks of the compiler, which calls them once for compilations that
    overlap."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0
        self._started: float | None = None

    def start(self, _: object = None) -> None:
        """Note that a compilation begins."""
        with self._lock:
            self._started = time.perf_counter()

    def stop(self, _: object = None) -> None:
        """Note that the compilation has ended."""
        with self._lock:
            if self._started is not None:
                self._seconds += time.perf_counter() - self._started
            self._started = None

    def read(self) -> float:
        """The seconds so far, with those of a compilation that is going on."""
        with self._lock:
            return self._seconds + (0.0 if self._started is None else time.perf_counter() - self._started)


_CLOCK = CompileClock()


def watch_compilation() -> None:
    """Count what is compiled from here on; calling it again changes nothing."""
    from torch._dynamo.callback import callback_handler  # imports the compiler, which takes a second

    if _CLOCK.start not in callback_handler.start_callbacks:  # torch._dynamo.reset() forgets it
        callback_handler.register_start_callback(_CLOCK.start)
        callback_handler.register_end_callback(_CLOCK.stop)


def compile_seconds() -> float:
    """Seconds that this process has waited for compilations, also those that its threads have made; 0 where nothing
    was compiled."""
    return _CLOCK.read()
