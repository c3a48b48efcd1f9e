"""Environments on a server: `agent-r1 env serve` and its client `RemoteEnv`."""

from agent_r1.envs.remote.server import EnvService, ServiceLimits, serve

__all__ = [
    "EnvService",
    "ServiceLimits",
    "serve",
]
