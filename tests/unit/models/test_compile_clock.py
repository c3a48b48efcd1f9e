"""The clock of compilations: what `torch.compile` takes is counted, and only that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from agent_r1.models import compile_seconds, watch_compilation
from agent_r1.models.compile_clock import CompileClock

COMPILING = 0.2


def slow_backend(graph: Any, inputs: Any) -> Callable[..., Any]:
    time.sleep(COMPILING)
    return graph.forward  # type: ignore[no-any-return]


def test_seconds_of_a_compilation_are_counted_once_per_shape_and_not_when_it_only_runs() -> None:
    watch_compilation()
    watch_compilation()  # counts nothing twice
    double = torch.compile(lambda x: x * 2 + 1, backend=slow_backend, dynamic=False)
    before = compile_seconds()
    double(torch.ones(3))
    first = compile_seconds() - before
    assert COMPILING <= first < 20 * COMPILING
    double(torch.zeros(3))
    assert compile_seconds() - before == first
    double(torch.ones(4))
    assert compile_seconds() - before >= first + COMPILING


def test_a_compilation_that_is_going_on_counts_and_an_end_without_a_start_does_not() -> None:
    clock = CompileClock()
    clock.stop()
    assert clock.read() == 0
    clock.start()
    time.sleep(0.01)
    going_on = clock.read()
    assert going_on >= 0.01
    clock.stop()
    ended = clock.read()
    assert ended >= going_on
    time.sleep(0.01)
    assert clock.read() == ended
