"""The configuration's sections `rollout.processes` and `rollout.ray`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from agent_r1.constraints import Count, NotNegative, PathText, Seconds


@dataclass
class ProcessesConfig:
    """Rollout workers as processes on this machine, for `rollout.workers=processes`."""

    num_workers: Optional[Count] = None
    """Worker processes; each runs an equal share of the `rollout.concurrency` episodes. null: one per core of this
    process but one, at most 8."""
    start_seconds: Seconds = 180.0
    """The run ends when no worker could be started for this long."""
    max_losses: Count = 3
    """A rollout that was lost with its worker this often fails. A worker and those that replace it may be lost twice as
    often in a row without finishing a rollout; then the run ends."""


@dataclass
class RayConfig:
    """Rollout workers on a Ray cluster, for `rollout.workers=ray` (extra `ray`)."""

    address: Optional[str] = None
    """The cluster: `auto` (the one that runs on this machine), `host:port`, or `local` to start one for this run. null:
    what RAY_ADDRESS says, else `local`."""
    num_workers: Count = 2
    """Worker processes; each runs an equal share of the `rollout.concurrency` episodes."""
    cpus_per_worker: NotNegative = 1.0
    """CPUs that each worker reserves."""
    resources: dict[str, float] = field(default_factory=dict)
    """Further resources that each worker reserves, by name: `{browsers: 1}` for nodes that have them."""
    modules: list[PathText] = field(default_factory=list)
    """Folders and .py files of your own that travel to the workers, beside the recipe's folder."""
    env_vars: list[str] = field(default_factory=list)
    """Names of environment variables that travel to the workers, such as the key of a service that a tool calls."""
    start_seconds: Seconds = 180.0
    """The run ends when no worker could be started for this long."""
    max_losses: Count = 3
    """A rollout that was lost with its worker this often fails. A worker and those that replace it may be lost twice as
    often in a row without finishing a rollout; then the run ends."""
