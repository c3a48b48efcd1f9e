"""Environments that exist already, in one line: `env=KIND:NAME`. Each kind is one file and a name in `env_kinds`."""

from agent_r1.envs.ready import gym, mcp, reasoning_gym, verifiers
from agent_r1.envs.ready.base import EXAMPLES, ReadyEnv, env_kinds, kind_of, ready_env, run_name_of

__all__ = [
    "EXAMPLES",
    "ReadyEnv",
    "env_kinds",
    "gym",
    "kind_of",
    "mcp",
    "ready_env",
    "reasoning_gym",
    "run_name_of",
    "verifiers",
]
