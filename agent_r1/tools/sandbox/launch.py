"""Start a sandboxed process: its pipes, its settings, its control group and the command that confines it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1.errors import EpisodeError
from agent_r1.tools.sandbox import cgroup, seccomp
from agent_r1.tools.sandbox.layers import Layers, SandboxLimits
from agent_r1.types import StopReason

CHILD = (Path(__file__).parent / "child.py").read_text()
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
_FIRST_OWN_USER = 0x70000000
_NUM_OWN_USERS = 0x0FFFFFFF


@dataclass(frozen=True, kw_only=True, slots=True)
class StartedProcess:
    """A process and our ends of its pipes."""

    process: subprocess.Popen[bytes]
    requests: int
    reports: int
    output: int
    folder: str | None
    group: Path | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Channels:
    """Both ends of a session's pipes, its working folder and its control group."""

    requests: tuple[int, int]
    """Their end, ours; likewise the others."""
    reports: tuple[int, int]
    output: tuple[int, int]
    folder: str | None
    group: Path | None
    group_fd: int | None

    def close_theirs(self) -> None:
        """Close their ends, which the started process has."""
        for descriptor in (self.requests[0], self.reports[0], self.output[0], self.group_fd):
            if descriptor is not None:
                os.close(descriptor)

    def discard(self) -> None:
        """Remove everything: the start failed."""
        for _, descriptor in (self.requests, self.reports, self.output):
            os.close(descriptor)
        cgroup.remove_group(self.group)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def open_channels(layers: Layers, limits: SandboxLimits) -> Channels:
    """Pipes, folder and control group of a new session; our ends do not block."""
    group, group_fd = _make_group(layers, limits)
    descriptors: list[int] = []
    try:
        for _ in range(3):
            descriptors += os.pipe()
        folder = tempfile.mkdtemp(prefix="sandbox-") if layers.kind == "limits" else None
    except OSError as error:
        for descriptor in [*descriptors, *([] if group_fd is None else [group_fd])]:
            os.close(descriptor)
        cgroup.remove_group(group)
        raise EpisodeError(StopReason.TOOL_ERROR, "starting a sandbox", str(error)) from error
    requests, reports, output = (
        (descriptors[0], descriptors[1]),
        (descriptors[3], descriptors[2]),
        (descriptors[5], descriptors[4]),
    )
    for _, descriptor in (requests, reports, output):
        os.set_blocking(descriptor, False)
    return Channels(requests=requests, reports=reports, output=output, folder=folder, group=group, group_fd=group_fd)


def fixed_settings(program: str, layers: Layers, limits: SandboxLimits, packages: Sequence[str]) -> dict[str, Any]:
    """The settings of `child.py` that all sessions of a sandbox share."""
    return {
        "program": program,
        "packages": list(packages),
        "filter": seccomp.assemble(os.uname().machine) if layers.calls_filtered else b"",
        "namespaces": layers.kind == "namespaces",
        "own_user": layers.own_user,
        "count": layers.processes_limited == "by counting",
        "visible": [*_SYSTEM, *_interpreter_folders(), *packages],
        "processes": limits.processes,
        "cpu_seconds": limits.cpu_seconds,
        "memory_bytes": limits.memory_mb << 20,
        "file_bytes": limits.file_mb << 20,
        "disk_bytes": limits.disk_mb << 20,
        "open_files": limits.open_files,
    }


def session_settings(layers: Layers, channels: Channels) -> dict[str, Any]:
    """The settings of `child.py` that differ from session to session."""
    return {
        "reports": channels.reports[0],
        "group": channels.group_fd,
        "folder": channels.folder or "/tmp",
        "user": _FIRST_OWN_USER + random.SystemRandom().randrange(_NUM_OWN_USERS),
        "processes_of_user": _num_tasks_of_user() if _shares_our_user(layers) else 0,
    }


def interpreter_command(program: str, argument: str) -> list[str]:
    """The command that runs Python text in an interpreter without site packages."""
    return [_interpreter(), "-I", "-S", "-B", "-u", "-X", "utf8", "-c", program, argument]


def launch(program: str, layers: Layers, limits: SandboxLimits, packages: Sequence[str]) -> StartedProcess:
    """Start `program` under these layers and limits."""
    channels = open_channels(layers, limits)
    settings = {**fixed_settings(program, layers, limits, packages), **session_settings(layers, channels)}
    command = interpreter_command(CHILD, ascii(settings))
    if layers.kind == "bubblewrap":
        command = [*_bubblewrap(limits, packages), *command]
    inherited = (channels.reports[0], channels.group_fd)
    try:
        process = subprocess.Popen(
            command,
            stdin=channels.requests[0],
            stdout=channels.output[0],
            stderr=channels.output[0],
            pass_fds=[descriptor for descriptor in inherited if descriptor is not None],
            env={},
            cwd=channels.folder or "/",
            start_new_session=True,
        )
    except OSError as error:
        channels.discard()
        raise EpisodeError(StopReason.TOOL_ERROR, "starting a sandbox", str(error)) from error
    finally:
        channels.close_theirs()
    return StartedProcess(
        process=process,
        requests=channels.requests[1],
        reports=channels.reports[1],
        output=channels.output[1],
        folder=channels.folder,
        group=channels.group,
    )


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
    """The interpreter itself, not a virtual environment's link to it: the program need not see the link's folder."""
    return os.path.realpath(sys.executable)


def _interpreter_folders() -> list[str]:
    folders = {sys.base_prefix, sys.base_exec_prefix, str(Path(_interpreter()).parent)}
    outside_usr = {path for path in folders if path != "/" and not path.startswith("/usr/") and path != "/usr"}
    return sorted(path for path in outside_usr if not any(path.startswith(f"{other}/") for other in outside_usr))


def package_folders() -> tuple[str, ...]:
    """Where packages are installed beside us."""
    return tuple(sorted({os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")}))


def _shares_our_user(layers: Layers) -> bool:
    return layers.kind == "limits" and not layers.own_user


def _num_tasks_of_user() -> int:
    """Processes and threads of our user, which the kernel counts towards the limit."""
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
        # The program inside changes its user id, for which it needs these.
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_KILL"):
            command += ["--cap-add", capability]
    else:
        command += ["--unshare-user"]
    # Later mounts cover earlier ones, and an interpreter may be installed under /tmp.
    command += ["--proc", "/proc", "--dev", "/dev", "--size", str(limits.disk_mb << 20), "--tmpfs", "/tmp"]
    for path in (*_SYSTEM, *_interpreter_folders(), *packages):
        if Path(path).is_symlink():
            command += ["--symlink", str(Path(path).readlink()), path]
        else:
            # Parent folders that bwrap makes by itself cannot be entered by other users.
            for above in list(Path(path).parents)[-2::-1]:
                command += ["--dir", str(above)]
            command += ["--ro-bind-try", path, path]
    return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--"]
