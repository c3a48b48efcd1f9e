"""The profile of one training step (`tracking.profile_step`): a trace to look at, and tables to read.

runs/NAME/profile/step_3.json.gz       for https://ui.perfetto.dev or chrome://tracing
runs/NAME/profile/step_3.txt           operations and GPU kernels by the time that they took
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, record_function

from agent_r1.errors import StorageError
from agent_r1.files import write_atomically

PARTS = ("rollout", "update", "weight update")
"""What a step consists of."""
ROWS = 40
"""Rows of a table."""
NAME_WIDTH = 90
"""Characters of a name: those of kernels are longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """What a profiler has counted of one operation or kernel."""

    name: str
    """Its name."""
    count: int
    """How often it ran."""
    cpu: float
    """Seconds on the processor, without those of operations that it called."""
    gpu: float
    """Seconds on the GPU, likewise."""


class StepProfile:
    """The profile of what runs inside a `with` block; `write` puts it into a folder."""

    def __init__(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profiler: Any = torch.profiler.profile(activities=activities, experimental_config=_all_threads())
        self._started = self._seconds = 0.0

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        self._profiler.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._profiler.__exit__(kind, error, trace)
        self._seconds = time.perf_counter() - self._started

    def write(self, folder: Path, step: int) -> str:
        """Write the trace and the tables of step `step`; returns where they are, in words. Raises `StorageError` when
        they cannot be written."""
        trace, tables = folder / f"step_{step}.json.gz", folder / f"step_{step}.txt"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._profiler.export_chrome_trace(str(trace))
            title = f"Step {step}, {self._seconds:.2f} s with the profiler, which takes time itself.\n"
            write_atomically(tables, title + tables_of(list(map(_operation, self._profiler.key_averages()))))
        except OSError as error:
            raise StorageError(f"the profile of step {step} could not be written to {folder}: {error}") from error
        return f"profile of step {step}: {tables}; {trace} is for https://ui.perfetto.dev"


def _all_threads() -> Any:
    """The setting that records all threads: an update is computed in the learner's own. None where this version of
    torch has no such setting; it then records the main thread alone, and all GPU kernels."""
    try:
        return _ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        return None


def profiled_part(name: str) -> AbstractContextManager[Any]:
    """One of `PARTS`, by which operations are grouped in the trace."""
    return record_function(name)


def _operation(event: Any) -> Operation:
    name, is_part = str(event.key), event.key in PARTS
    return Operation(
        name=f"{name}: Python, and waiting" if is_part else name,
        count=int(event.count),
        cpu=event.self_cpu_time_total / 1e6,
        gpu=0.0 if is_part else getattr(event, "self_device_time_total", 0.0) / 1e6,
    )


def tables_of(operations: Sequence[Operation]) -> str:
    """The operations that took longest: on the GPU, where there is one, and on the processor."""
    places: dict[str, Callable[[Operation], float]] = {
        "On the GPU": lambda operation: operation.gpu,
        "On the processor": lambda operation: operation.cpu,
    }
    return "".join(
        _table(title, operations, seconds) for title, seconds in places.items() if any(map(seconds, operations))
    )


def _table(title: str, operations: Sequence[Operation], seconds: Callable[[Operation], float]) -> str:
    total = sum(map(seconds, operations))
    longest = sorted(operations, key=seconds, reverse=True)[:ROWS]
    lines = [
        f"{seconds(one):9.4f}  {100 * seconds(one) / total:5.1f} %  {one.count:8}  {_short(one.name)}\n"
        for one in longest
        if seconds(one)
    ]
    return f"\n{title}, {total:.3f} s in all\n\n  seconds    share     count  name\n" + "".join(lines)


def _short(name: str) -> str:
    """A name that fits a line.

    >>> _short("void  kernel<float>\\n(int)")
    'void kernel<float> (int)'
    """
    line = " ".join(name.split())
    return line if len(line) <= NAME_WIDTH else f"{line[: NAME_WIDTH - 3]}..."
