"""Calls in processes that can be killed, and in threads beside the event loop."""

from agent_r1.tools.workers.function_ref import FunctionRef
from agent_r1.tools.workers.threads import call_off_loop

__all__ = [
    "FunctionRef",
    "call_off_loop",
]
