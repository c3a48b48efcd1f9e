"""Calls in processes that can be killed, and in threads beside the event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_r1.tools.workers.function_ref import FunctionRef
from agent_r1.tools.workers.imported_code import Code, code_on_disk, modules_of, refuse_changed_code
from agent_r1.tools.workers.mapped import map_in_workers
from agent_r1.tools.workers.threads import call_off_loop

if TYPE_CHECKING:
    from agent_r1.tools.workers.pool import WorkerPool

__all__ = [
    "Code",
    "FunctionRef",
    "WorkerPool",
    "call_off_loop",
    "code_on_disk",
    "map_in_workers",
    "modules_of",
    "refuse_changed_code",
]


def __getattr__(name: str) -> Any:
    if name != "WorkerPool":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agent_r1.tools.workers.pool import WorkerPool  # not for Windows, where it is an ImportError

    return WorkerPool
