"""Calls in processes that can be killed, and in threads beside the event loop."""

from agent_r1.tools.workers.function_ref import FunctionRef

__all__ = [
    "FunctionRef",
]
