"""Where the main thread spends its time: a sampling profiler without dependencies, and the parts that frames belong to.

A timer interrupts the main thread every millisecond (`signal.setitimer`); what the interpreter was executing is one
sample. A call into C is attributed to the Python function that made it. Other threads are not seen.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import FrameType
from typing import Any

INTERVAL = 0.001
"""Seconds between two samples."""

WAITING = "waiting"
"""Nothing to do but to wait, or to ask again, until the device or a thread has finished. An engine that asks keeps the
event loop turning: then a part of `event loop` is waiting too."""
OTHER = "other"

PARTS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("parse", ("agent_r1/chat/formats/", "agent_r1/chat/text_stream.py")),
    ("render, encode", ("agent_r1/chat/",)),
    (
        "scheduler, prefix cache",
        tuple(f"agent_r1/engines/local/{name}.py" for name in ("scheduler", "prefix_cache", "blocks", "request")),
    ),
    ("engine steps", ("agent_r1/engines/", "benchmarks/common/free_engine.py")),
    ("tools, environment", ("agent_r1/tools/", "agent_r1/envs/", "benchmarks/common/hotpotqa.py")),
    ("reward", ("agent_r1/rewards/", "recipes/")),
    ("recording", ("agent_r1/runs/", "agent_r1/codec/", "agent_r1/files.py")),
    ("flows, rollout", ("agent_r1/flows/", "agent_r1/rollout/", "agent_r1/types/", "agent_r1/seeds.py")),
    ("learner", ("agent_r1/learner/", "agent_r1/algorithms/", "agent_r1/models/")),
    ("trainer", ("agent_r1/training/", "agent_r1/evaluation/", "agent_r1/console", "rich/")),
    ("event loop", ("/asyncio/", "/selectors.py")),
)
"""Parts of the host, each with texts that a frame's file contains. The innermost frame that belongs to a part decides;
`parse` also has the functions of `PARSING`."""

PARSING = {"own_turn", "parse", "text_of"}
"""Functions of the renderer that read what was sampled."""

POLLING = {"done", "_finish_step"}
"""Functions of the engine that ask whether the device has finished."""


def part_of(frame: FrameType | None) -> str:
    """The part of the host that a stack belongs to."""
    if frame is not None and _is_waiting(frame.f_code.co_filename, frame.f_code.co_name):
        return WAITING
    while frame is not None:
        part = _part_of(frame.f_code.co_filename, frame.f_code.co_name)
        if part is not None:
            return part
        frame = frame.f_back
    return OTHER


@cache
def _is_waiting(file: str, function: str) -> bool:
    return file.endswith("/selectors.py") or (function in POLLING and "agent_r1/engines/local/" in file)


@cache
def _part_of(file: str, function: str) -> str | None:
    if file.endswith("agent_r1/chat/renderer.py") and function in PARSING:
        return "parse"
    return next((part for part, texts in PARTS if any(text in file for text in texts)), None)


@dataclass
class HostProfile:
    """Samples of the main thread."""

    parts: Counter[str] = field(default_factory=Counter)
    """By part."""
    functions: Counter[str] = field(default_factory=Counter)
    """By the innermost Python function: `file:function`."""

    @property
    def num_samples(self) -> int:
        """How many samples were taken."""
        return self.parts.total()

    def share(self, part: str) -> float:
        """The share of a part in the time that was not spent waiting."""
        busy = self.num_samples - self.parts[WAITING]
        return self.parts[part] / busy if busy else 0.0

    def top(self, count: int) -> list[tuple[str, float]]:
        """The functions with the most samples, each with its share of all samples."""
        return [(name, number / self.num_samples) for name, number in self.functions.most_common(count)]

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Inside, the main thread is sampled. Must be entered in the main thread."""

        is_on = True

        def take(number: int, frame: FrameType | None) -> None:
            self.parts[part_of(frame)] += 1
            if frame is not None:
                self.functions[_name(frame)] += 1
            if is_on:  # one shot at a time: on a busy machine a sample may take longer than the interval
                signal.setitimer(signal.ITIMER_REAL, INTERVAL)

        before = signal.signal(signal.SIGALRM, take)
        signal.setitimer(signal.ITIMER_REAL, INTERVAL)
        try:
            yield
        finally:
            is_on = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            # A late signal must not end the process, which is what it does by default.
            signal.signal(signal.SIGALRM, signal.SIG_IGN if before in (None, signal.SIG_DFL) else before)


def _name(frame: FrameType) -> str:
    """The file below its package, and the function."""
    file = frame.f_code.co_filename
    for root in ("/site-packages/", "/agent_r1/", "/benchmarks/", "/recipes/", "/lib/"):
        if root in file:
            below = file.rpartition(root)[2]
            file = below if root in ("/site-packages/", "/lib/") else f"{root.strip('/')}/{below}"
            break
    return f"{file}:{frame.f_code.co_name}"


@dataclass
class Clock:
    """Seconds of wall time and of processor time: of this thread, and of the whole process."""

    wall: float = 0.0
    thread: float = 0.0
    process: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, time is added."""
        started = _now()
        try:
            yield
        finally:
            wall, thread, process = (now - then for now, then in zip(_now(), started, strict=True))
            self.wall += wall
            self.thread += thread
            self.process += process


def _now() -> tuple[float, float, float]:
    return time.perf_counter(), time.thread_time(), time.process_time()


def as_json(profile: HostProfile) -> dict[str, Any]:
    """The samples, for a file."""
    return {"samples": profile.num_samples, "parts": dict(profile.parts), "top": profile.top(40)}
