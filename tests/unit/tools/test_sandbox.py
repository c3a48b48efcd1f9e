"""Escape attempts against real processes, in every kind of sandbox this machine has.

What a test expects is what `describe()` promises here; where a layer is missing it says so and skips.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_r1.errors import ConfigError, EpisodeError
from agent_r1.tools.builtin.python import _CELLS, PythonTool
from agent_r1.tools.sandbox import probe
from agent_r1.tools.sandbox.launch import open_channels
from agent_r1.tools.sandbox.layers import Layers, SandboxLimits
from agent_r1.tools.sandbox.sandbox import Sandbox
from agent_r1.tools.sandbox.session import OwnGuard, SandboxReply
from tests.helpers.sandboxes import KINDS, attempt, needs, shown, small_sandbox


@pytest.fixture(params=KINDS)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return small_sandbox(request.param)


def forging(line: str) -> str:
    """A cell that writes a line into every descriptor it finds; those of a busy parent have high numbers."""
    data = f"{line}\n".encode()
    return f"import os\nfor d in range(3, 4096):\n    try: os.write(d, {data!r})\n    except OSError: pass"


def lives(marker: str) -> bool:
    """Whether any process has this text among its arguments."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if marker.encode() in (folder / "cmdline").read_bytes():
                    return True
            except OSError:
                continue
    return False


# What is promised


def test_isolating_kinds_promise_no_network_hidden_files_and_a_protected_parent(sandbox: Sandbox) -> None:
    layers = sandbox.describe()
    isolated = layers.kind != "limits"
    assert (layers.no_network, layers.files_hidden, layers.processes_hidden) == (isolated,) * 3
    assert layers.protects_parent or not isolated
    assert ("NOT CONTAINED" in str(layers)) == (not isolated)


def test_auto_takes_the_strongest_kind_that_works() -> None:
    strongest = next(kind for kind in KINDS if probe.layers_of_kind(kind)[0] is not None)  # type: ignore[arg-type]
    assert Sandbox().describe().kind == strongest


def test_unknown_kind_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'namespaces'"):
        Sandbox("namespace")  # type: ignore[arg-type]


def test_missing_bubblewrap_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    probe.layers_of_kind.cache_clear()
    try:
        with pytest.raises(ConfigError, match="apt install bubblewrap"):
            Sandbox("bubblewrap")
    finally:
        probe.layers_of_kind.cache_clear()


def test_limits_below_one_are_refused_all_at_once() -> None:
    with pytest.raises(ConfigError, match="memory_mb=0, open_files=-5"):
        SandboxLimits(memory_mb=0, open_files=-5)
    with pytest.raises(ConfigError, match="memory_mb='big', processes=nan"):
        SandboxLimits(memory_mb="big", processes=float("nan"))  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"seconds": float("nan")}, {"seconds": 0}, {"seconds": "1"}, {"max_chars": 0}])
def test_times_and_sizes_of_the_tool_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="seconds above 0 and max_chars of at least 1"):
        PythonTool(**options)


def test_sandbox_that_cannot_be_built_is_not_the_programs_fault(sandbox: Sandbox) -> None:
    crowded = Sandbox(sandbox.describe().kind, SandboxLimits(memory_mb=1 << 50))
    with pytest.raises(EpisodeError, match="a sandbox failed"):
        attempt(crowded, "1")


def test_too_few_descriptors_are_not_the_programs_fault_and_none_is_left_open(sandbox: Sandbox) -> None:
    before, limits = len(list(Path("/proc/self/fd").iterdir())), resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = os.dup(0)  # the lowest that is free
    for room in (1, 3, 5):
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + room, limits[1]))
        try:
            with pytest.raises(EpisodeError, match="Too many open files"):
                open_channels(sandbox._layers, sandbox.limits)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    os.close(taken)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_program_cannot_pretend_that_the_sandbox_failed(sandbox: Sandbox) -> None:
    [reply] = attempt(sandbox, forging('{"failed": "x"}'))
    assert reply.ended == "answered"


# Files


def test_program_starts_in_an_empty_writable_folder_that_is_removed(sandbox: Sandbox) -> None:
    listing = "import os; (os.listdir('.'), open('a.txt', 'w').write('x'), os.getcwd())"
    names, written, folder = eval(shown(sandbox, listing))
    assert (names, written) == ([], 1)
    assert folder == "/tmp" or not Path(folder).exists()


def test_folder_that_its_owner_closed_is_removed_too(sandbox: Sandbox) -> None:
    folder = eval(shown(sandbox, "import os; os.makedirs('a/b'); os.chmod('a', 0); os.getcwd()"))
    assert folder == "/tmp" or not Path(folder).exists()


def test_file_that_only_our_user_may_read_is_closed(sandbox: Sandbox, tmp_path: Path) -> None:
    needs(sandbox.describe().protects_parent, "private files of our user")
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    secret.chmod(0o600)
    answer = shown(sandbox, f"open({str(secret)!r}).read()")
    assert "the secret" not in answer
    assert "Error" in answer


def test_world_readable_file_outside_is_invisible(sandbox: Sandbox) -> None:
    needs(sandbox.describe().files_hidden, "world-readable files")
    assert "FileNotFoundError" in shown(sandbox, "open('/etc/passwd').read()")
    assert "FileNotFoundError" in shown(sandbox, f"open({str(Path(__file__).resolve())!r}).read()")


@pytest.mark.parametrize("path", ["/usr/escaped.txt", "/escaped.txt", "/etc/escaped.txt", "/dev/escaped.txt"])
def test_writing_outside_fails(sandbox: Sandbox, path: str) -> None:
    needs(sandbox.describe().protects_parent, "files of our user")
    assert "Error" in shown(sandbox, f"open({path!r}, 'w')")
    assert not Path(path).exists()


def test_writing_into_the_interpreter_fails(sandbox: Sandbox) -> None:
    needs(sandbox.describe().protects_parent, "files of our user")
    assert "Error" in shown(sandbox, "import os; open(os.path.dirname(os.__file__) + '/escaped.py', 'w')")


def test_file_size_is_limited(sandbox: Sandbox) -> None:
    assert "Error" in shown(sandbox, "f = open('big', 'wb')\nfor _ in range(8): f.write(bytes(1 << 20)); f.flush()")


def test_all_files_together_are_limited(sandbox: Sandbox) -> None:
    needs(sandbox.describe().files_hidden, "the number of files")
    fill = "for n in range(10):\n    open(f'f{n}', 'wb').write(bytes(2 << 20))"
    assert "No space left" in shown(sandbox, fill)


def test_open_files_are_limited(sandbox: Sandbox) -> None:
    assert "Too many open files" in shown(sandbox, "import os\nheld = [os.open('/dev/null', 0) for _ in range(99)]")


# Parent


def test_environment_is_empty(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    names = eval(shown(sandbox, "import os; sorted(os.environ)"))
    assert set(names) <= {"LC_CTYPE", "PWD"}


def test_environment_of_the_parent_cannot_be_read(sandbox: Sandbox) -> None:
    needs(sandbox.describe().protects_parent, "the environment of our processes")
    look = """
        import os
        found = []
        for name in os.listdir('/proc'):
            try: found.append(open(f'/proc/{name}/environ').read())
            except OSError: pass
        'HOME=' in str(found) or 'PATH=' in str(found)
    """
    assert shown(sandbox, textwrap.dedent(look)) == "False"
    assert "Error" in shown(sandbox, f"open('/proc/{os.getpid()}/environ').read()")


def test_parent_cannot_be_killed(sandbox: Sandbox) -> None:
    needs(sandbox.describe().protects_parent, "signals to our processes")
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        assert "Error" in shown(sandbox, f"import os; os.kill({bystander.pid}, 9)")
        # Everything in reach, the guard included; a program may well end itself by this.
        attempt(sandbox, "import os\ntry: os.kill(os.getppid(), 9)\nexcept OSError: pass\nos.kill(-1, 9)")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_descriptors_of_the_parent_are_closed(sandbox: Sandbox) -> None:
    held = os.memfd_create("secret")
    os.set_inheritable(held, True)
    try:
        opened = "import os\nn = 0\nfor d in range(3, 32):\n    try: os.fstat(d); n += 1\n    except OSError: pass\nn"
        # The pipe of reports, the requests, the spare output.
        assert int(shown(sandbox, opened)) <= 4
    finally:
        os.close(held)


# Network


@pytest.fixture
def server() -> Iterator[int]:
    """A port on loopback that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)
        accepting = threading.Thread(target=_accept, args=(listening,), daemon=True)
        accepting.start()
        yield listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", listening.getsockname()[1])):
            accepting.join(5)


def _accept(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    connection.close()


def test_host_loopback_cannot_be_reached(sandbox: Sandbox, server: int) -> None:
    needs(sandbox.describe().no_network, "the network")
    answer = shown(sandbox, f"import socket; socket.create_connection(('127.0.0.1', {server}), 2)")
    assert "OSError" in answer or "Error" in answer


# Processes


@pytest.mark.whole
def test_fork_bomb_is_held(sandbox: Sandbox) -> None:
    bomb = "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)"
    started = time.monotonic()
    [reply] = attempt(sandbox, bomb, seconds=2.0)
    assert reply.ended in ("timeout", "died")
    assert time.monotonic() - started < 20


def test_number_of_processes_is_limited(sandbox: Sandbox) -> None:
    needs(sandbox.describe().processes_limited == "by the kernel", "processes for half a second")
    count = "import subprocess\nheld = []\nfor _ in range(40): held.append(subprocess.Popen(['/bin/sleep', '60']))"
    [reply] = attempt(sandbox, count)
    assert "BlockingIOError" in str(reply.report)


def test_counted_processes_end_the_program(sandbox: Sandbox) -> None:
    needs(sandbox.describe().processes_limited == "by counting", "this is limited by the kernel")
    crowd = (
        "import subprocess, time\nheld = [subprocess.Popen(['/bin/sleep', '60']) for _ in range(20)]\ntime.sleep(15)"
    )
    [reply] = attempt(sandbox, crowd)
    assert reply.ended == "died"


@pytest.mark.whole
@pytest.mark.parametrize("cell_ends", [True, False])
def test_background_child_does_not_outlive_the_session(sandbox: Sandbox, cell_ends: bool) -> None:
    marker = f"7{time.time_ns() % 10**8}"
    spawn = (
        "import subprocess, time\n"
        f"subprocess.Popen(['/bin/sh', '-c', 'trap \"\" TERM HUP; sleep {marker} & wait'], start_new_session=True)\n"
        f"time.sleep({0.2 if cell_ends else 60})"
    )
    [reply] = attempt(sandbox, spawn, seconds=20.0 if cell_ends else 1.0)
    assert reply.ended == ("answered" if cell_ends else "timeout")
    assert not lives(f"sleep\0{marker}")


@pytest.mark.whole
def test_program_that_ignores_signals_is_killed_at_the_deadline(sandbox: Sandbox) -> None:
    stubborn = (
        "import signal\nfor s in set(signal.Signals) - {9, 19}:\n    signal.signal(s, signal.SIG_IGN)\nwhile True: 0"
    )
    started = time.monotonic()
    [reply] = attempt(sandbox, stubborn, seconds=1.0)
    assert reply.ended == "timeout"
    assert time.monotonic() - started < 10


@pytest.mark.whole
def test_nothing_survives_a_killed_parent(sandbox: Sandbox) -> None:
    marker = f"8{time.time_ns() % 10**8}"
    script = f"""
import asyncio
from agent_r1.tools.builtin.python import PythonTool
tool = PythonTool(sandbox={sandbox.describe().kind!r}, seconds=60)
code = "import subprocess, time; subprocess.Popen(['/bin/sleep', '{marker}'], start_new_session=True); time.sleep(60)"
asyncio.run(tool.execute({{"code": code}}, context=None))
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    try:
        assert eventually(lambda: lives(f"sleep\0{marker}"))
    finally:
        parent.kill()
        parent.wait()
    assert eventually(lambda: not lives(f"sleep\0{marker}"))


def eventually(condition: Any) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.whole
def test_forgotten_session_ends(sandbox: Sandbox) -> None:
    async def forget() -> subprocess.Popen[bytes]:
        session = sandbox.start(_CELLS)
        await session.ask({"code": "1"}, seconds=20)
        assert isinstance(session._guard, OwnGuard)
        return session._guard.process

    process = asyncio.run(forget())
    gc.collect()
    assert process.wait(20) == 0


def test_cancelled_question_ends_the_program(sandbox: Sandbox) -> None:
    async def cancel() -> bool:
        session = sandbox.start(_CELLS)
        asking = asyncio.create_task(session.ask({"code": "while True: pass"}, seconds=60))
        await asyncio.sleep(0.3)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        over = session.is_over
        await session.close()
        return over

    assert asyncio.run(cancel())


def test_session_that_is_over_cannot_be_asked(sandbox: Sandbox) -> None:
    with pytest.raises(EpisodeError, match="over"):
        attempt(sandbox, "import os; os._exit(0)", "1")


# Limits


def test_memory_is_limited(sandbox: Sandbox) -> None:
    [reply] = attempt(sandbox, "held = bytearray(1 << 30)")
    assert reply.report["status"] == "memory"


@pytest.mark.whole
def test_processor_time_is_limited(sandbox: Sandbox) -> None:
    brief = Sandbox(sandbox.describe().kind, SandboxLimits(cpu_seconds=1))
    [reply] = attempt(brief, "while True: pass", seconds=30)
    assert (reply.ended, reply.exit_code) == ("died", -24)


def test_limits_cannot_be_raised(sandbox: Sandbox) -> None:
    raise_all = """
import resource
raised = []
for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
    try:
        resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        raised.append(kind)
    except (ValueError, OSError): pass
raised
"""
    assert shown(sandbox, raise_all) == "[]"


def test_rights_cannot_be_regained(sandbox: Sandbox) -> None:
    regain = """
import os
import resource
regained = []
for call in (lambda: os.chroot("/"), lambda: os.setuid(12345), lambda: os.nice(-5)):
    try: call(); regained.append(call)
    except OSError: pass
regained, [l.split()[1] for l in open('/proc/self/status') if l.startswith(('CapEff', 'CapPrm', 'NoNewPrivs'))]
"""
    assert eval(shown(sandbox, regain)) == ([], ["0" * 16, "0" * 16, "1"])


# Output


def test_flood_of_output_is_cut_and_stopped(sandbox: Sandbox) -> None:
    [reply] = attempt(sandbox, "while True: print('x' * 10000)", max_bytes=1000, flood_bytes=1 << 20)
    assert reply.ended == "flood"
    assert reply.output == "x" * 1000
    assert reply.num_bytes_cut > 1 << 19


def test_hundred_megabytes_are_cut(sandbox: Sandbox) -> None:
    [reply] = attempt(sandbox, "for _ in range(100): print('x' * (1 << 20))", max_bytes=1000)
    assert reply.ended == "flood"
    assert len(reply.output) == 1000


def test_output_that_is_not_text_is_read_with_replacement(sandbox: Sandbox) -> None:
    [reply] = attempt(sandbox, r"import os; os.write(1, b'ok \xff\xfe\x00 end'); None")
    assert reply.output == "ok \ufffd\ufffd\x00 end"


@pytest.mark.parametrize(
    "how", ["import os; os.close(1); os.close(2)", "import sys; sys.stdout.close()", "import sys; sys.stdout = 3"]
)
def test_closed_output_is_back_in_the_next_cell(sandbox: Sandbox, how: str) -> None:
    first, second = attempt(sandbox, how, "print('here')")
    assert (first.ended, second.output) == ("answered", "here\n")


def test_forged_reports_only_fool_their_author(sandbox: Sandbox) -> None:
    [reply] = attempt(sandbox, forging('[1, 2\n{"exit": "x"}'))
    assert (reply.ended, reply.exit_code) == ("died", None)


@pytest.mark.whole
def test_loop_goes_on_while_a_program_runs(sandbox: Sandbox) -> None:
    async def run() -> int:
        session = sandbox.start(_CELLS)
        asking = asyncio.create_task(session.ask({"code": "import time; time.sleep(1)"}, seconds=20))
        ticks = 0
        while not asking.done():
            await asyncio.sleep(0.01)
            ticks += 1
        await session.close()
        return ticks

    assert asyncio.run(run()) > 20


@pytest.mark.parametrize(("crash", "exit_code"), [("os._exit(7)", 7), ("ctypes.string_at(0)", -11), ("os.abort()", -6)])
def test_crash_is_told_by_its_exit_code(sandbox: Sandbox, crash: str, exit_code: int) -> None:
    [reply] = attempt(sandbox, f"import ctypes, os; print('before'); {crash}")
    assert (reply.ended, reply.exit_code, reply.output) == ("died", exit_code, "before\n")


@pytest.mark.whole
def test_many_sessions_run_at_once(sandbox: Sandbox) -> None:
    async def one(number: int) -> str:
        session = sandbox.start(_CELLS)
        try:
            return str((await session.ask({"code": f"{number} ** 2"}, seconds=60)).report["shown"])
        finally:
            await session.close()

    async def run() -> list[str]:
        return await asyncio.gather(*(one(number) for number in range(12)))

    assert asyncio.run(run()) == [str(number**2) for number in range(12)]


def test_layers_of_another_user_protect_the_parent_without_namespaces() -> None:
    layers = Layers(
        kind="limits",
        no_network=False,
        files_hidden=False,
        processes_hidden=False,
        own_user=True,
        processes_limited="by the kernel",
        calls_filtered=True,
        memory_limited="per process",
    )
    assert layers.protects_parent


@pytest.mark.parametrize(
    "line",
    [
        "[" * 50_000 + "]" * 50_000,
        '{"shown": ' * 20_000 + "1" + "}" * 20_000,
        '{"shown": NaN}',
        '{"shown": ' + "9" * 5000 + "}",
        '{"exit": -40000}',
        '{"exit": true}',
        "null",
    ],
)
def test_broken_report_ends_the_session_and_raises_nothing(sandbox: Sandbox, line: str) -> None:
    [reply] = attempt(sandbox, f"{forging(line)}\nimport time; time.sleep(5)")
    assert (reply.ended, reply.exit_code) == ("died", None)


@pytest.mark.parametrize("report", [{"shown": 3}, {"shown": [[1]]}, {"shown": {"a": None}}, {"shown": None}])
def test_report_that_shows_no_text_says_so(report: dict[str, Any]) -> None:
    tool = PythonTool(sandbox="limits")
    assert tool._show(SandboxReply(ended="answered", report=report)) == ("(the interpreter sent a broken report)", "ok")


def test_program_ended_by_a_signal_without_a_name_is_told_by_number(sandbox: Sandbox) -> None:
    tool = PythonTool(sandbox=sandbox.describe().kind)
    answer, _, info = asyncio.run(tool.execute({"code": "import os; os.kill(os.getpid(), 40)"}, context=None))
    assert (answer.text, info["ended"]) == ("killed by signal 40", "died")
