"""Environments: `AgentEnv`, `make_env`, `ToolEnv`, adapters, wrappers, context policies and `check_env`."""

from agent_r1.envs.base import AgentEnv, as_observation, as_step_result, awaited, check_metrics, checked_reward
from agent_r1.envs.check import check_env
from agent_r1.envs.context import ContextPolicy, Conversation, History, Messages, context_policies, make_policy
from agent_r1.envs.grid_text import describe_grid
from agent_r1.envs.gym import GymEnv
from agent_r1.envs.make import DEFAULT_ENV, make_env, row_env_name
from agent_r1.envs.ready import EXAMPLES, ReadyEnv, env_kinds, kind_of, ready_env, run_name_of
from agent_r1.envs.remote.client import RemoteEnv
from agent_r1.envs.tool_env import ToolEnv
from agent_r1.envs.wrappers import (
    EnvWrapper,
    ObservationLimit,
    StepLimit,
    TimeLimit,
    bind_wrapper,
    check_wrappers,
    env_wrappers,
    wrap_env,
)

__all__ = [
    "DEFAULT_ENV",
    "EXAMPLES",
    "AgentEnv",
    "ContextPolicy",
    "Conversation",
    "EnvWrapper",
    "GymEnv",
    "History",
    "Messages",
    "ObservationLimit",
    "ReadyEnv",
    "RemoteEnv",
    "StepLimit",
    "TimeLimit",
    "ToolEnv",
    "as_observation",
    "as_step_result",
    "awaited",
    "bind_wrapper",
    "check_env",
    "check_metrics",
    "check_wrappers",
    "checked_reward",
    "context_policies",
    "describe_grid",
    "env_kinds",
    "env_wrappers",
    "kind_of",
    "make_env",
    "make_policy",
    "ready_env",
    "row_env_name",
    "run_name_of",
    "wrap_env",
]
