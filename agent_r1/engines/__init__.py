"""Engines: the protocol, the registry, streaming, the scripted test double; in `local` the in-process engine, in `http`
servers."""

from agent_r1.engines.base import (
    Engine,
    EngineFactory,
    MeasuredEngine,
    MessageEngine,
    StreamedTokens,
    StreamingEngine,
    bind_engine,
    engine_factories,
    engine_metrics,
    make_engine,
    stream_completion,
    takes_messages,
)
from agent_r1.engines.scripted import ScriptedEngine

__all__ = [
    "Engine",
    "EngineFactory",
    "MeasuredEngine",
    "MessageEngine",
    "ScriptedEngine",
    "StreamedTokens",
    "StreamingEngine",
    "bind_engine",
    "engine_factories",
    "engine_metrics",
    "make_engine",
    "stream_completion",
    "takes_messages",
]
