"""Flows: how an episode runs."""

from agent_r1.flows.base import AgentFlowBase, FlowContext, Turn
from agent_r1.flows.env_loop import AgentEnvLoop, SingleStepFlow

__all__ = ["AgentEnvLoop", "AgentFlowBase", "FlowContext", "SingleStepFlow", "Turn"]
