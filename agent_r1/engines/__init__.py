"""Engines: the protocol, the scripted test double, and (in `local`) the in-process engine."""

from agent_r1.engines.base import Engine
from agent_r1.engines.scripted import ScriptedEngine

__all__ = ["Engine", "ScriptedEngine"]
