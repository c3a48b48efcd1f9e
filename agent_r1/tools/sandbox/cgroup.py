"""Control groups (cgroup v2): limit the memory and the processes of a whole session, where we may make groups.

Resource limits apply to each process alone; a group limits their sum, including files in memory. A group can be made
in

- the folder that the variable `AGENT_R1_CGROUP` names;
- our own group, when its controllers are enabled for groups below it (which the kernel allows only in the root group,
  or in one without processes);
- the parent of our own group, for users other than root: if such a user may write to it, it was delegated to the user.
  Root may write everywhere, so for root this would escape limits that were set for us.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

from agent_r1.errors import ConfigError

VARIABLE = "AGENT_R1_CGROUP"
_CONTROLLERS = {"memory", "pids"}
_REMOVE_SECONDS = 2.0


def find_parent(proc: Path = Path("/proc/self")) -> Path | None:
    """The group in which sessions can have groups of their own, or None. A wrong `AGENT_R1_CGROUP` is an error."""
    location = os.environ.get(VARIABLE)
    if location:
        problem = _problem(Path(location))
        if problem:
            raise ConfigError(f"{VARIABLE}={location} cannot hold the groups of sandboxes: {problem}")
        return Path(location)
    try:
        group = own_group((proc / "cgroup").read_text(), (proc / "mountinfo").read_text())
    except OSError:
        return None
    if group is None:
        return None
    candidates = [group] if os.getuid() == 0 else [group, group.parent]
    return next((candidate for candidate in candidates if not _problem(candidate)), None)


def own_group(membership: str, mounts: str) -> Path | None:
    """Our group's folder, from the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`.

    >>> own_group("0::/a/b\\n", "31 24 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\\n").as_posix()
    '/sys/fs/cgroup/a/b'
    """
    group = next((line[3:] for line in membership.splitlines() if line.startswith("0::/")), None)
    for line in mounts.splitlines():
        before, _, right = line.partition(" - ")
        fields = before.split()
        if group is None or right.split()[:1] != ["cgroup2"] or len(fields) < 5:
            continue
        root = fields[3].rstrip("/")
        if group == root or group.startswith(f"{root}/"):
            return Path(fields[4]) / group[len(root) :].lstrip("/")
    return None


def make_group(parent: Path, *, memory_bytes: int, processes: int) -> Path:
    """A new group with these limits."""
    group = parent / f"agent-r1-{os.getpid()}-{secrets.token_hex(4)}"
    group.mkdir()
    try:
        (group / "memory.max").write_text(str(memory_bytes))
        (group / "pids.max").write_text(str(processes))
        # Without swap there is no such file.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            (group / "memory.swap.max").write_text("0")
    except OSError:
        remove_group(group)
        raise
    return group


def remove_group(group: Path | None) -> None:
    """Kill what is left in the group and remove it."""
    if group is None:
        return
    with contextlib.suppress(OSError):
        (group / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + _REMOVE_SECONDS
    while time.monotonic() < deadline:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)  # killed processes take a moment to end
        else:
            return


def _problem(parent: Path) -> str:
    """Why sessions cannot have groups here, or ""."""
    control = parent / "cgroup.subtree_control"
    try:
        missing = _CONTROLLERS - set(control.read_text().split())
        if missing:
            control.write_text(" ".join(f"+{name}" for name in sorted(missing)))
            missing = _CONTROLLERS - set(control.read_text().split())
    except OSError as error:
        return f"{control}: {error.strerror}"
    if missing:
        return f"the controllers {', '.join(sorted(missing))} are not on in {control}"
    return "" if os.access(parent, os.W_OK) else f"{parent} is not writable"
