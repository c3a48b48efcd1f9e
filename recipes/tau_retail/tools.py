"""The 16 functions of tau-bench's retail domain, with descriptions that cost few tokens.

Nine read, seven change the database. `transfer_to_human_agents` ends the episode. A refusal is an error that the model
reads; it changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent_r1.errors import ConfigError
from agent_r1.tools import FunctionTool, ToolContext
from agent_r1.tools.builtin.calculator import evaluate

from . import service, texts
from .database import View
from .service import Reason, RefusedError

STATE = "retail"
TRANSFER = "transfer_to_human_agents"


@dataclass(kw_only=True)
class Desk:
    """What the tools of an episode share."""

    view: View
    form: texts.Form = "compact"
    writes: list[str] = field(default_factory=list)
    """The changes that were made, by the names of their tools."""
    num_refused: int = 0
    """Changes that were refused."""
    transferred: bool = False

    def change(self, tool: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Make a change and note it."""
        try:
            changed = function(self.view, *arguments)
        except RefusedError:
            self.num_refused += 1
            raise
        self.writes.append(tool)
        return changed


def desk_of(context: ToolContext) -> Desk:
    """The state of the episode."""
    desk = context.state.get(STATE)
    if not isinstance(desk, Desk):
        raise ConfigError("the tools of tau_retail run in its environment: env.name=tau_retail")
    return desk


# Reading


async def find_user_id_by_email(email: str, context: ToolContext) -> str:
    """The user id of an e-mail address."""
    found = desk_of(context).view.database.user_of_email.get(email.strip().lower())
    if found is None:
        raise RefusedError(f"no user has the e-mail address '{email:.80}'")
    return found


async def find_user_id_by_name_zip(first_name: str, last_name: str, zip: str, context: ToolContext) -> str:
    """The user id of a name and zip code, where the e-mail address is not known."""
    found = desk_of(context).view.find_user(first_name.strip(), last_name.strip(), zip.strip())
    if found is None:
        raise RefusedError(f"no user is called {first_name:.40} {last_name:.40} and has the zip code {zip:.20}")
    return found


async def get_user_details(user_id: str, context: ToolContext) -> str:
    """A user's address, payment methods and orders."""
    desk = desk_of(context)
    return texts.write_user(service.known_user(desk.view, user_id), desk.form)


async def get_order_details(order_id: str, context: ToolContext) -> str:
    """An order's status, items and payments. Order ids begin with #."""
    desk = desk_of(context)
    return texts.write_order(service.known_order(desk.view, order_id), desk.form)


async def get_product_details(product_id: str, context: ToolContext) -> str:
    """The items of a product, with prices and options."""
    desk = desk_of(context)
    return texts.write_product(service.known_product(desk.view, product_id), desk.form)


async def list_all_product_types(context: ToolContext) -> str:
    """Names and ids of all products."""
    desk = desk_of(context)
    return texts.write_products(desk.view.database.products, desk.form)


async def calculate(expression: str) -> str:
    """Work out numbers with + - * / and parentheses."""
    if re.fullmatch(r"[0-9+\-*/(). ]+", expression) is None:
        raise RefusedError("an expression has numbers, + - * / and parentheses only")
    return f"{round(evaluate(expression), 2):.2f}"


async def think(thought: str) -> str:
    """Note a thought. It changes nothing."""
    return "noted"


async def transfer_to_human_agents(summary: str, context: ToolContext) -> str:
    """End the conversation: a person takes over. Only when no tool can help."""
    desk_of(context).transferred = True
    return "transferred"


# Changing


async def cancel_pending_order(order_id: str, reason: Reason, context: ToolContext) -> str:
    """Cancel a pending order."""
    desk = desk_of(context)
    order = desk.change("cancel_pending_order", service.cancel, order_id, reason)
    return _reply(desk, order, f"{order_id} is cancelled and refunded.")


async def modify_pending_order_address(
    order_id: str,
    address1: str,
    address2: str,
    city: str,
    state: str,
    country: str,
    zip: str,
    context: ToolContext,
) -> str:
    """Change the address of a pending order."""
    desk = desk_of(context)
    address = _address(address1, address2, city, state, country, zip)
    order = desk.change("modify_pending_order_address", service.change_order_address, order_id, address)
    return _reply(desk, order, f"{order_id} goes to {texts.write_address(address)}.")


async def modify_pending_order_payment(order_id: str, payment_method_id: str, context: ToolContext) -> str:
    """Change the payment method of a pending order."""
    desk = desk_of(context)
    order = desk.change("modify_pending_order_payment", service.change_payment, order_id, payment_method_id)
    return _reply(desk, order, f"{order_id} is paid with {payment_method_id}.")


async def modify_pending_order_items(
    order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str, context: ToolContext
) -> str:
    """Replace items of a pending order, once per order: all items in one call."""
    desk = desk_of(context)
    order = desk.change(
        "modify_pending_order_items", service.change_items, order_id, item_ids, new_item_ids, payment_method_id
    )
    last = order["payment_history"][-1]
    return _reply(desk, order, f"The items of {order_id} are changed; {last['transaction_type']} {last['amount']:.2f}.")


async def modify_user_address(
    user_id: str,
    address1: str,
    address2: str,
    city: str,
    state: str,
    country: str,
    zip: str,
    context: ToolContext,
) -> str:
    """Change a user's default address."""
    desk = desk_of(context)
    address = _address(address1, address2, city, state, country, zip)
    user = desk.change("modify_user_address", service.change_user_address, user_id, address)
    if desk.form == "json":
        return texts.write_user(user, "json")
    return f"The default address is {texts.write_address(address)}."


async def return_delivered_order_items(
    order_id: str, item_ids: list[str], payment_method_id: str, context: ToolContext
) -> str:
    """Return items of a delivered order, once per order: all items in one call."""
    desk = desk_of(context)
    order = desk.change("return_delivered_order_items", service.send_back, order_id, item_ids, payment_method_id)
    refund = service.refund_of(order, item_ids)
    return _reply(desk, order, f"The return of {order_id} is requested; refund {refund:.2f}.")


async def exchange_delivered_order_items(
    order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str, context: ToolContext
) -> str:
    """Exchange items of a delivered order, once per order: all items in one call."""
    desk = desk_of(context)
    order = desk.change(
        "exchange_delivered_order_items", service.exchange, order_id, item_ids, new_item_ids, payment_method_id
    )
    difference = order["exchange_price_difference"]
    return _reply(desk, order, f"The exchange of {order_id} is requested; price difference {difference:.2f}.")


def _reply(desk: Desk, order: Any, text: str) -> str:
    return texts.write_order(order, "json") if desk.form == "json" else text


def _address(address1: str, address2: str, city: str, state: str, country: str, zip_code: str) -> dict[str, str]:
    values = (address1, address2, city, state, country, zip_code)
    return dict(zip(texts.ADDRESS_FIELDS, values, strict=True))


READS = (
    *(find_user_id_by_email, find_user_id_by_name_zip, get_user_details, get_order_details, get_product_details),
    *(list_all_product_types, calculate, think, transfer_to_human_agents),
)
WRITES = (
    *(cancel_pending_order, modify_pending_order_address, modify_pending_order_payment, modify_pending_order_items),
    *(modify_user_address, return_delivered_order_items, exchange_delivered_order_items),
)
TOOLS = tuple(FunctionTool(function) for function in (*READS, *WRITES))
WRITING = frozenset(function.__name__ for function in WRITES)
