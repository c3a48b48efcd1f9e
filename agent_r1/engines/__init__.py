"""Engines: the protocol, the registry, streaming, the scripted test double, and (in `local`) the in-process engine."""

from agent_r1.engines.base import (
    Engine,
    EngineFactory,
    MessageEngine,
    StreamedTokens,
    StreamingEngine,
    bind_engine,
    engine_factories,
    make_engine,
    stream_completion,
    takes_messages,
)
from agent_r1.engines.scripted import ScriptedEngine

__all__ = [
    "Engine",
    "EngineFactory",
    "MessageEngine",
    "ScriptedEngine",
    "StreamedTokens",
    "StreamingEngine",
    "bind_engine",
    "engine_factories",
    "make_engine",
    "stream_completion",
    "takes_messages",
]
