"""A policy loss that fails on one of several ranks."""

from __future__ import annotations

import os
from typing import Any

from agent_r1.algorithms import policy_losses

CALLS: list[int] = []


def broken(
    inputs: Any, *, ratio: str = "token", clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float = 3.0
) -> Any:
    CALLS.append(1)
    if os.environ.get("RANK") == "1" and len(CALLS) > 1:
        raise RuntimeError("this rank has a broken loss")
    return policy_losses.get("clip")(inputs, ratio=ratio, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
