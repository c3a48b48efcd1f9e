"""Disks that are really full, for tests: files that the kernel lets grow only so far, and a small disk of its own."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[Callable[[], None]]:
    """Inside, the kernel refuses what this process writes beyond so many bytes of a file; works for every user. Gives
    what lifts the limit before the block ends."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def lift() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield lift
    finally:
        lift()


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Inside, the folder is a disk of its own, of so many bytes: `1m`. Only root may have one; others skip the test."""
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("there is no mount command")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def half_written(folder: Path) -> list[Path]:
    """What was left behind while it was written."""
    return list(folder.rglob("*.partial"))
