"""Worker processes: calls that raise, hang, fork, die and eat memory, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_r1.errors import ConfigError, EpisodeError
from agent_r1.registry import load_object, recipe_folder
from agent_r1.tools.workers.function_ref import FunctionRef
from agent_r1.tools.workers.imported_code import CodeChangedError, code_on_disk, imported_code, modules_of
from agent_r1.tools.workers.pool import WorkerDiedError, WorkerPool, WorkerRaisedError, WorkerTimeoutError
from tests.helpers import foreign_code

ROOT = Path(__file__).parents[3]


def with_pool(body: Callable[[WorkerPool], Awaitable[Any]], **arguments: Any) -> Any:
    """Run `body` with a pool that is closed afterwards; nothing may take a minute, and no worker may be left."""

    async def run() -> Any:
        pool = WorkerPool(arguments.pop("size", 1), **arguments)
        try:
            async with asyncio.timeout(60):
                return await body(pool)
        finally:
            pids = pool.pids()
            await pool.close()
            assert not [pid for pid in pids if is_running(pid)]

    return asyncio.run(run())


def call(function: Callable[..., Any], *args: Any, timeout: float = 20, **arguments: Any) -> Any:
    return with_pool(lambda pool: pool.call(function, *args, timeout=timeout), **arguments)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_until_gone(pids: list[int], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while any(map(is_running, pids)):
        assert time.monotonic() < end, [pid for pid in pids if is_running(pid)]
        time.sleep(0.01)


def read_pids(file: Path, count: int = 1, seconds: float = 20) -> list[int]:
    end = time.monotonic() + seconds
    while not file.exists() or len(file.read_text().split()) < count:
        assert time.monotonic() < end
        time.sleep(0.01)
    return [int(pid) for pid in file.read_text().split()]


@pytest.mark.whole
def test_calls_of_both_kinds_come_back() -> None:
    async def body(pool: WorkerPool) -> list[int]:
        return [
            await pool.call(foreign_code.double, 4, timeout=20),
            await pool.call(foreign_code.double_later, 5, timeout=20),
        ]

    assert with_pool(body) == [8, 10]


@pytest.mark.whole
def test_a_worker_lives_on_after_a_call_and_after_an_error() -> None:
    async def body(pool: WorkerPool) -> set[int]:
        pids = {await pool.call(foreign_code.own_pid, timeout=20)}
        for function in (foreign_code.raise_value_error, foreign_code.exit_politely):
            with pytest.raises(WorkerRaisedError):
                await pool.call(function, timeout=20)
            pids.add(await pool.call(foreign_code.own_pid, timeout=20))
        return pids

    [pid] = with_pool(body)
    assert pid != os.getpid()


@pytest.mark.whole
def test_an_exception_comes_back_with_its_message_and_traceback() -> None:
    with pytest.raises(WorkerRaisedError, match="there is no tea") as caught:
        call(foreign_code.raise_value_error)
    assert "in raise_value_error" in caught.value.__notes__[0]


@pytest.mark.whole
@pytest.mark.parametrize(
    "function",
    [
        foreign_code.loop_for_ever,
        foreign_code.sleep_for_ever,
        foreign_code.ignore_signals,
        foreign_code.swallow_everything,
        foreign_code.hold_the_interpreter,
    ],
)
def test_a_call_that_hangs_is_killed_and_its_worker_replaced(function: Callable[[], None]) -> None:
    async def body(pool: WorkerPool) -> None:
        first = await pool.call(foreign_code.own_pid, timeout=20)
        with pytest.raises(WorkerTimeoutError, match=r"took longer than 0.2 s and was killed"):
            await pool.call(function, timeout=0.2)
        second = await pool.call(foreign_code.own_pid, timeout=20)
        assert second != first
        wait_until_gone([first])

    with_pool(body)


@pytest.mark.whole
def test_children_of_a_call_that_hangs_are_killed_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with pytest.raises(WorkerTimeoutError):
        call(foreign_code.fork_and_hang, str(file), timeout=1)
    wait_until_gone(read_pids(file, count=2))


def test_a_replacement_that_cannot_be_started_hides_neither_result_nor_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(pool: WorkerPool) -> None:
        raise OSError(24, "Too many open files")

    async def body(pool: WorkerPool) -> None:
        await pool.call(foreign_code.own_pid, timeout=20)
        with monkeypatch.context() as full:
            full.setattr(WorkerPool, "_start", no_more)
            with pytest.raises(WorkerTimeoutError):
                await pool.call(foreign_code.loop_for_ever, timeout=0.2)
            with pytest.raises(OSError, match="Too many open files"):
                await pool.call(foreign_code.own_pid, timeout=20)
        file = tmp_path / "pids"
        await pool.call(foreign_code.own_pid, timeout=20)
        with monkeypatch.context() as full:
            full.setattr(WorkerPool, "_start", no_more)
            assert await pool.call(foreign_code.fork_and_answer, str(file), timeout=20) == "done"
        await pool.call(foreign_code.own_pid, timeout=20)

    with_pool(body, size=1)


@pytest.mark.whole
@pytest.mark.parametrize(
    "function",
    [
        foreign_code.fork_and_answer,
        foreign_code.leave_an_orphan,
        foreign_code.leave_an_orphan_in_its_own_session,
    ],
)
def test_children_left_behind_by_a_call_are_killed(function: Callable[[str], str], tmp_path: Path) -> None:
    file = tmp_path / "pids"

    async def body(pool: WorkerPool) -> None:
        assert await pool.call(function, str(file), timeout=20) == "done"
        wait_until_gone(read_pids(file))

    with_pool(body)


@pytest.mark.whole
def test_a_child_that_has_ended_costs_no_worker() -> None:
    async def body(pool: WorkerPool) -> set[int]:
        pids = {await pool.call(foreign_code.own_pid, timeout=20)}
        assert await pool.call(foreign_code.leave_one_that_has_ended, timeout=20) == "done"
        return pids | {await pool.call(foreign_code.own_pid, timeout=20)}

    assert len(with_pool(body)) == 1


@pytest.mark.whole
def test_a_call_that_returns_twice_answers_once() -> None:
    async def body(pool: WorkerPool) -> list[Any]:
        return [
            await pool.call(foreign_code.fork_and_come_back, timeout=20),
            await pool.call(foreign_code.double, 2, timeout=20),
        ]

    assert with_pool(body) == ["hello", 4]


@pytest.mark.whole
def test_children_of_a_worker_that_died_are_killed_and_do_not_hide_its_death(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with pytest.raises(WorkerDiedError, match="exit code 7"):
        call(foreign_code.fork_and_die, str(file))
    wait_until_gone(read_pids(file))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("function", "args", "ending"),
    [
        (foreign_code.leave, (3,), "ended with exit code 3"),
        (foreign_code.leave, (0,), "ended with exit code 0"),
        (foreign_code.segfault, (), "was killed by SIGSEGV"),
        (foreign_code.be_killed, (), "was killed by SIGKILL"),
    ],
)
def test_a_worker_that_dies_is_one_failed_call(function: Callable[..., None], args: Any, ending: str) -> None:
    async def body(pool: WorkerPool) -> int:
        with pytest.raises(WorkerDiedError, match=ending):
            await pool.call(function, *args, timeout=20)
        return int(await pool.call(foreign_code.double, 3, timeout=20))

    assert with_pool(body) == 6


@pytest.mark.whole
def test_a_worker_that_dies_while_idle_fails_no_call() -> None:
    async def body(pool: WorkerPool) -> int:
        pid = await pool.call(foreign_code.own_pid, timeout=20)
        os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.1)
        return int(await pool.call(foreign_code.double, 3, timeout=20))

    assert with_pool(body) == 6


@pytest.mark.whole
def test_a_python_without_waitid_has_workers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "waitid")  # as on macOS before Python 3.13

    async def body(pool: WorkerPool) -> list[Any]:
        await pool.call(foreign_code.forget_waitid, timeout=20)
        results = [await pool.call(foreign_code.double, 2, timeout=20)]
        os.kill(await pool.call(foreign_code.own_pid, timeout=20), signal.SIGKILL)
        await asyncio.sleep(0.1)
        return [*results, await pool.call(foreign_code.double, 3, timeout=20)]

    assert with_pool(body) == [4, 6]


@pytest.mark.whole
def test_a_memory_limit_turns_greed_into_an_error() -> None:
    with pytest.raises((WorkerRaisedError, WorkerDiedError)) as caught:
        call(foreign_code.eat_memory, memory_bytes=400 * 2**20)
    assert "MemoryError" in str(caught.value)


@pytest.mark.whole
def test_a_result_that_is_too_large_is_refused_in_the_worker() -> None:
    async def body(pool: WorkerPool) -> None:
        with pytest.raises(WorkerRaisedError, match="at most 1,000,000 are taken"):
            await pool.call(foreign_code.huge_text, 100_000_000, timeout=20)
        assert len(await pool.call(foreign_code.huge_text, 900_000, timeout=20)) == 900_000

    with_pool(body, max_result_bytes=1_000_000)


@pytest.mark.whole
@pytest.mark.parametrize("function", [foreign_code.an_object, foreign_code.circle])
def test_what_is_not_plain_data_is_refused(function: Callable[[], Any]) -> None:
    with pytest.raises(WorkerRaisedError, match=r"returned a object|recursion"):
        call(function)


def test_arguments_that_cannot_be_sent_are_refused() -> None:
    with pytest.raises(TypeError, match=r"arguments of tests\.helpers\.foreign_code:double cannot be sent"):
        call(foreign_code.double, lambda: 1)


def test_functions_without_a_name_of_their_own_are_refused_with_advice() -> None:
    def local() -> None: ...

    renamed = foreign_code.double
    for function in (local, lambda: 1, 5):
        with pytest.raises(ConfigError, match="Define it with `def` at the top level of a module"):
            FunctionRef.of(function)  # type: ignore[arg-type]
    assert str(FunctionRef.of(renamed)) == "tests.helpers.foreign_code:double"


@pytest.mark.whole
def test_a_function_of_a_recipe_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("FACTOR = 3\n")
    (tmp_path / "reward_fn.py").write_text("from .helper import FACTOR\n\ndef score(x):\n    return FACTOR * x\n")
    with recipe_folder(tmp_path):
        score = load_object("reward_fn:score", kind="reward function")
    assert call(score, 5) == 15


@pytest.mark.parametrize("changed", ["reward_fn.py", "helper.py"])
def test_code_that_was_changed_after_it_was_imported_is_refused_where_it_is_imported_later(
    tmp_path: Path, changed: str
) -> None:
    (tmp_path / "helper.py").write_text("FACTOR = 3\n")
    (tmp_path / "reward_fn.py").write_text("from .helper import FACTOR\n\ndef score(x):\n    return FACTOR * x\n")
    with recipe_folder(tmp_path):
        reference = FunctionRef.of(load_object("reward_fn:score", kind="reward function"))
    with (tmp_path / changed).open("a") as file:
        file.write("# More.\n")
    assert reference.load()(5) == 15  # here it was imported before the change
    package = reference.module.partition(".")[0]
    modules = modules_of(package)
    before, now = imported_code(modules), code_on_disk(modules)
    assert {sys.modules[name].__file__ for name in modules if before[name] != now[name]} == {str(tmp_path / changed)}
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        del sys.modules[name]
    with pytest.raises(CodeChangedError, match=rf"{changed} was changed while a run uses it.* Undo the change"):
        reference.load()


@pytest.mark.whole
def test_a_worker_with_other_code_than_the_run_fails_the_rollout_and_is_no_error_of_the_tool(tmp_path: Path) -> None:
    (tmp_path / "reward_fn.py").write_text("def score(x):\n    return 3 * x\n")
    with recipe_folder(tmp_path):
        score = load_object("reward_fn:score", kind="reward function")
    FunctionRef.of(score)
    (tmp_path / "reward_fn.py").write_text("def score(x):\n    return 4 * x\n")
    with pytest.raises(EpisodeError, match=r"reward_fn.py was changed while a run uses it"):
        call(score, 5)


@pytest.mark.whole
def test_the_loop_goes_on_while_workers_work() -> None:
    async def body(pool: WorkerPool) -> float:
        await pool.call(foreign_code.double, 1, timeout=20)
        worst, running = 0.0, True

        async def watch() -> None:
            nonlocal worst
            while running:
                before = time.perf_counter()
                await asyncio.sleep(0.005)
                worst = max(worst, time.perf_counter() - before)

        watching = asyncio.create_task(watch())
        await pool.call(foreign_code.huge_text, 20_000_000, timeout=20)
        with pytest.raises(WorkerTimeoutError):
            await pool.call(foreign_code.loop_for_ever, timeout=3)
        running = False
        await watching
        return worst

    assert with_pool(body) < 1.5


@pytest.mark.whole
def test_a_cancelled_call_kills_its_worker(tmp_path: Path) -> None:
    file = tmp_path / "pid"

    async def body(pool: WorkerPool) -> None:
        calling = asyncio.create_task(pool.call(foreign_code.hang_here, str(file), timeout=100))
        [pid] = await asyncio.to_thread(read_pids, file)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        wait_until_gone([pid])

    with_pool(body)


@pytest.mark.whole
def test_as_many_calls_run_at_once_as_there_are_workers() -> None:
    async def body(pool: WorkerPool) -> None:
        pids = await asyncio.gather(*(pool.call(foreign_code.own_pid, timeout=20) for _ in range(12)))
        assert 1 <= len(set(pids)) <= 2
        assert len(pool.pids()) <= 2

    with_pool(body, size=2)


@pytest.mark.whole
def test_closing_fails_calls_under_way(tmp_path: Path) -> None:
    file = tmp_path / "pid"

    async def run() -> None:
        pool = WorkerPool(1)
        calling = asyncio.create_task(pool.call(foreign_code.hang_here, str(file), timeout=100))
        pids = await asyncio.to_thread(read_pids, file)
        await pool.close()
        with pytest.raises(WorkerDiedError):
            await calling
        wait_until_gone(pids)
        with pytest.raises(RuntimeError, match="closed"):
            await pool.call(foreign_code.double, 1, timeout=1)

    asyncio.run(run())


PARENT = """
import asyncio, sys
from agent_r1.tools.workers.pool import WorkerPool
from tests.helpers import foreign_code

async def main():
    pool = WorkerPool(3)
    await asyncio.gather(*(pool.call(foreign_code.double, 1, timeout=20) for _ in range(6)))
    print(*pool.pids(), flush=True)
    {ending}

asyncio.run(main())
"""


def parent(ending: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT.format(ending=ending), *args],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.whole
@pytest.mark.parametrize("function", ["hang_here", "hold_the_interpreter"])
def test_killing_the_parent_leaves_no_process(function: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with parent(f"await pool.call(foreign_code.{function}, sys.argv[1], timeout=1000)", str(file)) as started:
        assert started.stdout is not None
        pids = [int(pid) for pid in started.stdout.readline().split()]
        pids += read_pids(file)
        started.kill()
    wait_until_gone(pids)


@pytest.mark.whole
@pytest.mark.parametrize("ending", ["return", "raise SystemExit(0)"])
def test_a_parent_that_forgets_to_close_leaves_no_process(ending: str) -> None:
    with parent(ending) as started:
        assert started.stdout is not None
        pids = [int(pid) for pid in started.stdout.readline().split()]
    assert started.returncode == 0
    assert len(pids) >= 1
    wait_until_gone(pids)
