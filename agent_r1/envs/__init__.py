"""Environments: `AgentEnv` and `ToolEnv`."""

from agent_r1.envs.base import AgentEnv, as_step_result
from agent_r1.envs.tool_env import ToolEnv

__all__ = ["AgentEnv", "ToolEnv", "as_step_result"]
