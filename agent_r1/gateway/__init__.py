"""Train an agent you already have: a server that speaks the OpenAI API and records every call as a step."""

from agent_r1.gateway.flow import GatewayFlow
from agent_r1.gateway.service import Gateway, check_agent

__all__ = ["Gateway", "GatewayFlow", "check_agent"]
