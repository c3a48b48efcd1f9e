"""Processes that begin with everything imported: importing torch and transformers takes longer than most commands.

One process per session imports all there is and forks itself for each command. A command runs as it would from the
command line: a process of its own, with its folder, environment, pipes and exit code.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]

_ZYGOTE = """
import atexit, gc, json, os, runpy, signal, socket, sys, threading, traceback
import torch, transformers, agent_r1.api, agent_r1.cli, agent_r1.checks, agent_r1.models.tiny
import agent_r1.engines.local.engine, agent_r1.training.run
from agent_r1.config import load_config
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
torch.set_num_threads(1)
load_config(None, ["model.path=none"])  # Hydra looks for its plugins
gc.freeze()
orders = socket.socket(fileno=int(sys.argv[1]))

def run(arguments):
    program, *rest = arguments
    if program == "agent-r1" or rest[:2] == ["-m", "agent_r1.cli"]:
        sys.argv = ["agent-r1", *(rest if program == "agent-r1" else rest[2:])]
        sys.path[0] = os.path.dirname(sys.executable) if program == "agent-r1" else os.getcwd()
        agent_r1.cli.main()
    elif rest[0] == "-m":
        sys.argv, sys.path[0] = rest[1:], os.getcwd()
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    elif rest[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[2:]], ""
        exec(compile(rest[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = rest, os.path.dirname(os.path.abspath(rest[0]))
        runpy.run_path(rest[0], run_name="__main__")

def become(order):
    os.setpgid(0, 0)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    code = 0
    try:
        run(order["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        traceback.print_exc()
        code = 1 if not isinstance(error, KeyboardInterrupt) else None
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    if code is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)

while True:
    text, fds, _, _ = socket.recv_fds(orders, 1 << 20, 4)
    if not text:
        break
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
        become(json.loads(text))
    try:
        os.setpgid(child, child)  # whoever is told the number may signal the group at once
    except ProcessLookupError:
        pass
    orders.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for fd in fds[:3]:
        os.close(fd)
    os.write(fds[3], f"{child}\\n".encode())
    os.write(fds[3], f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\\n".encode())
    os._exit(0)
"""


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
    """The process that forks."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ZYGOTE, str(theirs.fileno())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def start(
        self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None, *, merged: bool = False
    ) -> Forked:
        """Start `python ...` or `agent-r1 ...` (the first argument), with pipes; `merged`: stderr goes to stdout."""
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        read_err, write_err = os.pipe()
        read_status, write_status = os.pipe()
        order = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(os.environ if env is None else env)}
        theirs = [read_in, write_out, write_out if merged else write_err, write_status]
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

    def close(self) -> None:
        """End it."""
        self._orders.close()
        self._process.kill()
        self._process.wait()


@cache
def forks() -> Forks:
    """The one of this session, started when it is first needed."""
    started = Forks()
    atexit.register(started.close)
    return started


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
