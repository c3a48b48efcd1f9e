"""`Gateway`: the agent of a run and the server it talks to, started by the first rollout and closed with the run."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from agent_r1.config import AgentConfig
from agent_r1.errors import ConfigError, described, no_exit, require_installed
from agent_r1.gateway.agents import Agent, Assignment, CommandAgent, FunctionAgent, RemoteAgents
from agent_r1.gateway.open_rollouts import OpenRollout
from agent_r1.registry import load_function
from agent_r1.web import is_loopback, listen, make_access, running_server

KEY_VARIABLE = "AGENT_R1_GATEWAY_KEY"
"""The key of the server, which requests must send; required where other machines can reach it."""


class Gateway:
    """One per process. `serving` gives each rollout an address of its own."""

    def __init__(self, settings: AgentConfig, *, announce: Callable[[str], None] = lambda line: None) -> None:
        self.settings = settings
        self.rollouts: dict[str, OpenRollout] = {}
        """The open rollouts by the token of their address."""
        self._announce = announce
        self._agent: Agent | None = None
        self._stack = AsyncExitStack()
        self._starting = asyncio.Lock()
        self._url: str | None = None
        self.key = os.environ.get(KEY_VARIABLE) or None

    @property
    def agent(self) -> Agent:
        """The user's agent."""
        if self._agent is None:
            self._agent = make_agent(self.settings)
        return self._agent

    @asynccontextmanager
    async def serving(self, rollout: OpenRollout) -> AsyncIterator[Assignment]:
        """Inside, the rollout can be reached under its address."""
        url = await self._start()
        self.rollouts[rollout.token] = rollout
        try:
            yield rollout.assignment(f"{url}/{rollout.token}/v1", self.key or rollout.token)
        finally:
            rollout.close()
            del self.rollouts[rollout.token]

    async def _start(self) -> str:
        async with self._starting:
            if self._url is None:
                from agent_r1.gateway.server import create_app

                listener = listen(self.settings.host, self.settings.port)
                access = make_access(self.settings.host, key=self.key)
                server = running_server(create_app(self, access), listener, shutdown_seconds=1)
                self._url = await self._stack.enter_async_context(server)
                if self.settings.remote:
                    self._announce(f"gateway: waiting for workers at {self._url}/rollouts")
        return self._url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._url = None
        if isinstance(self._agent, RemoteAgents):
            self._agent.close()
        await self._stack.aclose()


def make_agent(settings: AgentConfig) -> Agent:
    """The agent that the configuration names."""
    if settings.function is not None:
        return FunctionAgent(_find_function(settings.function), settings.function)
    if settings.command is not None:
        return CommandAgent(settings.command)
    return RemoteAgents()


def _find_function(reference: str) -> Callable[..., Any]:
    """The function at `module:function` or `folder/file.py:function`; a file finds what lies beside it."""
    file, _, attribute = reference.rpartition(":")
    if not file.endswith(".py"):
        return load_function(reference, kind="agent")
    path = Path(file).resolve()
    if not path.is_file():
        raise ConfigError(f"agent.function={reference}: there is no file {path}")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    with no_exit(f"loading agent.function={reference}: the file"):
        attribute_value = getattr(_load_file(path), attribute, None)
    if not callable(attribute_value):
        raise ConfigError(f"agent.function={reference}: {path.name} has no function '{attribute}'")
    function: Callable[..., Any] = attribute_value
    return function


def _load_file(path: Path) -> ModuleType:
    name = f"agent_r1_agent_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ImportError | SyntaxError):
            raise ConfigError(f"the agent {path} cannot be loaded: {described(error)}") from error
        raise
    return module


def check_agent(settings: AgentConfig) -> None:
    """Refuse a section `agent` that cannot work, before a model is loaded."""
    require_installed("uvicorn", "uvicorn", "serve", "the flow 'gateway'")
    require_installed("starlette", "starlette", "serve", "the flow 'gateway'")
    chosen = [
        name
        for name, is_set in (
            ("agent.function", settings.function is not None),
            ("agent.command", settings.command is not None),
            ("agent.remote", settings.remote),
        )
        if is_set
    ]
    if len(chosen) != 1:
        raise ConfigError(
            f"the flow 'gateway' needs exactly one of agent.function, agent.command and agent.remote=true, found "
            f"{' and '.join(chosen) or 'none of them'}"
        )
    if not is_loopback(settings.host) and not os.environ.get(KEY_VARIABLE):
        raise ConfigError(
            f"agent.host={settings.host} can be reached from other machines: set a key in the variable {KEY_VARIABLE}"
        )
    make_agent(settings)
