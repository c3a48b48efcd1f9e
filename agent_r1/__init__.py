"""Agent-R1: train language-model agents with reinforcement learning, end to end.

    @agent_r1.tool
    def stock(item: str) -> int: ...

    agent_r1.train(model="...", data="tasks.jsonl", tools=[stock], reward=score)

Names are loaded on first use, so importing this package is fast and needs no torch. What a run prints is also logged
to the logger `agent_r1`.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from agent_r1.version import __version__

if TYPE_CHECKING:
    from agent_r1.api import check, demonstrate, evaluate, evaluate_run, replay, sft, train
    from agent_r1.config import Config, load_config
    from agent_r1.engines import Engine, ScriptedEngine
    from agent_r1.envs import AgentEnv, ToolEnv, check_env
    from agent_r1.errors import AgentR1Error
    from agent_r1.findings import Finding
    from agent_r1.flows import AgentEnvLoop, AgentFlowBase, SingleStepFlow

    # A function and its module have one name: through the package, mypy may take it for the module.
    from agent_r1.flows.try_flow import try_flow
    from agent_r1.rewards import RewardFunction
    from agent_r1.runs import LoadedRun, load_run, load_trajectories
    from agent_r1.tools import BaseTool, ToolContext, ToolResponse, check_tool, tool
    from agent_r1.tools.try_tool import try_tool
    from agent_r1.types import (
        Action,
        Completion,
        Episode,
        Group,
        Observation,
        SamplingParams,
        Step,
        StepResult,
        StopReason,
        Task,
        ToolCall,
        Trajectory,
    )

_HOMES = {
    "agent_r1.api": ("check", "demonstrate", "evaluate", "evaluate_run", "replay", "sft", "train"),
    "agent_r1.config": ("Config", "load_config"),
    "agent_r1.engines": ("Engine", "ScriptedEngine"),
    "agent_r1.envs": ("AgentEnv", "ToolEnv", "check_env"),
    "agent_r1.errors": ("AgentR1Error",),
    "agent_r1.findings": ("Finding",),
    "agent_r1.flows": ("AgentEnvLoop", "AgentFlowBase", "SingleStepFlow", "try_flow"),
    "agent_r1.rewards": ("RewardFunction",),
    "agent_r1.runs": ("LoadedRun", "load_run", "load_trajectories"),
    "agent_r1.tools": ("BaseTool", "ToolContext", "ToolResponse", "check_tool", "tool", "try_tool"),
    "agent_r1.types": (
        "Action",
        "Completion",
        "Episode",
        "Group",
        "Observation",
        "SamplingParams",
        "Step",
        "StepResult",
        "StopReason",
        "Task",
        "ToolCall",
        "Trajectory",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def _limit_spinning(environment: MutableMapping[str, str]) -> None:
    """Have OpenMP's threads, which torch computes with on a CPU, sleep soon when they wait for each other.

    GNU OpenMP, which torch's wheels for Linux bring, lets them spin for about 10 ms first. Where other programs use the
    processor too, a thread then spends its whole turn waiting for one that has none. A few tenths of a millisecond are
    enough for the waits of a quiet machine. How long threads spin changes no result. OpenMP reads the variable when
    torch is imported: a program that imports torch before agent_r1 has to set it itself.
    """
    if not environment.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:  # else the user has chosen
        environment["GOMP_SPINCOUNT"] = "10000"


_limit_spinning(os.environ)
logging.getLogger("agent_r1").addHandler(logging.NullHandler())  # embedders decide where the lines of a run go

__all__ = [
    "Action",
    "AgentEnv",
    "AgentEnvLoop",
    "AgentFlowBase",
    "AgentR1Error",
    "BaseTool",
    "Completion",
    "Config",
    "Engine",
    "Episode",
    "Finding",
    "Group",
    "LoadedRun",
    "Observation",
    "RewardFunction",
    "SamplingParams",
    "ScriptedEngine",
    "SingleStepFlow",
    "Step",
    "StepResult",
    "StopReason",
    "Task",
    "ToolCall",
    "ToolContext",
    "ToolEnv",
    "ToolResponse",
    "Trajectory",
    "__version__",
    "check",
    "check_env",
    "check_tool",
    "demonstrate",
    "evaluate",
    "evaluate_run",
    "load_config",
    "load_run",
    "load_trajectories",
    "replay",
    "sft",
    "tool",
    "train",
    "try_flow",
    "try_tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'agent_r1' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
