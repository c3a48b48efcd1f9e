"""A tool of your own: a typed function. Its docstring is what the model reads; what it raises, the model reads too.

python examples/own_tool.py
"""

from __future__ import annotations

from agent_r1 import ToolContext, check_tool, tool, try_tool


@tool
async def stock(item: str, context: ToolContext) -> tuple[str, float]:
    """How many of an item are in stock.

    Args:
        item: The item's name.
    """
    shelves = context.task.env_kwargs["stock"]  # of the row that the episode is about
    if item not in shelves:
        raise ValueError(f"there is no {item}; known: {', '.join(shelves)}")
    return str(shelves[item]), 0.1  # what the model reads, and the reward of the call


if __name__ == "__main__":
    row = {"stock": {"tea": 3, "milk": 0}}
    print(stock.tool_schema)
    print(try_tool(stock, {"item": "tea"}, env_kwargs=row).response)  # as a run would call it
    print(try_tool(stock, {"item": "rum"}, env_kwargs=row).response.text)
    print(try_tool(stock, {"thing": "tea"}, env_kwargs=row).response.text)
    print("findings:", check_tool(stock))
    # Train with it: agent_r1.train(model=..., data=rows, tools=[stock], reward=...). Rows have env_kwargs.stock.
