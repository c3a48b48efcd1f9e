"""Agents whose replies are given: the shop's tools, environment and renderer around a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from agent_r1.chat import ChatRenderer
from agent_r1.config import load_config
from agent_r1.engines import ScriptedEngine, StreamedTokens
from agent_r1.inference import Agent, AgentSource, make_agent
from agent_r1.rewards import RewardFunction, no_outcome_reward
from agent_r1.tools import BaseTool
from agent_r1.types import SamplingParams
from tests.helpers.shop import COUNT_CALLS, LOOK_UP, reply

CALL = '<tool_call>{"name": "look_up", "arguments": {"item": "apple"}}</tool_call>'
COUNT = '<tool_call>{"name": "count_calls", "arguments": {}}</tool_call>'


class TokenByToken(ScriptedEngine):
    """Streams its replies one token at a time; `before_token` is awaited before each."""

    def __init__(self, replies: Sequence[Sequence[int]], **more: Any) -> None:
        super().__init__(replies, **more)
        self.before_token: Callable[[int], Any] | None = None

    async def stream(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> AsyncGenerator[StreamedTokens, None]:
        completion = await self.generate(prompt_ids, sampling)
        for index, token in enumerate(completion.token_ids):
            if self.before_token is not None:
                await self.before_token(index)
            await asyncio.sleep(0)
            is_last = index == len(completion.token_ids) - 1
            yield StreamedTokens(
                token_ids=(token,),
                logprobs=(completion.logprobs[index],),
                policy_versions=(0,),
                completion=completion if is_last else None,
            )


def scripted_agent(
    renderer: ChatRenderer,
    *texts: str,
    overrides: Sequence[str] = (),
    reward: RewardFunction = no_outcome_reward,
    closed: bool = True,
    context_length: int = 4096,
) -> Agent:
    """An agent with the shop's two tools that says these texts, token by token."""
    for tool in (LOOK_UP, COUNT_CALLS):
        BaseTool.registry.add(tool.name, tool, replaceable=True)
    config = load_config(None, ["model.path=scripted", "env.tools=[look_up, count_calls]", *overrides])
    replies = [reply(renderer, text, closed=closed) for text in texts]
    engine = TokenByToken(replies, context_length=context_length)
    return make_agent(AgentSource(label="scripted", config=config, has_recipe=True), renderer, engine, reward)
