"""Where the time of one training step goes."""

from __future__ import annotations

import time

from agent_r1.metric_names import COMPILE_SECONDS, STEP_SECONDS
from agent_r1.models import compile_seconds


class StepTimes:
    """Times a step: each call of `ended` ends one of its parts, and the next one begins."""

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter()
        self._compiled = compile_seconds()
        self._parts: dict[str, float] = {}

    def ended(self, part: str) -> float:
        """Note the end of a part; returns its seconds."""
        now = time.perf_counter()
        self._parts[f"time/{part}"] = seconds = now - self._last
        self._last = now
        return seconds

    def metrics(self) -> dict[str, float]:
        """The seconds of the parts and of the whole step until now, and those in which something was compiled."""
        compiled = {COMPILE_SECONDS: compile_seconds() - self._compiled} if compile_seconds() else {}
        return {**self._parts, STEP_SECONDS: time.perf_counter() - self._started, **compiled}
