"""A shop with two tools, and episodes in it whose replies are given."""

from __future__ import annotations

import asyncio
from typing import Any

from agent_r1.chat import ChatRenderer
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import AgentEnv
from agent_r1.flows import AgentEnvLoop, FlowContext
from agent_r1.tools import FunctionTool, ToolContext
from agent_r1.types import (
    Episode,
    SamplingParams,
    Task,
    TokenIds,
)

TASK = Task(
    task_id="apples",
    prompt=({"role": "user", "content": "What do 3 apple cost?"},),
    env_kwargs={"prices": {"apple": 7, "pear": 5}},
)


def look_up(item: str, context: ToolContext) -> tuple[str, float]:
    """The price of one item."""
    if item not in context.task.env_kwargs["prices"]:
        raise ValueError(f"there is no {item} here")
    return str(context.task.env_kwargs["prices"][item]), 0.25


def count_calls(context: ToolContext) -> str:
    """How often this was called in the episode."""
    context.state["calls"] = context.state.get("calls", 0) + 1
    return str(context.state["calls"])


LOOK_UP, COUNT_CALLS = FunctionTool(look_up), FunctionTool(count_calls)


def reply(renderer: ChatRenderer, text: str, *, closed: bool = True) -> TokenIds:
    """What a model samples to say a text, with the end of turn."""
    ids = tuple(renderer.tokenizer.encode(text, add_special_tokens=False))
    return (*ids, renderer.stop_ids[0]) if closed else ids


def script(renderer: ChatRenderer, *texts: str, context_length: int = 4096) -> ScriptedEngine:
    return ScriptedEngine([reply(renderer, text) for text in texts], context_length=context_length)


def context_of(
    renderer: ChatRenderer, engine: Any, env: AgentEnv | None = None, *, max_tokens: int = 256, **more: Any
) -> FlowContext:
    make_env = None if env is None else (lambda task: env)
    sampling = SamplingParams(max_tokens=max_tokens)
    return FlowContext(engine=engine, renderer=renderer, sampling=sampling, make_env=make_env, **more)


def run_loop(renderer: ChatRenderer, engine: Any, env: AgentEnv, **more: Any) -> Episode:
    return asyncio.run(AgentEnvLoop(context_of(renderer, engine, env, **more)).run(TASK))
