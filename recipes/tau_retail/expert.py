"""Demonstrations: the gold actions of training tasks as conversations, with the look-ups that find their ids.

The expert finds the user, reads the profile, and for each change reads the order and the products whose items it
replaces; then it makes the change, and at the end it tells the customer what the tools answered. Every call is run in
the environment, and only episodes that score 1 are shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agent_r1.envs import AgentEnv
from agent_r1.types import Action, Task, ToolCall

from .database import Database
from .env import gold_calls
from .tools import WRITING

Call = tuple[str, dict[str, Any]]

_EMAIL = re.compile(r"[\w.+-]+@[\w.-]+\w")


def look_ups(database: Database, task: Task) -> list[Call]:
    """The gold plan with the calls that find what its arguments need, each look-up once."""
    user_id = str(task.extra_info["user_id"])
    plan: list[Call] = [find_user(database, user_id, str(task.env_kwargs["instruction"]))]
    plan.append(("get_user_details", {"user_id": user_id}))
    writes = [(call.name, dict(call.arguments)) for call in gold_calls(task) if call.name in WRITING]
    searched = _searched_orders(database, user_id, writes, task)
    seen: set[str] = set()
    for name, arguments in writes:
        wanted: list[Call] = []
        if "order_id" in arguments:
            orders = searched.pop(arguments["order_id"], [arguments["order_id"]])
            wanted += [("get_order_details", {"order_id": order}) for order in orders]
        replaced = zip(arguments.get("item_ids", ()), arguments.get("new_item_ids", ()), strict=False)
        products = (database.product_of_item.get(old) for old, new in replaced if old != new)
        wanted += [("get_product_details", {"product_id": product}) for product in products if product]
        for call in wanted:
            if repr(call) not in seen:
                seen.add(repr(call))
                plan.append(call)
        plan.append((name, arguments))
    return plan


def _searched_orders(database: Database, user_id: str, writes: Sequence[Call], task: Task) -> dict[str, list[str]]:
    """Where the instruction names no order: the customer's orders up to the one that is meant."""
    orders: list[str] = database.users[user_id]["orders"]
    instruction = str(task.env_kwargs["instruction"])
    meant = {arguments["order_id"] for _, arguments in writes if "order_id" in arguments}
    return {order: orders[: orders.index(order) + 1] for order in meant if order not in instruction and order in orders}


def find_user(database: Database, user_id: str, instruction: str) -> Call:
    """The call that finds the user by what the instruction tells."""
    user = database.users[user_id]
    email = _EMAIL.search(instruction)
    if email is not None and email[0] == user["email"]:
        return "find_user_id_by_email", {"email": email[0]}
    return "find_user_id_by_name_zip", {**user["name"], "zip": user["address"]["zip"]}


async def play(
    env: AgentEnv, task: Task, calls: Sequence[Call]
) -> tuple[bool, list[list[Mapping[str, Any]]], Sequence[Any]]:
    """Make the calls and tell the customer their results: whether that scores 1, the conversations that the context
    policy showed, and the tools' schemas."""
    rows: list[list[Mapping[str, Any]]] = []
    replies: list[str] = []
    try:
        observation: Any = await env.reset(task)
        schemas = observation.tools
        result: Any = None
        for name, arguments in [*calls, ("", {})]:
            if name:
                action = Action(text="", tool_calls=(ToolCall(name=name, arguments=arguments, call_id="call00000"),))
            else:
                text = closing_words(replies)
                action = Action(text=text, content=text)
            shown = [*observation.messages, action.as_message()]
            if rows and shown[: len(rows[-1])] == rows[-1]:
                rows.pop()
            rows.append(shown)
            result = await env.step(action)
            observation = result.observation
            if name in WRITING and observation is not None:
                reply = str(observation.messages[-1]["content"])
                replies.append(f"Done: {name.replace('_', ' ')}." if reply.startswith("{") else reply)
    finally:
        await env.close()
    right = result.done and result.info.get("database_right") == 1.0 and result.info.get("outputs_given") == 1.0
    return bool(right), rows, schemas


def closing_words(replies: Sequence[str]) -> str:
    """The last message: what the tools said about the changes.

    >>> closing_words(["#W1 is cancelled and refunded.", "Error: item 7 is not available"])
    '#W1 is cancelled and refunded. This was not possible: item 7 is not available.'
    """
    told = [
        f"This was not possible: {reply.removeprefix('Error: ').rstrip('.')}." if reply.startswith("Error") else reply
        for reply in replies
    ]
    return " ".join(told) or "There was nothing to change."


async def demonstrations(
    make: Callable[[], AgentEnv], database: Database, tasks: Iterable[Task]
) -> list[tuple[Task, list[dict[str, Any]]]]:
    """The tasks that the expert solves, each with its rows for the warm start."""
    solved = []
    for task in tasks:
        right, rows, schemas = await play(make(), task, look_ups(database, task))
        if right:
            tools = [dict(schema) for schema in schemas]
            solved.append((task, [{"messages": row, "tools": tools} for row in rows]))
    return solved
