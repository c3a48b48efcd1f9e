"""How many processor cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")


ROLLOUT_WORKERS = "AGENT_R1_ROLLOUT_WORKERS"
"""The environment variable that says how many rollout workers share the cores of this machine."""


def num_cores(quota_file: Path = _QUOTA_FILE) -> int:
    """The cores that affinity and the container's quota leave to this process, at least 1.

    A quota of 1.5 cores counts as 2.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text(encoding="ascii").split()
        return max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max": no quota
        return cores


def cores_of_worker() -> int:
    """This process's share of the cores, at least 1: those of one of several rollout workers, or all."""
    return max(1, num_cores() // int(os.environ.get(ROLLOUT_WORKERS, "1")))
