"""Inference: a trained agent with its tools, environment and limits, one episode or a conversation at a time."""

from agent_r1.inference.agent import Agent, connect_agent, load_agent, make_agent
from agent_r1.inference.export import Exported, export_agent
from agent_r1.inference.session import ChatSession, Exchange
from agent_r1.inference.source import AgentSource, find_source

__all__ = [
    "Agent",
    "AgentSource",
    "ChatSession",
    "Exchange",
    "Exported",
    "connect_agent",
    "export_agent",
    "find_source",
    "load_agent",
    "make_agent",
]
