"""Control groups on a folder that stands in for the kernel's, and for real where this machine has them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from agent_r1.errors import ConfigError
from agent_r1.tools.builtin.python import _CELLS
from agent_r1.tools.sandbox import cgroup, probe
from agent_r1.tools.sandbox.cgroup import find_parent, make_group, own_group, remove_group
from agent_r1.tools.sandbox.layers import SandboxLimits
from agent_r1.tools.sandbox.sandbox import Sandbox

V2 = "31 24 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
V1 = "33 32 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


@pytest.mark.parametrize(
    ("membership", "mounts", "expected"),
    [
        ("0::/a.slice/b.scope\n", V2, "/sys/fs/cgroup/a.slice/b.scope"),
        ("0::/\n", V1 + V2, "/sys/fs/cgroup"),
        (
            "4:memory:/x\n0::/y\n",
            V1 + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
            "/sys/fs/cgroup/unified/y",
        ),
        ("0::/a/b/c\n", V2.replace(" / ", " /a/b "), "/sys/fs/cgroup/c"),
        ("0::/other\n", V2.replace(" / ", " /a/b "), None),
        ("4:memory:/x\n", V1, None),
        ("0::/a\n", "", None),
        ("", V2, None),
    ],
)
def test_own_group_is_found_in_what_the_kernel_says(membership: str, mounts: str, expected: str | None) -> None:
    found = own_group(membership, mounts)
    assert (None if found is None else str(found)) == expected


def group_folder(path: Path, controllers: str = "cpu memory pids") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.subtree_control").write_text(controllers)
    return path


def proc_folder(path: Path, group: str, mount: Path) -> Path:
    path.mkdir()
    (path / "cgroup").write_text(f"0::{group}\n")
    (path / "mountinfo").write_text(f"31 24 0:27 / {mount} rw - cgroup2 cgroup2 rw\n")
    return path


def test_root_stays_inside_its_own_group_and_others_may_use_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(cgroup.VARIABLE, raising=False)
    mount = group_folder(tmp_path / "cgroup")
    proc = proc_folder(tmp_path / "proc", "/mine", mount)
    (mount / "mine").mkdir()  # it has no file of controllers: they cannot be turned on
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert find_parent(proc) is None
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert find_parent(proc) == mount
    group_folder(mount / "mine")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert find_parent(proc) == mount / "mine"


def test_machine_without_groups_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cgroup.VARIABLE, raising=False)
    assert find_parent(tmp_path) is None


def test_named_group_that_cannot_be_used_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cgroup.VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"AGENT_R1_CGROUP=.*missing cannot hold .*No such file"):
        find_parent()
    monkeypatch.setenv(cgroup.VARIABLE, str(group_folder(tmp_path / "group")))
    assert find_parent() == tmp_path / "group"


def test_group_gets_its_limits_and_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = make_group(tmp_path, memory_bytes=1 << 28, processes=9)
    assert {file.name: file.read_text() for file in group.iterdir()} == {
        "memory.max": str(1 << 28),
        "pids.max": "9",
        "memory.swap.max": "0",
    }
    for file in group.iterdir():  # the kernel's files go with their folder
        file.unlink()
    monkeypatch.setattr(Path, "write_text", refuse)
    remove_group(group)
    remove_group(group)
    assert not group.exists()


def refuse(*arguments: Any, **options: Any) -> int:
    raise OSError("closed")


def test_sandbox_works_without_a_group_that_cannot_be_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is no group takes the files, but no process can enter it: the sandbox says so and goes on."""
    monkeypatch.setenv(cgroup.VARIABLE, str(group_folder(tmp_path)))
    monkeypatch.setattr(cgroup, "_REMOVE_SECONDS", 0.0)
    probe.layers_of_kind.cache_clear()
    try:
        assert Sandbox().describe().memory_limited == "per process"
    finally:
        probe.layers_of_kind.cache_clear()


def test_memory_of_all_processes_is_limited_in_sum_where_there_are_groups() -> None:
    sandbox = Sandbox("auto", SandboxLimits(memory_mb=128, disk_mb=8, processes=8))
    if sandbox.describe().memory_limited != "in sum":
        pytest.skip("no cgroup v2 with memory and pids that we may make groups in")
    hold = (
        "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n"
        "        held = bytearray(os.urandom(1 << 20) * 60)\n        time.sleep(30)\ntime.sleep(2)\n"
        "try:\n    while True: os.waitpid(-1, os.WNOHANG)[0] or 1 / 0\nexcept ZeroDivisionError: pass\n'alive'"
    )

    async def run() -> tuple[list[Path], list[int]]:
        session = sandbox.start(_CELLS)
        groups = list((find_parent() or Path()).glob("agent-r1-*"))
        await session.ask({"code": hold}, seconds=20)
        events = [
            int(line.split()[1]) for line in (groups[0] / "memory.events").read_text().splitlines() if "oom" in line
        ]
        await session.close()
        return groups, events

    groups, events = asyncio.run(run())
    assert sum(events) > 0
    assert not groups[0].exists()
