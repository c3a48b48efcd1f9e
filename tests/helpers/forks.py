"""Processes that begin with everything imported: importing torch and transformers takes longer than most commands.

The process that runs the tests forks once, when it has imported them; this fork, the zygote, forks for each command. A
command runs as it would from the command line: a process of its own, with its folder, environment, pipes and exit code.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO, Any

ROOT = Path(__file__).parents[2]
_SHOWN_BY_PYTEST = (DeprecationWarning, PendingDeprecationWarning)


class Zygote:
    """A fork of this process, made while it has imported torch and transformers and little else: it forks once more for
    every command. What a command needs besides is imported when the first one is started."""

    def __init__(self) -> None:
        self.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of threads, of which the test runner has one
            self.pid = os.fork()
        if not self.pid:
            try:
                _forget_the_tests(theirs.fileno())
                _serve(theirs)
            finally:
                os._exit(1)
        theirs.close()

    def close(self) -> None:
        """End it; the commands that run continue."""
        self.orders.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _forget_the_tests(socket_fd: int) -> None:
    """Undo what pytest has changed in this process; its files and pipes are closed."""
    os.chdir(ROOT)
    faulthandler.disable()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if fd > 2 and fd not in (socket_fd, null):
            with suppress(OSError):  # the folder's own
                os.fstat(fd)
                os.dup2(null, fd, inheritable=False)  # numbers that objects of pytest know are not given out again
    strict = [("error", None, Warning, None, 0), *(("always", None, kind, None, 0) for kind in _SHOWN_BY_PYTEST)]
    warnings.filters[:] = [entry for entry in warnings.filters if entry not in strict]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_pytest")]
    sys.path[:] = ["", str(ROOT), *(entry for entry in sys.path if entry not in ("", str(ROOT)))]
    sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
    threading.excepthook = threading.__excepthook__
    sys.modules["__main__"] = ModuleType("__main__")
    sys.argv = ["-c"]


def _serve(orders: socket.socket) -> None:
    """Start a command for every order: its folder, environment and arguments, and its three pipes and one for its
    number and exit code."""
    is_ready = False
    while True:
        text, fds, _, _ = socket.recv_fds(orders, 1 << 20, 4)
        if not text:
            os._exit(0)
        if not is_ready:
            _import_all()
            is_ready = True
        watcher = os.fork()
        if watcher:
            for fd in fds:
                os.close(fd)
            os.waitpid(watcher, 0)
            continue
        if os.fork():  # the watcher must be no child of the zygote, which waits for none
            os._exit(0)
        child = os.fork()
        if not child:
            orders.close()
            for number in range(3):
                os.dup2(fds[number], number)
            for fd in fds:
                os.close(fd)
            _become(json.loads(text))
        if not os.isatty(fds[0]):  # the first process of a group cannot begin the session of a terminal
            with suppress(ProcessLookupError):
                os.setpgid(child, child)  # whoever is told the number may signal the group at once
        orders.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for fd in fds[:3]:
            os.close(fd)
        os.write(fds[3], f"{child}\n".encode())
        os.write(fds[3], f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())
        os._exit(0)


def _import_all() -> None:
    """What most commands need."""
    for module in ("api", "cli", "checks", "models.tiny", "engines.local.engine", "training.run"):
        importlib.import_module(f"agent_r1.{module}")
    from agent_r1.config import load_config

    load_config(None, ["model.path=none"])  # Hydra looks for its plugins
    gc.freeze()
    gc.enable()


def _become(order: dict[str, Any]) -> None:
    """Run a command as a process of its own, to its end."""
    if os.isatty(0):
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # its keys send signals to this process
    else:
        os.setpgid(0, 0)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        buffering = 1 if name == "stderr" or os.isatty(fd) else -1
        errors = "backslashreplace" if name == "stderr" else "strict"
        stream = open(fd, mode, buffering, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    code: int | None = 0
    try:
        _run(order["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001
        traceback.print_exc()
        code = 1 if not isinstance(error, KeyboardInterrupt) else None
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code or 0)


def _run(arguments: list[str]) -> None:
    program, *rest = arguments
    if program == "agent-r1" or rest[:2] == ["-m", "agent_r1.cli"]:
        from agent_r1.cli import main

        sys.argv = ["agent-r1", *(rest if program == "agent-r1" else rest[2:])]
        sys.path[0] = os.path.dirname(sys.executable) if program == "agent-r1" else os.getcwd()  # noqa: PTH109, PTH120
        main()
    elif rest[0] == "-m":
        sys.argv, sys.path[0] = rest[1:], os.getcwd()  # noqa: PTH109
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    elif rest[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[2:]], ""
        exec(compile(rest[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = rest, str(Path(rest[0]).absolute().parent)
        runpy.run_path(rest[0], run_name="__main__")


class Forked:
    """A running command; as much of `subprocess.Popen` as tests use."""

    def __init__(self, status: int, stdin: IO[str], stdout: IO[str], stderr: IO[str]) -> None:
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.returncode: int | None = None
        self._status = os.fdopen(status)
        self.pid = int(self._status.readline())

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        return self._result(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; gives the exit code."""
        code = self._result(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it and all that it started in its own group."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it prints until it ends."""
        printed = _read_both(self, timeout)
        self.wait(timeout)
        self.close()
        return printed

    def close(self) -> None:
        """Kill it, if it still runs, and close the pipes."""
        self.kill()
        self.wait()
        for pipe in (self.stdin, self.stdout, self.stderr, self._status):
            pipe.close()

    def _result(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(self._status.readline() or -signal.SIGKILL)
        return self.returncode


class Forks:
    """Starts commands as forks of the zygote."""

    def __init__(self, zygote: Zygote) -> None:
        self._orders = zygote.orders

    def start(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str] | None = None,
        *,
        merged: bool = False,
        terminal: int | None = None,
    ) -> Forked:
        """Start `python ...` or `agent-r1 ...` (the first argument), with pipes; `merged`: stderr goes to stdout. With
        `terminal`, the process runs in that terminal, whose keys send it signals, and the pipes are empty."""
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        read_err, write_err = os.pipe()
        read_status, write_status = os.pipe()
        order = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(os.environ if env is None else env)}
        piped = [read_in, write_out, write_out if merged else write_err]
        theirs = [*(piped if terminal is None else [terminal] * 3), write_status]
        socket.send_fds(self._orders, [json.dumps(order).encode()], theirs)
        for fd in (read_in, write_out, write_err, write_status):
            os.close(fd)
        return Forked(read_status, os.fdopen(write_in, "w"), os.fdopen(read_out), os.fdopen(read_err))

    def run(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str] | None = None,
        *,
        text: str = "",
        merged: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with `text` as its input."""
        running = self.start(arguments, cwd, env, merged=merged)
        try:
            running.stdin.write(text)
            running.stdin.close()
            printed = running.communicate()
            return subprocess.CompletedProcess(list(arguments), running.wait(), *printed)
        finally:
            running.close()


@cache
def prepare() -> Zygote:
    """Fork the zygote of this session, before tests are collected."""
    zygote = Zygote()
    atexit.register(zygote.close)
    return zygote


@cache
def forks() -> Forks:
    """The one of this session."""
    return Forks(prepare())


def run_python(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` in a folder, without the time for imports."""
    return forks().run(["python", *arguments], cwd, env, text=text)


def _read_both(running: Forked, timeout: float | None) -> tuple[str, str]:
    """The rest of stdout and stderr, read as they come, since a full pipe stops its writer."""
    found: dict[str, str] = {}
    readers = [
        threading.Thread(target=lambda name=name, pipe=pipe: found.update({name: pipe.read()}), daemon=True)
        for name, pipe in (("out", running.stdout), ("err", running.stderr))
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(timeout)
        if reader.is_alive():
            raise subprocess.TimeoutExpired(f"process {running.pid}", timeout or 0.0)
    return found["out"], found["err"]
