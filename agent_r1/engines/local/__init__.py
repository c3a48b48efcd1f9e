"""The in-process engine."""

from agent_r1.engines.local.engine import LocalEngine

__all__ = ["LocalEngine"]
