"""A function mapped over many items in worker processes: order, early ends, errors, Ctrl-C, recipes' files."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from agent_r1.registry import load_object, recipe_folder
from agent_r1.tools.workers import map_in_workers, mapped
from agent_r1.tools.workers.pool import WorkerPool, WorkerRaisedError

COUNTS = [1, 3]


def square(number: int) -> int:
    return number * number


def square_slowly_at_first(number: int) -> int:
    time.sleep(0.05 if number == 0 else 0)
    return number * number


def refuse_seven(number: int) -> int:
    if number == 7:
        raise ValueError("seven")
    return number


def process_id(_: int) -> int:
    return os.getpid()


def results(function: Any, items: Any, **arguments: Any) -> list[tuple[Any, Any]]:
    async def run() -> list[tuple[Any, Any]]:
        async with asyncio.timeout(60):
            return [pair async for pair in map_in_workers(function, items, **arguments)]

    return asyncio.run(run())


@pytest.mark.parametrize("count", COUNTS)
def test_items_come_back_in_order_with_their_results(count: int) -> None:
    expected = [(number, number * number) for number in range(30)]
    assert results(square_slowly_at_first, iter(range(30)), num_processes=count) == expected
    assert results(square, [], num_processes=count) == []


def test_one_core_needs_no_other_process_and_several_use_others() -> None:
    assert {result for _, result in results(process_id, range(3), num_processes=1)} == {os.getpid()}
    assert os.getpid() not in {result for _, result in results(process_id, range(3), num_processes=2)}


@pytest.mark.parametrize(("count", "error"), [(1, ValueError), (2, WorkerRaisedError)])
def test_an_exception_of_the_function_reaches_the_caller(count: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="seven"):
        results(refuse_seven, range(20), num_processes=count)


def test_items_are_read_a_few_chunks_ahead_and_an_early_end_kills_the_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = WorkerPool(2)
    monkeypatch.setattr(mapped, "_pool", lambda _: pool)
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(10_000):
            read.append(number)
            yield number

    async def first_three() -> list[int]:
        async with aclosing(map_in_workers(square, items(), num_processes=2)) as pairs:
            taken = [(await anext(pairs))[1] for _ in range(3)]
            assert pool.pids()
            return taken

    assert asyncio.run(first_three()) == [0, 1, 4]
    assert pool.pids() == []
    assert len(read) == 4 * mapped.CHUNK_SIZE


@pytest.mark.parametrize("count", COUNTS)
def test_a_cancelled_caller_ends_at_once(count: int) -> None:
    async def run() -> int:
        seen = 0

        async def consume() -> None:
            nonlocal seen
            async with aclosing(map_in_workers(square, iter(int, 1), num_processes=count)) as pairs:
                async for _ in pairs:
                    seen += 1

        task = asyncio.create_task(consume())
        while not seen:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return seen

    assert asyncio.run(asyncio.wait_for(run(), 30)) > 0


def test_records_and_functions_of_a_recipe_folder_are_found_in_the_processes(tmp_path: Path) -> None:
    (tmp_path / "shapes.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass(frozen=True)\nclass Box:\n    side: int\n\n"
        "def area(box):\n    from agent_r1.registry import load_module\n"
        "    return load_module('shapes').Box(box.side).side ** 2\n"
    )
    with recipe_folder(tmp_path):
        box, area = (load_object(f"shapes:{name}", kind="function") for name in ("Box", "area"))
        assert [result for _, result in results(area, [box(2), box(3)], num_processes=2)] == [4, 9]
