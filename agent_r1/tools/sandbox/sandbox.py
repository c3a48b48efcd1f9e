"""`Sandbox`: run a Python program that nobody has read.

    sandbox = Sandbox()
    session = sandbox.start(PROGRAM)
    reply = await session.ask({"code": "print(6 * 7)"}, seconds=10)
    await session.close()

The program runs in a process tree of its own, with an empty environment, hard limits and as few rights as the kernel
lets us take away. Which layers there are is found out by trying, once, and told by `describe()`; docs/sandbox.md says
what each of them holds back and what it does not.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import select
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from agent_r1.errors import ConfigError, EpisodeError, did_you_mean
from agent_r1.tools.sandbox import cgroup, seccomp
from agent_r1.tools.sandbox.session import SandboxSession, parse_report
from agent_r1.types import StopReason

SandboxKind = Literal["auto", "bubblewrap", "namespaces", "limits"]

_CHILD = (Path(__file__).parent / "child.py").read_text()
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
_FIRST_OWN_USER = 0x70000000
_NUM_OWN_USERS = 0x0FFFFFFF
_PROBE_SECONDS = 20.0
# What the interpreter loads late must still be readable when its rights are gone.
_PROBE = "import decimal, sqlite3.dbapi2, os; os.write(settings['reports'], b'{\"works\": true}\\n')"


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxLimits:
    """What one process may use; where `Layers.memory_limited` is "in sum", its memory is that of the session."""

    cpu_seconds: int = 120
    """Processor time, over the whole life of the process."""
    memory_mb: int = 1024
    """Address space of a process. With control groups also the memory of all processes, besides `disk_mb`."""
    file_mb: int = 64
    """The size of one file."""
    disk_mb: int = 128
    """All files together; only where the working folder is in memory (not with `limits`)."""
    open_files: int = 64
    """File descriptors."""
    processes: int = 16
    """Processes and threads of the whole session."""

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in self.__slots__}
        wrong = [f"{name}={value!r}" for name, value in given.items() if type(value) is not int or value < 1]
        if wrong:
            raise ConfigError(f"the limits of a sandbox must be whole numbers of at least 1; found {', '.join(wrong)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers:
    """What holds the program back here."""

    kind: Literal["bubblewrap", "namespaces", "limits"]
    """How."""
    no_network: bool
    """It has no network, not even the host's loopback."""
    files_hidden: bool
    """It sees the system's and the interpreter's files, read-only, and nothing else."""
    processes_hidden: bool
    """It sees and can signal only its own processes."""
    own_user: bool
    """It runs under a user id of its own, so that files and processes of ours are closed to it."""
    processes_limited: Literal["by the kernel", "by counting"]
    """What stops a fork bomb: the kernel at once, or a guard that counts every few hundredths of a second."""
    calls_filtered: bool
    """A seccomp filter refuses the system calls that get around the limits (`seccomp.py`)."""
    memory_limited: Literal["in sum", "per process"]
    """What `memory_mb` limits: all processes of a session, in a control group, or each of them."""

    @property
    def protects_parent(self) -> bool:
        """It can neither signal the process that started it nor read that process's environment and private files."""
        return self.own_user or (self.processes_hidden and self.files_hidden)

    def __str__(self) -> str:
        facts = {
            "network": "none" if self.no_network else "NOT CONTAINED",
            "files": "system files, read-only" if self.files_hidden else "all that its user may read: NOT CONTAINED",
            "other processes": "hidden" if self.processes_hidden else "visible",
            "our processes and private files": "closed" if self.protects_parent else "NOT CONTAINED",
            "number of processes": f"limited {self.processes_limited}",
            "memory": f"limited {self.memory_limited}",
            "system calls": "filtered" if self.calls_filtered else "NOT CONTAINED",
        }
        return f"sandbox '{self.kind}': " + "; ".join(f"{name}: {fact}" for name, fact in facts.items())


class Sandbox:
    """Starts confined Python programs.

    `kind` asks for one way of confining ("bubblewrap", "namespaces", "limits") or for the strongest there is ("auto").
    With `packages` the program can import what is installed beside us.
    """

    def __init__(
        self, kind: SandboxKind = "auto", limits: SandboxLimits | None = None, *, packages: bool = False
    ) -> None:
        self.limits = limits or SandboxLimits()
        self._packages = _package_folders() if packages else ()
        self._layers = _find_layers(kind)

    def describe(self) -> Layers:
        """What holds programs back here, found by trying."""
        return self._layers

    def start(self, program: str) -> SandboxSession:
        """Start `program`, Python text that finds `settings` (see `child.py`) among its globals.

        To be called on the event loop's thread. Ends with the session's `close`, or with this process.
        """
        started = _launch(program, self._layers, self.limits, self._packages)
        return SandboxSession(
            process=started.process,
            requests=started.requests,
            reports=started.reports,
            output=started.output,
            folder=started.folder,
            group=started.group,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Started:
    """A process and our ends of its pipes."""

    process: subprocess.Popen[bytes]
    requests: int
    reports: int
    output: int
    folder: str | None
    group: Path | None


def _launch(program: str, layers: Layers, limits: SandboxLimits, packages: Sequence[str]) -> _Started:
    group, joining = _make_group(layers, limits)
    their_requests, requests = os.pipe()
    reports, their_reports = os.pipe()
    output, their_output = os.pipe()
    folder = tempfile.mkdtemp(prefix="sandbox-") if layers.kind == "limits" else None
    settings = {
        "program": program,
        "packages": list(packages),
        "reports": their_reports,
        "group": joining,
        "filter": seccomp.assemble(os.uname().machine) if layers.calls_filtered else b"",
        "namespaces": layers.kind == "namespaces",
        "own_user": layers.own_user,
        "user": _FIRST_OWN_USER + random.SystemRandom().randrange(_NUM_OWN_USERS),
        "count": layers.processes_limited == "by counting",
        "folder": folder or "/tmp",
        "visible": [*_SYSTEM, *_interpreter_folders(), *packages],
        "processes": limits.processes,
        "processes_of_user": _num_tasks_of_user() if _counts_with_ours(layers) else 0,
        "cpu_seconds": limits.cpu_seconds,
        "memory_bytes": limits.memory_mb << 20,
        "file_bytes": limits.file_mb << 20,
        "disk_bytes": limits.disk_mb << 20,
        "open_files": limits.open_files,
    }
    command = [_interpreter(), "-I", "-S", "-B", "-u", "-X", "utf8", "-c", _CHILD, ascii(settings)]
    if layers.kind == "bubblewrap":
        command = [*_bubblewrap(limits, packages), *command]
    try:
        process = subprocess.Popen(
            command,
            stdin=their_requests,
            stdout=their_output,
            stderr=their_output,
            pass_fds=(their_reports,) if joining is None else (their_reports, joining),
            env={},
            cwd=folder or "/",
            start_new_session=True,
        )
    except OSError as error:
        for descriptor in (requests, reports, output):
            os.close(descriptor)
        cgroup.remove_group(group)
        raise EpisodeError(StopReason.TOOL_ERROR, "starting a sandbox", str(error)) from error
    finally:
        for descriptor in (their_requests, their_reports, their_output):
            os.close(descriptor)
        if joining is not None:
            os.close(joining)
    for descriptor in (requests, reports, output):
        os.set_blocking(descriptor, False)
    return _Started(process=process, requests=requests, reports=reports, output=output, folder=folder, group=group)


def _make_group(layers: Layers, limits: SandboxLimits) -> tuple[Path | None, int | None]:
    """A control group for a session, and a descriptor by which a process enters it without seeing its folder."""
    parent = cgroup.find_parent() if layers.memory_limited == "in sum" else None
    if parent is None:
        return None, None
    group = None
    try:
        # Process 1 of a namespace is in the group too.
        group = cgroup.make_group(
            parent, memory_bytes=(limits.memory_mb + limits.disk_mb) << 20, processes=limits.processes + 1
        )
        return group, os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        cgroup.remove_group(group)
        raise EpisodeError(StopReason.TOOL_ERROR, "making the cgroup of a sandbox", str(error)) from error


def _interpreter() -> str:
    """The interpreter itself, not a virtual environment's link to it, whose folder the program need not see."""
    return os.path.realpath(sys.executable)


def _interpreter_folders() -> list[str]:
    known = {sys.base_prefix, sys.base_exec_prefix, str(Path(_interpreter()).parent)}
    inside = {path for path in known if path != "/" and not path.startswith("/usr/") and path != "/usr"}
    return sorted(path for path in inside if not any(path.startswith(f"{other}/") for other in inside))


def _package_folders() -> tuple[str, ...]:
    return tuple(sorted({os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")}))


def _counts_with_ours(layers: Layers) -> bool:
    return layers.kind == "limits" and not layers.own_user


def _num_tasks_of_user() -> int:
    """Processes and threads of our user: the kernel's limit counts them too."""
    count = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if folder.stat().st_uid == os.getuid():
                    count += len(os.listdir(folder / "task"))  # noqa: PTH208 - names are enough
    return count


def _bubblewrap(limits: SandboxLimits, packages: Sequence[str]) -> list[str]:
    """`bwrap` and its options: the system's and the interpreter's files, read-only, and a /tmp in memory."""
    command = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--new-session", "--clearenv"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--cap-drop", "ALL"]
    if os.getuid() == 0:
        # The program inside takes another user id; until then it needs the right to.
        for right in ("CAP_SETUID", "CAP_SETGID", "CAP_KILL"):
            command += ["--cap-add", right]
    else:
        command += ["--unshare-user"]
    # What comes later lies on top, and an interpreter may well live under /tmp.
    command += ["--proc", "/proc", "--dev", "/dev", "--size", str(limits.disk_mb << 20), "--tmpfs", "/tmp"]
    for path in (*_SYSTEM, *_interpreter_folders(), *packages):
        if Path(path).is_symlink():
            command += ["--symlink", str(Path(path).readlink()), path]
        else:
            # Folders on the way that bwrap makes by itself are closed to every other user.
            for above in list(Path(path).parents)[-2::-1]:
                command += ["--dir", str(above)]
            command += ["--ro-bind-try", path, path]
    return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--"]


# Finding out what there is


def _find_layers(kind: str) -> Layers:
    if kind not in get_args(SandboxKind):
        raise ConfigError(f"unknown sandbox '{kind}'. {did_you_mean(kind, get_args(SandboxKind))}")
    if sys.platform != "linux":
        raise ConfigError(f"the sandbox needs Linux, this is {sys.platform}; run it in a container (docs/sandbox.md)")
    problems = []
    for candidate in ("bubblewrap", "namespaces", "limits") if kind == "auto" else (kind,):
        layers, problem = _try(candidate)
        if layers is not None:
            return layers
        problems.append(f"{candidate}: {problem}")
    raise ConfigError(f"sandbox '{kind}' does not work here. " + "; ".join(problems) + ". See docs/sandbox.md.")


@functools.cache
def _try(kind: Literal["bubblewrap", "namespaces", "limits"]) -> tuple[Layers | None, str]:
    """The layers of that kind, by running a program in them; or why it does not work."""
    if kind == "bubblewrap" and shutil.which("bwrap") is None:
        return None, "the program 'bwrap' is not installed (apt install bubblewrap, dnf install bubblewrap)"
    problem = ""
    isolated = kind != "limits"
    is_root = os.getuid() == 0
    for own_user in (True, False) if is_root else (False,):
        layers = Layers(
            kind=kind,
            no_network=isolated,
            files_hidden=isolated,
            processes_hidden=isolated,
            own_user=own_user,
            processes_limited="by counting" if is_root and not own_user else "by the kernel",
            calls_filtered=seccomp.is_known_machine(os.uname().machine),
            memory_limited="per process" if cgroup.find_parent() is None else "in sum",
        )
        working, problem = _without_what_fails(layers)
        if working is not None:
            return working, ""
    return None, problem


def _without_what_fails(layers: Layers) -> tuple[Layers | None, str]:
    """The layers that work: some kernels and containers have no control groups for us, or no filters."""
    problem = _probe(layers)
    if "cgroup" in problem and layers.memory_limited == "in sum":
        return _without_what_fails(replace(layers, memory_limited="per process"))
    if "seccomp" in problem and layers.calls_filtered:
        return _without_what_fails(replace(layers, calls_filtered=False))
    return (None, problem) if problem else (layers, "")


def _probe(layers: Layers) -> str:
    """Run a small program under these layers: "" when it answers, else what went wrong."""
    try:
        started = _launch(_PROBE, layers, SandboxLimits(), ())
    except EpisodeError as error:
        return f"{error.where}: {error.details}"
    ends = (started.reports, started.output)
    heard = dict.fromkeys(ends, b"")
    deadline = time.monotonic() + _PROBE_SECONDS
    while b"works" not in heard[started.reports] and time.monotonic() < deadline:
        ready, _, _ = select.select(ends, (), (), 0.1)
        read = {end: os.read(end, 65536) for end in ready}
        for end, data in read.items():
            heard[end] += data
        if started.reports in read and not read[started.reports]:
            break
    for descriptor in (*ends, started.requests):
        os.close(descriptor)
    started.process.wait()
    cgroup.remove_group(started.group)
    if started.folder is not None:
        shutil.rmtree(started.folder, ignore_errors=True)
    if b"works" in heard[started.reports]:
        return ""
    return _first_reason(heard[started.reports]) or heard[started.output].decode(errors="replace")[-300:].strip()


def _first_reason(reports: bytes) -> str:
    for line in reports.splitlines():
        message = parse_report(line)
        if message is not None and "failed" in message:
            return str(message["failed"])
    return ""
