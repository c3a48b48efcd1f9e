"""What tests of the gateway share: rollouts on a scripted engine, and how an agent sees what it gets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from agent_r1.chat import ChatRenderer
from agent_r1.config import AgentConfig
from agent_r1.engines import Engine, MessageEngine, ScriptedEngine
from agent_r1.gateway import Gateway
from agent_r1.rewards import RewardFunction
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.types import Episode, SamplingParams, Task, TokenIds, Trajectory

TASK = Task(
    task_id="t",
    prompt=({"role": "user", "content": "What do 3 tea cost?"},),
    agent_name="gateway",
    reward_model={"ground_truth": "12"},
    env_kwargs={"prices": {"tea": 4}},
)
PRICE = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "The price of one item.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}
CALL = '<tool_call>{"name": "price", "arguments": {"item": "tea"}}</tool_call>'


def right(task: Task, episode: Episode) -> float:
    return float(episode.answer == task.ground_truth)


def encoded(tokenizer: Any, *replies: str) -> list[list[int]]:
    """Replies as an engine samples them, each with its end of turn."""
    return [[*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id] for reply in replies]


def replies_in_order(tokenizer: Any, *replies: str, **settings: Any) -> ScriptedEngine:
    """An engine that says these, and says the last one for ever after."""
    ids = encoded(tokenizer, *replies)

    def script(prompt: TokenIds, sampling: SamplingParams) -> Sequence[int]:
        return ids[min(len(engine.requests), len(ids)) - 1]

    engine = ScriptedEngine(script, **settings)
    return engine


def babbling(tokenizer: Any, *, call_share: float = 0.3, **settings: Any) -> ScriptedEngine:
    """An engine that samples any ids of the vocabulary, as its seed says: text that other ids would write too."""
    others = [token for token in range(len(tokenizer)) if token != tokenizer.eos_token_id]
    calls = encoded(tokenizer, CALL)[0]

    def script(prompt: TokenIds, sampling: SamplingParams) -> Sequence[int]:
        rng = random.Random(sampling.seed)
        if rng.random() < call_share:
            return calls
        return [*rng.choices(others, k=rng.randint(1, 12)), tokenizer.eos_token_id]

    return ScriptedEngine(script, **settings)


def roll_out(
    engine: Engine,
    renderer: ChatRenderer,
    settings: AgentConfig,
    *,
    task: Task = TASK,
    reward: RewardFunction = right,
    group_size: int = 1,
    retries: int = 0,
    max_steps: int = 8,
    max_tokens: int = 64,
    deadline_seconds: float = 30.0,
    beside: Callable[[Gateway], Awaitable[None]] | None = None,
) -> list[Trajectory]:
    """The rollouts of one task by the agent of the settings; `beside` runs at the same time."""

    async def run() -> list[Trajectory]:
        async with Gateway(settings) as gateway:
            rollout = Rollout(
                engine=engine,
                renderer=renderer,
                reward=reward,
                make_env=lambda task: None,
                limits=RolloutLimits(
                    max_steps=max_steps, retries=retries, deadline_seconds=deadline_seconds, group_refills=0
                ),
                services={"gateway": gateway},
            )
            running = rollout.run(
                [task], group_size=group_size, sampling=SamplingParams(max_tokens=max_tokens), seed=0, may_fail=True
            )
            if beside is None:
                [group] = await running
            else:
                [group], _ = await asyncio.gather(running, beside(gateway))
            if isinstance(engine, MessageEngine):  # it has connections
                await engine.close()
            return list(group.trajectories)

    return asyncio.run(run())


def written(folder: Path, source: str) -> str:
    """A file with an agent, as `agent.function` names it."""
    file = folder / "their_agent.py"
    file.write_text(source)
    return f"{file}:solve"
