"""A policy loss that fails on one of several ranks."""

from __future__ import annotations

import os
from typing import Any

from agent_r1.algorithms import policy_losses

CALLS: list[int] = []


def broken(inputs: Any) -> Any:
    CALLS.append(1)
    if os.environ.get("RANK") == "1" and len(CALLS) > 2:
        raise RuntimeError("this rank has a broken loss")
    return policy_losses.get("clip")(inputs)
