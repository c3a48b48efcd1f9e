"""Training tasks whose instruction names no order: customers often do not know the number.

    Return #W6067464 via credit_card_4190576: Electric Kettle; Wall Clock;
    -> You do not remember the order. Return via the payment method of the order: Electric Kettle; Wall Clock;

tau-bench's training tasks name every order and payment method, most of its test tasks do not. The number is left out
only where what is left tells which order is meant: one order of the customer has the status and the items.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_r1.registry import load_module, recipe_folder

with recipe_folder(Path(__file__).resolve().parents[1]):
    service = load_module("service")

_STATUS = {
    "cancel_pending_order": service.PENDING,
    "modify_pending_order_items": service.PENDING,
    "return_delivered_order_items": service.DELIVERED,
    "exchange_delivered_order_items": service.DELIVERED,
}
_WORDS = (
    (r"Cancel order #W\d+", "Cancel your pending order"),
    (r"Return #W\d+ via", "Return via"),
    (r"For #W\d+, exchange", "Exchange"),
    (r"For #W\d+, modify", "Modify"),
)


def without_ids(database: Any, task: Mapping[str, Any]) -> dict[str, Any] | None:
    """The task without the number of its order; None where more than one order could be meant, or more is changed."""
    if len(task["actions"]) != 1 or task["actions"][0]["name"] not in _STATUS:
        return None
    action = task["actions"][0]
    if meant_orders(database, task["user_id"], action) != [action["kwargs"]["order_id"]]:
        return None
    instruction = str(task["instruction"])
    for pattern, replacement in _WORDS:
        instruction = re.sub(pattern, replacement, instruction)
    if "#W" in instruction:
        return None
    paid_with = database.orders[action["kwargs"]["order_id"]]["payment_history"][0]["payment_method_id"]
    instruction = instruction.replace(f"via {paid_with}", "via the payment method of the order")
    said = re.sub(
        r"(?<=\. )(Cancel|Return|Exchange|Modify)", r"You do not remember the order. \1", instruction, count=1
    )
    return {**task, "task_id": f"{task['task_id']}-unnamed", "instruction": said}


def meant_orders(database: Any, user_id: str, action: Mapping[str, Any]) -> list[str]:
    """The customer's orders with the status that the action needs and with products of the names of its items."""
    order = database.orders[action["kwargs"]["order_id"]]
    names = {item["item_id"]: item["name"] for item in order["items"]}
    wanted = Counter(names[item] for item in action["kwargs"].get("item_ids", ()))
    return [
        other
        for other in database.users[user_id]["orders"]
        if database.orders[other]["status"] == _STATUS[action["name"]]
        and not wanted - Counter(item["name"] for item in database.orders[other]["items"])
    ]
