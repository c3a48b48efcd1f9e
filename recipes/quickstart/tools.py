"""The quickstart's own tool. The other one, `calculate`, comes with the library."""

from __future__ import annotations

from agent_r1.tools import ToolContext, tool


@tool
async def price(item: str, context: ToolContext) -> tuple[str, float]:
    """The price of one item.

    Args:
        item: The item.
    """
    prices = context.task.env_kwargs["prices"]
    if item not in prices:
        raise ValueError(f"there is no {item} here")
    useful = item in context.task.env_kwargs["wanted"] and item not in context.state
    context.state[item] = prices[item]
    return str(prices[item]), 0.1 if useful else 0.0
