"""Engines: the protocol, the registry, the scripted test double, and (in `local`) the in-process engine."""

from agent_r1.engines.base import Engine, EngineFactory, bind_engine, engine_factories, make_engine
from agent_r1.engines.scripted import ScriptedEngine

__all__ = ["Engine", "EngineFactory", "ScriptedEngine", "bind_engine", "engine_factories", "make_engine"]
