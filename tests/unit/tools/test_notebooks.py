"""Interpreters of many episodes: few are alive, those idle longest are closed, and variables come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agent_r1.tools.builtin.notebooks import CellRun, Interpreters, Notebook
from agent_r1.tools.builtin.python import brief_error
from agent_r1.tools.sandbox.session import SandboxReply


class FakeSession:
    """An interpreter that remembers its cells; the cell "kill" ends it, and "luck" ends differently each time."""

    def __init__(self, world: World) -> None:
        self.world, self.cells, self.is_over = world, [], False
        world.alive.add(self)
        world.most = max(world.most, len(world.alive))

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.is_over = True
        self.world.alive.discard(self)


class World:
    """Opens sessions and runs cells in them, as the tool does."""

    def __init__(self) -> None:
        self.alive: set[FakeSession] = set()
        self.most = 0
        self.num_lucky = 0

    async def open(self) -> Any:
        await asyncio.sleep(0)
        return FakeSession(self)

    async def ask(self, session: Any, code: str) -> SandboxReply:
        await asyncio.sleep(0)
        session.cells.append(code)
        if code == "kill":
            session.is_over = True
            return SandboxReply(ended="timeout")
        self.num_lucky += code == "luck"
        status = f"luck {self.num_lucky}" if code == "luck" else "ok"
        return SandboxReply(ended="answered", report={"status": status, "shown": " ".join(session.cells)})

    def run(self, interpreters: Interpreters, notebook: Notebook, code: str) -> Coroutine[Any, Any, CellRun]:
        return interpreters.run(notebook, code, self.open, self.ask)


def play(
    script: Callable[[World, Interpreters], Coroutine[Any, Any, None]], limit: int = 2, seconds: float = 9
) -> World:
    world = World()
    asyncio.run(script(world, Interpreters(limit, seconds)))
    return world


def test_many_notebooks_share_few_interpreters_and_keep_their_variables() -> None:
    async def script(world: World, interpreters: Interpreters) -> None:
        notebooks = [Notebook() for _ in range(20)]
        for turn in range(3):
            runs = await asyncio.gather(*(world.run(interpreters, book, f"cell {turn}") for book in notebooks))
            shown = " ".join(f"cell {number}" for number in range(turn + 1))
            assert {run.reply.report["shown"] for run in runs} == {shown}
            assert not [run for run in runs if run.lost_before or run.lost_after]
            assert interpreters.num_alive == len(world.alive) == 2
        await asyncio.gather(*(interpreters.close(book) for book in notebooks))
        assert interpreters.num_alive == len(world.alive) == 0

    assert play(script).most == 2


def test_the_interpreter_that_was_idle_longest_is_closed() -> None:
    async def script(world: World, interpreters: Interpreters) -> None:
        first, second, third = Notebook(), Notebook(), Notebook()
        for book in (first, second, first, third):
            await world.run(interpreters, book, "1")
        assert (first.session is None, second.session is None, third.session is None) == (False, True, False)

    play(script)


def test_calls_of_one_notebook_run_in_order() -> None:
    async def script(world: World, interpreters: Interpreters) -> None:
        book = Notebook()
        runs = await asyncio.gather(*(world.run(interpreters, book, str(number)) for number in range(4)))
        assert [run.reply.report["shown"] for run in runs] == ["0", "0 1", "0 1 2", "0 1 2 3"]

    play(script)


@pytest.mark.parametrize(("cell", "seconds"), [("luck", 9.0), ("1", -1.0)], ids=["it ends otherwise", "it took long"])
def test_variables_that_cannot_be_restored_are_reported_lost(cell: str, seconds: float) -> None:
    async def script(world: World, interpreters: Interpreters) -> None:
        book = Notebook()
        await world.run(interpreters, book, cell)
        await world.run(interpreters, Notebook(), "other")
        run = await world.run(interpreters, book, "next")
        assert (run.lost_before, run.reply.report["shown"]) == (True, "next")
        await world.run(interpreters, Notebook(), "other")
        again = await world.run(interpreters, book, "last")
        assert again.lost_before == (seconds < 0)

    play(script, limit=1, seconds=seconds)


def test_a_cell_that_is_killed_ends_its_interpreter_and_frees_its_place() -> None:
    async def script(world: World, interpreters: Interpreters) -> None:
        book = Notebook()
        await world.run(interpreters, book, "1")
        killed = await world.run(interpreters, book, "kill")
        assert (killed.lost_after, interpreters.num_alive, len(world.alive)) == (True, 0, 0)
        assert (await world.run(interpreters, book, "2")).reply.report["shown"] == "2"

    play(script, limit=1)


def test_a_session_that_cannot_start_frees_its_place() -> None:
    async def script(world: World, interpreters: Interpreters) -> None:
        async def fail() -> Any:
            raise OSError("no processes")

        with pytest.raises(OSError, match="no processes"):
            await interpreters.run(Notebook(), "1", fail, world.ask)
        assert interpreters.num_alive == 0

    play(script)


def test_a_brief_error_names_the_line_of_the_cell() -> None:
    frames = ['File "<cell 2>", line 3, in <module>', 'File "/x/sympy.py", line 9']
    trace = "\n".join(["Traceback (most recent call last):", *(f"  {frame}" for frame in frames), "E: no"])
    assert brief_error(trace) == "line 3: E: no"
    assert brief_error("MemoryError") == "MemoryError"
