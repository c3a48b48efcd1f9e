"""What a sandbox limits, and what holds a program back on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agent_r1.errors import ConfigError

SandboxKind = Literal["auto", "bubblewrap", "namespaces", "limits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxLimits:
    """Limits of one process; where `Layers.memory_limited` is "in sum", its memory is that of the session."""

    cpu_seconds: int = 120
    """Processor time over the whole life of a process."""
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
        values = {name: getattr(self, name) for name in self.__slots__}
        wrong = [f"{name}={value!r}" for name, value in values.items() if type(value) is not int or value < 1]
        if wrong:
            raise ConfigError(f"the limits of a sandbox must be whole numbers of at least 1; found {', '.join(wrong)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers:
    """What confines a program on this machine."""

    kind: Literal["bubblewrap", "namespaces", "limits"]
    """What builds the sandbox."""
    no_network: bool
    """The program has no network, not even the host's loopback."""
    files_hidden: bool
    """The program sees the system's and the interpreter's files, read-only, and no others."""
    processes_hidden: bool
    """The program sees and can signal only its own processes."""
    own_user: bool
    """The program runs under a user id of its own and has no access to our files and processes."""
    processes_limited: Literal["by the kernel", "by counting"]
    """What stops a fork bomb: the kernel at once, or a guard that counts every few hundredths of a second."""
    calls_filtered: bool
    """A seccomp filter refuses the system calls that get around the limits (`seccomp.py`)."""
    memory_limited: Literal["in sum", "per process"]
    """What `memory_mb` limits: all processes of a session, in a control group, or each of them."""

    @property
    def protects_parent(self) -> bool:
        """The program can neither signal the process that started it nor read its environment and private files."""
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
