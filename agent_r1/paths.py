"""The cache folder, shared by all runs: `$AGENT_R1_CACHE`, else `~/.cache/agent-r1`."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir(name: str) -> Path:
    """The path of `name` in the cache; `${cached:name}` in a configuration.

    With AGENT_R1_CACHE=/data/cache, `cache_dir("smollm2")` is /data/cache/smollm2.
    """
    return Path(os.environ.get("AGENT_R1_CACHE") or "~/.cache/agent-r1").expanduser() / name
