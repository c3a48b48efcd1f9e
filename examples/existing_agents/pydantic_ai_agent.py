"""A shopping agent on pydantic-ai. It knows nothing of training; `pip install "pydantic-ai-slim[openai]"`.

With a server that speaks the OpenAI API it answers a question about one shop:

    OPENAI_BASE_URL=http://localhost:8000/v1 OPENAI_API_KEY=none python examples/existing_agents/pydantic_ai_agent.py

The last function is the whole adapter for Agent-R1:

    agent-r1 train quickstart data.agent_name=gateway run.name=pydantic_ai_agent \\
        agent.function=examples/existing_agents/pydantic_ai_agent.py:solve
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from openai import AsyncOpenAI
from openai_agent import calculate as work_out
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

agent = Agent(deps_type=dict[str, int], retries=2)


@agent.tool
def price(context: RunContext[dict[str, int]], item: str) -> int:
    """The price of one item."""
    if item not in context.deps:
        raise ModelRetry(f"there is no {item} here")
    return context.deps[item]


@agent.tool_plain
def calculate(expression: str) -> str:
    """Work out an arithmetic expression."""
    try:
        return work_out(expression)
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError) as error:
        raise ModelRetry(str(error)) from error


async def shop(client: AsyncOpenAI, question: str, prices: dict[str, int]) -> str | None:
    """The agent's answer; None when the model kept calling tools wrongly."""
    model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client))
    try:
        return (await agent.run(question, model=model, deps=prices)).output
    except UnexpectedModelBehavior:
        return None


async def solve(task: dict[str, Any], base_url: str, api_key: str) -> str | None:
    """One rollout of a training run: the same agent, with the address and the task that Agent-R1 gives."""
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        return await shop(client, task["prompt"][-1]["content"], task["env_kwargs"]["prices"])


if __name__ == "__main__":
    default = AsyncOpenAI(base_url=os.environ["OPENAI_BASE_URL"])
    print(asyncio.run(shop(default, "What do 3 tea and 2 milk cost?", {"tea": 4, "milk": 6})))
