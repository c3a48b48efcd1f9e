"""What the shop's staff can do: 7 changes of the database with the checks that the policy asks for.

Each function changes a view or raises `RefusedError`, whose message is for the model; a refused change changes nothing.
The rules are those of tau-bench's retail domain: its policy, the descriptions of its functions and its data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from agent_r1.tools import ToolInputError

from .database import Record, View

REASONS = ("no longer needed", "ordered by mistake")
Reason = Literal["no longer needed", "ordered by mistake"]

PENDING, DELIVERED, CANCELLED = "pending", "delivered", "cancelled"
MODIFIED, EXCHANGE, RETURN = "pending (items modified)", "exchange requested", "return requested"


class RefusedError(ToolInputError):
    """The shop does not do that; the message says why."""


def known_user(view: View, user_id: str) -> Record:
    """A user; refused when there is none."""
    user = view.user(user_id)
    if user is None:
        raise RefusedError(f"there is no user '{user_id:.60}'")
    return user


def known_order(view: View, order_id: str) -> Record:
    """An order; refused when there is none."""
    order = view.order(order_id)
    if order is None:
        hint = "" if order_id.startswith("#") else ". Order ids begin with #"
        raise RefusedError(f"there is no order '{order_id:.60}'{hint}")
    return order


def known_product(view: View, product_id: str) -> Record:
    """A product; refused when there is none."""
    product = view.product(product_id)
    if product is None:
        hint = ". That is the id of an item" if product_id in view.database.product_of_item else ""
        raise RefusedError(f"there is no product '{product_id:.60}'{hint}")
    return product


def cancel(view: View, order_id: str, reason: Reason) -> Record:
    """Cancel a pending order and refund its payments; gift cards get their money at once."""
    _order_with_status(view, order_id, PENDING, "cancelled")
    order = view.change_order(order_id)
    refunds = []
    for payment in order["payment_history"]:
        refunds.append(_transaction("refund", payment["amount"], payment["payment_method_id"]))
        _add_to_gift_card(view, order["user_id"], payment["payment_method_id"], payment["amount"])
    order["payment_history"] += refunds
    order["status"] = CANCELLED
    order["cancel_reason"] = reason
    return order


def change_order_address(view: View, order_id: str, address: Record) -> Record:
    """Send a pending order elsewhere."""
    _order_with_status(view, order_id, PENDING, "modified")
    order = view.change_order(order_id)
    order["address"] = address
    return order


def change_user_address(view: View, user_id: str, address: Record) -> Record:
    """Change the default address of a user."""
    known_user(view, user_id)
    user = view.change_user(user_id)
    user["address"] = address
    return user


def change_payment(view: View, order_id: str, method_id: str) -> Record:
    """Pay a pending order with another method, and refund the first one."""
    order = _order_with_status(view, order_id, PENDING, "modified")
    method = _payment_method(view, order["user_id"], method_id)
    history = order["payment_history"]
    if len(history) != 1 or history[0]["transaction_type"] != "payment":
        raise RefusedError(f"the payment of {order_id} cannot be changed: it has more than one transaction")
    amount, before = history[0]["amount"], history[0]["payment_method_id"]
    if before == method_id:
        raise RefusedError(f"{order_id} is already paid with {method_id}; name another payment method")
    _check_balance(method, amount)
    order = view.change_order(order_id)
    order["payment_history"] += [_transaction("payment", amount, method_id), _transaction("refund", amount, before)]
    _add_to_gift_card(view, order["user_id"], method_id, -amount)
    _add_to_gift_card(view, order["user_id"], before, amount)
    return order


def change_items(
    view: View, order_id: str, item_ids: Sequence[str], new_item_ids: Sequence[str], method_id: str
) -> Record:
    """Replace items of a pending order by others of the same products. After that, the order cannot be changed."""
    order = _order_with_status(view, order_id, PENDING, "modified")
    pairs = _paired(view, order, item_ids, new_item_ids)
    difference = _difference(pairs)
    method = _payment_method(view, order["user_id"], method_id)
    _check_balance(method, difference)
    order = view.change_order(order_id)
    kind = "payment" if difference > 0 else "refund"
    order["payment_history"].append(_transaction(kind, abs(difference), method_id))
    _add_to_gift_card(view, order["user_id"], method_id, -difference)
    replaced: set[int] = set()
    for old, new in pairs:
        place = next(
            number
            for number, item in enumerate(order["items"])
            if number not in replaced and item["item_id"] == old["item_id"]
        )
        replaced.add(place)
        item = order["items"][place]
        item["item_id"], item["price"], item["options"] = new["item_id"], new["price"], dict(new["options"])
    order["status"] = MODIFIED
    return order


def exchange(view: View, order_id: str, item_ids: Sequence[str], new_item_ids: Sequence[str], method_id: str) -> Record:
    """Request the exchange of delivered items for others of the same products."""
    order = _order_with_status(view, order_id, DELIVERED, "exchanged")
    difference = _difference(_paired(view, order, item_ids, new_item_ids))
    method = _payment_method(view, order["user_id"], method_id)
    _check_balance(method, difference)
    order = view.change_order(order_id)
    order["status"] = EXCHANGE
    order["exchange_items"] = sorted(item_ids)
    order["exchange_new_items"] = sorted(new_item_ids)
    order["exchange_payment_method_id"] = method_id
    order["exchange_price_difference"] = difference
    return order


def send_back(view: View, order_id: str, item_ids: Sequence[str], method_id: str) -> Record:
    """Request the return of delivered items."""
    order = _order_with_status(view, order_id, DELIVERED, "returned")
    method = _payment_method(view, order["user_id"], method_id)
    first = order["payment_history"][0]["payment_method_id"]
    if method["source"] != "gift_card" and method_id != first:
        raise RefusedError(f"a refund goes to the order's payment method, {first}, or to a gift card")
    _check_items(order, item_ids)
    order = view.change_order(order_id)
    order["status"] = RETURN
    order["return_items"] = sorted(item_ids)
    order["return_payment_method_id"] = method_id
    return order


def refund_of(order: Record, item_ids: Sequence[str]) -> float:
    """The price of items of an order."""
    prices = {item["item_id"]: item["price"] for item in order["items"]}
    return round(sum(prices[item] for item in item_ids), 2)


def _order_with_status(view: View, order_id: str, status: str, done: str) -> Record:
    order = known_order(view, order_id)
    if order["status"] != status:
        raise RefusedError(f"{order_id} is {order['status']}; only {status} orders can be {done}")
    return order


def _payment_method(view: View, user_id: str, method_id: str) -> Record:
    methods: dict[str, Record] = known_user(view, user_id)["payment_methods"]
    if method_id not in methods:
        known = ", ".join(methods) or "none"
        raise RefusedError(f"the customer has no payment method '{method_id:.60}', but: {known}")
    return methods[method_id]


def _check_items(order: Record, item_ids: Sequence[str]) -> None:
    if not item_ids:
        raise RefusedError("name at least one item")
    owned = Counter(item["item_id"] for item in order["items"])
    missing = Counter(item_ids) - owned
    if missing:
        names = ", ".join(f"'{item:.60}'" for item in list(missing)[:5])
        raise RefusedError(f"{order['order_id']} has no item {names}, or not so many of it")


def _paired(
    view: View, order: Record, item_ids: Sequence[str], new_item_ids: Sequence[str]
) -> list[tuple[Record, Record]]:
    """The items of an order with the variants that replace them."""
    _check_items(order, item_ids)
    if len(item_ids) != len(new_item_ids):
        raise RefusedError(f"{len(item_ids)} items and {len(new_item_ids)} new ones: each item needs one new item")
    items = {item["item_id"]: item for item in order["items"]}
    pairs = []
    for old_id, new_id in zip(item_ids, new_item_ids, strict=True):
        old = items[old_id]
        new = known_product(view, old["product_id"])["variants"].get(new_id)
        if new is None:
            raise RefusedError(
                f"'{new_id:.60}' is not an item of product {old['product_id']} ({old['name']}), as {old_id} is"
            )
        if not new["available"]:
            raise RefusedError(f"item {new_id} is not available")
        pairs.append((old, new))
    return pairs


def _difference(pairs: Sequence[tuple[Record, Record]]) -> float:
    return round(sum(new["price"] - old["price"] for old, new in pairs), 2)


def _check_balance(method: Record, amount: float) -> None:
    if method["source"] == "gift_card" and method["balance"] < amount:
        raise RefusedError(f"{method['id']} has {method['balance']:.2f}, not the {amount:.2f} that is due")


def _add_to_gift_card(view: View, user_id: str, method_id: str, amount: float) -> None:
    """Gift cards get and pay money at once; other methods have no balance here."""
    known = known_user(view, user_id)["payment_methods"].get(method_id)
    if known is not None and known["source"] == "gift_card":
        method = view.change_user(user_id)["payment_methods"][method_id]
        method["balance"] = round(method["balance"] + amount, 2)


def _transaction(kind: str, amount: float, method_id: str) -> dict[str, Any]:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": method_id}
