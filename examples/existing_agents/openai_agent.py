"""A shopping agent on the official openai client, with a tool loop of its own.

It knows nothing of training. With a server that speaks the OpenAI API it answers a question about one shop:

    OPENAI_BASE_URL=http://localhost:8000/v1 OPENAI_API_KEY=none python examples/existing_agents/openai_agent.py

The last function is the whole adapter for Agent-R1:

    agent-r1 train quickstart data.agent_name=gateway run.name=openai_agent \\
        agent.function=examples/existing_agents/openai_agent.py:solve
"""

from __future__ import annotations

import ast
import json
import operator
from typing import Any

from openai import DefaultHttpxClient, OpenAI

MAX_TURNS = 5
HTTP = DefaultHttpxClient()  # one pool of connections for all clients

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "price",
            "description": "The price of one item.",
            "parameters": {
                "type": "object",
                "properties": {"item": {"type": "string", "description": "The item."}},
                "required": ["item"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "description": "Work out an arithmetic expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string", "description": "Numbers with + - * /."}},
                "required": ["expression"],
            },
        },
    },
]

OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def calculate(expression: str) -> str:
    """The value of a sum or product."""

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            result: float = OPERATORS[type(node.op)](value(node.left), value(node.right))
            return result
        raise ValueError(f"not arithmetic: {expression}")

    return f"{value(ast.parse(expression[:200], mode='eval').body):g}"


def run_tool(name: str, arguments: dict[str, Any], prices: dict[str, int]) -> str:
    """What the model reads after a call."""
    try:
        if name == "price":
            return str(prices[arguments["item"]])
        if name == "calculate":
            return calculate(arguments["expression"])
        return f"Error: there is no tool {name}"
    except (KeyError, ValueError, SyntaxError, TypeError, ZeroDivisionError, RecursionError) as error:
        return f"Error: {error}"


def shop(client: OpenAI, question: str, prices: dict[str, int], model: str = "gpt-5") -> str | None:
    """The agent: ask, run the tools that the model calls, ask again, until it answers."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(MAX_TURNS):
        response = client.chat.completions.create(model=model, messages=messages, tools=TOOLS)
        message = response.choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message)
        for call in message.tool_calls:
            result = run_tool(call.function.name, json.loads(call.function.arguments), prices)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return None


def solve(task: dict[str, Any], base_url: str, api_key: str) -> str | None:
    """One rollout of a training run: the same agent, with the address and the task that Agent-R1 gives."""
    client = OpenAI(base_url=base_url, api_key=api_key, http_client=HTTP)
    return shop(client, task["prompt"][-1]["content"], task["env_kwargs"]["prices"])


if __name__ == "__main__":
    print(shop(OpenAI(), "What do 3 tea and 2 milk cost?", {"tea": 4, "milk": 6}))
