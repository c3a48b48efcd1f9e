"""Metrics as JSON lines: what every run writes, and what reports, viewers and resumed runs read."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_r1.errors import DataError
from agent_r1.files import atomic_write

_MAX_STEP = 2**53
NOT_FINITE = "error/non_finite_metrics"
"""How many metrics of a step were NaN or infinite."""


class JsonlTracker:
    """One JSON object per line: `{"step": 3, "reward/outcome": 0.5, ...}`. Each line is on disk when `log` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with atomic_write(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line. JSON has no NaN and no infinity: such values are left out and counted."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        if len(finite) < len(metrics):
            finite[NOT_FINITE] = float(len(metrics) - len(finite))
        rounded = {name: float(f"{value:.6g}") for name, value in sorted(finite.items())}
        with atomic_write(self._path):
            self._file.write(json.dumps({"step": step, **rounded}, allow_nan=False) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, which retries a failed write; `log` has already raised for it."""
        with suppress(OSError):
            self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines that a `JsonlTracker` wrote; a last line cut short by a kill is left out. Any other line that cannot be
    read is a `DataError`: the lines after it must not be lost silently."""
    if not path.is_file():
        return []
    raw = path.read_bytes().split(b"\n")
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(raw, start=1):
        if not text.strip():
            continue
        line = parse_metrics_line(text)
        if line is None or not all(map(_is_number, line.values())):
            if not any(rest.strip() for rest in raw[number:]):
                break
            raise DataError(
                f"line {number} of {path} is not a line of metrics (JSON in UTF-8 with a step, and numbers alone); "
                "restore the file, or remove that line"
            )
        lines.append(line)
    return lines


def parse_metrics_line(text: bytes) -> dict[str, Any] | None:
    """The metrics of one line; None when it is not JSON in UTF-8 with a step."""
    try:
        line = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):  # no JSON, or not UTF-8
        return None
    step = line.get("step") if isinstance(line, dict) else None
    return line if isinstance(step, int) and abs(step) < _MAX_STEP else None


def _is_number(value: object) -> bool:
    """Whether it is a number that fits a float; integers of JSON may have hundreds of digits."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= sys.float_info.max)
