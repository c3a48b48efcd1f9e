"""Flows: the code that runs one episode, from a task to its steps."""

from agent_r1.flows.base import AgentFlowBase, FlowContext, Turn
from agent_r1.flows.ended import checked_episode
from agent_r1.flows.env_loop import AgentEnvLoop, SingleStepFlow
from agent_r1.flows.events import (
    ActionParsed,
    FlowEvent,
    FlowObserver,
    PromptRendered,
    StepRecorded,
    TokensSampled,
    replies_to,
)
from agent_r1.flows.try_flow import try_flow

__all__ = [
    "ActionParsed",
    "AgentEnvLoop",
    "AgentFlowBase",
    "FlowContext",
    "FlowEvent",
    "FlowObserver",
    "PromptRendered",
    "SingleStepFlow",
    "StepRecorded",
    "TokensSampled",
    "Turn",
    "checked_episode",
    "replies_to",
    "try_flow",
]
