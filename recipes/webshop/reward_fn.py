"""The outcome reward of webshop: the score of the purchase, which the environment found; 0 without one."""

from __future__ import annotations

from collections.abc import Mapping

from agent_r1.types import Episode, StopReason, Task


def score(task: Task, episode: Episode) -> dict[str, float]:
    """WebShop's score, from 0 to 1, with its parts; `success` is a score of 1."""
    last = episode.steps[-1].info if episode.steps and episode.stop_reason is StopReason.DONE else {}
    purchase = last.get("purchase")
    if not isinstance(purchase, Mapping):
        return {"score": 0.0, "success": 0.0, "bought": 0.0}
    return {
        "score": purchase["score"],
        "success": float(purchase["score"] >= 1.0),
        "bought": 1.0,
        **{name: purchase[name] for name in ("type", "attributes", "options", "price")},
    }
