"""Sessions that are forks of one process: what was imported is there, and they are as confined as any other."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from agent_r1.errors import ConfigError, EpisodeError
from agent_r1.tools import PythonTool, SandboxLimits, ToolContext
from agent_r1.tools.builtin.python import _CELLS
from agent_r1.tools.sandbox import fork_server
from agent_r1.tools.sandbox import session as session_module
from agent_r1.tools.sandbox.sandbox import Sandbox
from agent_r1.tools.sandbox.session import SandboxSession
from agent_r1.types import Task

PRELOAD = "import fractions, sys\nsys.modules['fractions'].marker = 'preloaded'"


def sandbox(kind: Any = "auto", preload: str = PRELOAD, **limits: int) -> Sandbox:
    try:
        return Sandbox(kind, SandboxLimits(**{"memory_mb": 256, **limits}), packages=True, preload=preload)
    except ConfigError as error:
        pytest.skip(str(error))


async def show(session: SandboxSession, code: str) -> str:
    reply = await session.ask({"code": code}, seconds=20)
    assert reply.ended == "answered", reply
    return str(reply.report["shown"])


def with_session(box: Sandbox, script: Callable[[SandboxSession], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        session = await box.open(_CELLS)
        try:
            await script(session)
        finally:
            await session.close()

    asyncio.run(run())


def server_of(box: Sandbox) -> fork_server.ForkServer:
    return list(fork_server._servers.values())[-1]


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("kind", ["namespaces", "limits"])
def test_a_session_has_what_was_preloaded_and_nothing_of_other_sessions(kind: str) -> None:
    box = sandbox(kind)

    async def script(session: SandboxSession) -> None:
        other = await box.open(_CELLS)
        assert await show(session, "import fractions; fractions.marker") == "'preloaded'"
        await show(session, "fractions.marker = 'changed'; x = 1")
        assert await show(other, "import fractions; fractions.marker") == "'preloaded'"
        assert "NameError" in await show(other, "x")
        await other.close()

    with_session(box, script)


def test_a_forked_session_is_confined_like_any_other() -> None:
    box = sandbox("namespaces")

    async def script(session: SandboxSession) -> None:
        assert await show(session, "import os; sorted(os.environ)") in ("[]", "['LC_CTYPE']")
        assert await show(session, f"os.path.exists({__file__!r})") == "False"
        assert await show(session, "sorted(int(p) for p in os.listdir('/proc') if p.isdigit())[:1]") == "[1]"
        links = "[os.readlink(f'/proc/self/fd/{n}').split(':')[0] for n in sorted(os.listdir('/proc/self/fd'))[:-1]]"
        assert "socket" not in await show(session, links)
        connect = "import socket; socket.create_connection(('127.0.0.1', 9), 1)"
        assert "Network is unreachable" in await show(session, connect)
        reply = await session.ask({"code": "bytearray(1 << 30)"}, seconds=20)
        assert reply.report["status"] == "memory"
        if os.getuid() == 0:
            assert await show(session, "os.getuid() != 0") == "True"

    with_session(box, script)


def test_closing_a_session_ends_its_processes() -> None:
    box = sandbox("limits")
    pids = []

    async def script(session: SandboxSession) -> None:
        pids.append(int(await show(session, "import os; os.getpid()")))
        pids.append(int(await show(session, "os.getppid()")))

    with_session(box, script)
    give_up = time.monotonic() + 10  # a killed process may wait for a core before it ends
    while not all(map(has_ended, pids)) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert all(map(has_ended, pids))


@pytest.mark.whole
def test_a_session_that_does_not_end_is_killed_by_the_server() -> None:
    box = sandbox("limits")

    async def script(session: SandboxSession) -> None:
        guard = int(await show(session, "import os; os.getppid()"))
        os.kill(guard, signal.SIGSTOP)  # it cannot notice that its owner is done
        await session.close()
        assert has_ended(guard)

    with_session(box, script)


@pytest.mark.whole
def test_a_server_that_was_killed_is_replaced_and_its_sessions_end() -> None:
    box = sandbox("namespaces", PRELOAD + "\n# another server")

    async def run() -> None:
        first = await box.open(_CELLS)
        await show(first, "1")
        server = server_of(box)
        os.kill(server.pid, signal.SIGKILL)
        reply = await first.ask({"code": "import time; time.sleep(60)"}, seconds=30)
        assert reply.ended == "died"
        await first.close()
        second = await box.open(_CELLS)
        assert await show(second, "1 + 1") == "2"
        await second.close()
        assert server_of(box).pid != server.pid

    start = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - start < 30


FORKS_ONCE_IN_TWO = """
import os
fork, server, calls = os.fork, os.getpid(), []
def forks_once_in_two():
    calls.append(os.getpid())
    if calls.count(server) % 2 == 0 and os.getpid() == server:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
os.fork = forks_once_in_two
"""


def test_a_server_that_may_not_fork_fails_that_session_alone() -> None:
    box = sandbox("namespaces", FORKS_ONCE_IN_TWO)

    async def script(first: SandboxSession) -> None:
        await show(first, "x = 1")
        for _ in range(2):
            failing = await box.open(_CELLS)
            with pytest.raises(EpisodeError, match=r"its fork server cannot fork \(Resource temporarily unavailable\)"):
                await show(failing, "2")
            await failing.close()
            other = await box.open(_CELLS)
            assert await show(other, "1 + 1") == "2"
            await other.close()
        assert await show(first, "x") == "1"

    with_session(box, script)


def test_a_server_without_free_descriptors_fails_that_session_alone() -> None:
    box = sandbox("namespaces", PRELOAD + "\n# few files")

    async def script(first: SandboxSession) -> None:
        await show(first, "x = 1")
        server = server_of(box).pid
        taken = {int(entry.name) for entry in Path(f"/proc/{server}/fd").iterdir()}
        free = next(number for number in range(1000) if number not in taken)
        limits = resource.prlimit(server, resource.RLIMIT_NOFILE)
        resource.prlimit(server, resource.RLIMIT_NOFILE, (free + 2, limits[1]))
        failing = await box.open(_CELLS)
        with pytest.raises(EpisodeError, match="it ended before it began"):
            await show(failing, "2")
        await failing.close()
        resource.prlimit(server, resource.RLIMIT_NOFILE, limits)
        other = await box.open(_CELLS)
        assert await show(other, "1 + 1") == "2"
        await other.close()
        assert await show(first, "x") == "1"
        assert server_of(box).pid == server

    with_session(box, script)


def test_a_server_that_is_stopped_holds_up_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "_KILL_SECONDS", 0.1)
    monkeypatch.setattr(session_module, "_GRACE_SECONDS", 0.1)
    box = sandbox("namespaces", PRELOAD + "\n# one that is stopped")

    async def run() -> None:
        first = await box.open(_CELLS)
        await show(first, "1")
        server = server_of(box)
        os.kill(server.pid, signal.SIGSTOP)
        second = await box.open(_CELLS)
        assert (await second.ask({"code": "1"}, seconds=0.2)).ended == "timeout"
        async with asyncio.timeout(10):
            await second.close()
            await first.close()
        third = await box.open(_CELLS)
        assert await show(third, "1 + 1") == "2"
        await third.close()
        assert server_of(box).pid != server.pid

    asyncio.run(run())


def test_a_preload_that_raises_is_an_error_that_says_so() -> None:
    with pytest.raises(EpisodeError, match=r"its preload raised ModuleNotFoundError: No module named 'no_such_module'"):
        with_session(sandbox(preload="import no_such_module"), lambda session: asyncio.sleep(0))


def test_a_preload_without_packages_or_with_bubblewrap_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs packages=true"):
        Sandbox(preload="import sympy")
    with pytest.raises(ConfigError, match=r"bubblewrap"):
        Sandbox("bubblewrap", preload="import sympy", packages=True)


@pytest.mark.whole
def test_variables_of_four_episodes_survive_with_two_interpreters() -> None:
    tool = PythonTool(stateful=True, packages=True, preload=PRELOAD, max_interpreters=2, brief_errors=True)

    async def run() -> list[str]:
        contexts = [ToolContext(task=Task(task_id=str(number), prompt=())) for number in range(4)]

        async def cell(number: int, code: str) -> str:
            response, *_ = await tool.execute({"code": code}, context=contexts[number])
            return response.text

        for number in range(4):
            await cell(number, f"x = {number}")
        assert tool._interpreters().num_alive == 2
        shown = [await cell(number, "x * 10") for number in range(4)]
        shown.append(await cell(0, "\n\n1 / 0"))
        await asyncio.gather(*(tool.close(context) for context in contexts))
        assert tool._interpreters().num_alive == 0
        return shown

    assert asyncio.run(run()) == ["0", "10", "20", "30", "line 3: ZeroDivisionError: division by zero"]
