"""The engine of `engine=openai`, as the configuration describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1.config import Config
from agent_r1.engines.openai.engine import OpenAIEngine
from agent_r1.engines.openai.servers import ServerSettings
from agent_r1.errors import ConfigError
from agent_r1.web import key_from_env


def make_openai_engine(
    config: Config, *, omit: Sequence[str] = (), extra: Mapping[str, Any] | None = None, key: str | None = None
) -> OpenAIEngine:
    """An engine for `engine.servers.urls`; without `key`, the one in the variable that `engine.servers.key_env`
    names."""
    servers = config.engine.servers
    if not servers.urls:
        raise ConfigError("engine=openai needs a server: engine.servers.urls=[http://127.0.0.1:8000/v1]")
    if key is None and servers.key_env is not None:
        key = key_from_env(servers.key_env, "engine.servers.key_env")
    settings = ServerSettings(
        key=key, timeout=servers.timeout, retries=servers.retries, concurrency=servers.concurrency
    )
    return OpenAIEngine(servers.urls, model=servers.model, settings=settings, omit=omit, extra=extra)
