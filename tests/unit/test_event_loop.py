"""Blocking functions inside a running event loop, as in a notebook."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from agent_r1.event_loop import Timer, callable_in_event_loop, gather_or_cancel, run_cancelling, timeout
from agent_r1.interrupts import RunInterrupted, stop_signals

NAME: ContextVar[str] = ContextVar("name", default="nobody set it")


async def name_and_thread() -> tuple[str, int]:
    await asyncio.sleep(0)
    return NAME.get(), threading.get_ident()


@callable_in_event_loop
def blocking(addend: int = 0) -> tuple[str, int]:
    """A docstring."""
    name, thread = run_cancelling(name_and_thread)
    return name, thread + addend


@callable_in_event_loop
def sleeping() -> None:
    run_cancelling(lambda: asyncio.sleep(30))


@callable_in_event_loop
def spinning() -> None:
    """Computes outside of any loop, as a warm start does."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        time.sleep(0.001)


def interrupt_soon(seconds: float = 0.3) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_without_a_running_loop_the_function_runs_in_the_callers_thread() -> None:
    assert blocking(1)[1] == threading.get_ident() + 1


def test_in_a_running_loop_it_runs_in_another_thread_with_the_callers_context() -> None:
    async def main() -> tuple[str, int]:
        NAME.set("the caller")
        return blocking()

    name, thread = asyncio.run(main())
    assert name == "the caller"
    assert thread != threading.get_ident()


def test_what_it_raises_comes_out_as_it_is() -> None:
    @callable_in_event_loop
    def failing() -> None:
        raise LookupError("no such thing")

    async def main() -> None:
        failing()

    with pytest.raises(LookupError, match="no such thing"):
        asyncio.run(main())


def test_the_function_keeps_its_name_and_docstring() -> None:
    assert (blocking.__name__, blocking.__doc__) == ("blocking", "A docstring.")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT as a terminal's process has it: a process that was started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("function", [sleeping, spinning])
def test_ctrl_c_interrupts_it_in_a_running_loop(function: object) -> None:
    async def main() -> None:
        interrupt_soon()
        function()  # type: ignore[operator]

    before, started = signal.getsignal(signal.SIGINT), time.monotonic()
    with pytest.raises(RunInterrupted, match="SIGINT"):
        asyncio.run(main())
    assert time.monotonic() - started < 10
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.whole
@pytest.mark.usefixtures("interruptible")
def test_a_deferred_part_is_not_interrupted() -> None:
    finished = []

    @callable_in_event_loop
    def updating() -> None:
        with stop_signals() as stop, stop.deferred():
            time.sleep(0.5)
            finished.append("update")
            stop.check()

    async def main() -> None:
        interrupt_soon(0.2)
        updating()

    with pytest.raises(RunInterrupted):
        asyncio.run(main())
    assert finished == ["update"]


PUBLIC = """
import asyncio
from agent_r1 import AgentEnv, Task, ToolEnv, check_env, check_tool, tool, try_tool, try_flow, SingleStepFlow

@tool
def double(number: int) -> int:
    \"\"\"Twice a number.

    Args:
        number: What to double.
    \"\"\"
    return 2 * number

async def main():
    task = Task(task_id="t", prompt=({"role": "user", "content": "?"},))
    print(try_tool(double, {"number": 21}).response.text)
    print(check_tool(double, [{"number": 1}]))
    print(check_env(lambda: ToolEnv(tools=[double]), task))
    print(try_flow(SingleStepFlow, task, ["42"]).answer)

asyncio.run(main())
"""


@pytest.mark.whole
def test_the_trials_of_tools_environments_and_flows_work_in_a_running_loop() -> None:
    done = subprocess.run([sys.executable, "-c", PUBLIC], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["42", "[]", "[]", "42"], done.stderr


def test_when_one_of_several_coroutines_raises_the_others_have_ended() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0)
            ended.append("the other")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def run() -> None:
        with pytest.raises(ValueError, match="no"):
            await gather_or_cancel([wait(), fail()])
        assert ended == ["the other"]
        assert await gather_or_cancel(asyncio.sleep(0, number) for number in (1, 2)) == [1, 2]
        assert await gather_or_cancel([asyncio.sleep(0, 3)]) == [3]

    asyncio.run(run())


def stop_for(seconds: float) -> None:
    """Stand still soon, as a process does that is stopped and continued (Ctrl-Z and fg)."""
    asyncio.get_running_loop().call_later(0.01, time.sleep, seconds)


def test_what_ended_while_the_process_stood_still_is_no_timeout() -> None:
    async def main() -> bytes:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            threading.Timer(0.03, theirs.send, (b"done",)).start()
            stop_for(0.2)
            async with timeout(0.05):
                return await asyncio.get_running_loop().sock_recv(ours, 10)

    assert asyncio.run(main()) == b"done"


def test_a_deadline_that_was_missed_while_the_process_stood_still_still_ends_what_hangs() -> None:
    async def main() -> bool:
        stop_for(0.2)
        with pytest.raises(TimeoutError):
            async with timeout(0.05) as limit:
                await asyncio.Event().wait()
        return limit.expired()

    assert asyncio.run(main())


def test_a_timer_whose_loop_runs_is_on_time_and_one_that_is_cancelled_never_fires() -> None:
    async def main() -> list[str]:
        fired: list[str] = []
        Timer(0.01, lambda: fired.append("kept"))
        Timer(0.01, lambda: fired.append("cancelled")).cancel()
        await asyncio.sleep(0.03)
        return fired

    assert asyncio.run(main()) == ["kept"]


def test_a_call_that_hangs_ends_on_a_loop_that_is_always_late() -> None:
    async def main() -> float:
        async def compute() -> None:
            while True:  # an engine on the loop, whose steps take long
                time.sleep(0.15)
                await asyncio.sleep(0)

        engine = asyncio.ensure_future(compute())
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with timeout(0.2):
                await asyncio.Event().wait()
        engine.cancel()
        return time.monotonic() - began

    assert asyncio.run(main()) < 5.0
