"""Records as the model reads them: short lines (`compact`), or the JSON of tau-bench (`json`).

A compact product is a table, with option names once; ids have ten digits, which are ten tokens for many models:

    Notebook, product 2892623495: item | price | size | cover type
    9421195098 | 32.37 | A6 | soft cover
    7579176349 | 29.28 | A4 | soft cover | not available
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

Record = Mapping[str, Any]
Form = Literal["compact", "json"]

ADDRESS_FIELDS = ("address1", "address2", "city", "state", "country", "zip")


def write_user(user: Record, form: Form) -> str:
    """A user's profile."""
    if form == "json":
        return json.dumps(user)
    name = user["name"]
    methods = ", ".join(_method(method) for method in user["payment_methods"].values())
    return (
        f"{name['first_name']} {name['last_name']}, {user['email']}\naddress: {write_address(user['address'])}\n"
        f"payment methods: {methods or 'none'}\norders: {', '.join(user['orders']) or 'none'}"
    )


def write_order(order: Record, form: Form) -> str:
    """An order."""
    if form == "json":
        return json.dumps(order)
    lines = [f"{order['order_id']}: {order['status']}, user {order['user_id']}"]
    lines.append(f"address: {write_address(order['address'])}")
    lines += [
        f"item {item['item_id']}: {item['name']} (product {item['product_id']}), {item['price']:.2f}, "
        f"{write_options(item['options'])}"
        for item in order["items"]
    ]
    lines += [
        f"{entry['transaction_type']}: {entry['amount']:.2f}, {entry['payment_method_id']}"
        for entry in order["payment_history"]
    ]
    tracking = [number for sent in order.get("fulfillments") or () for number in sent["tracking_id"]]
    if tracking:
        lines.append(f"tracking: {', '.join(tracking)}")
    lines += [
        f"{name.replace('_', ' ')}: {', '.join(value) if isinstance(value, list) else value}"
        for name, value in order.items()
        if name.startswith(("cancel_", "exchange_", "return_"))
    ]
    return "\n".join(lines)


def write_product(product: Record, form: Form) -> str:
    """A product with its items."""
    if form == "json":
        return json.dumps(product)
    variants = list(product["variants"].values())
    names = list(dict.fromkeys(name for variant in variants for name in variant["options"]))
    head = f"{product['name']}, product {product['product_id']}: {' | '.join(['item', 'price', *names])}"
    rows = [
        " | ".join(
            [
                variant["item_id"],
                f"{variant['price']:.2f}",
                *(str(variant["options"].get(name, "-")) for name in names),
                *([] if variant["available"] else ["not available"]),
            ]
        )
        for variant in variants
    ]
    return "\n".join([head, *rows])


def write_products(products: Mapping[str, Record], form: Form) -> str:
    """All products by name."""
    names = {product["name"]: key for key, product in sorted(products.items(), key=lambda pair: pair[1]["name"])}
    return json.dumps(names) if form == "json" else "\n".join(f"{name}: {key}" for name, key in names.items())


def write_address(address: Record) -> str:
    """An address in one line, always in the same order."""
    return ", ".join(str(address.get(name, "")) for name in ADDRESS_FIELDS)


def write_options(options: Record) -> str:
    """Options of an item.

    >>> write_options({"size": "A6", "cover type": "soft cover"})
    'size A6, cover type soft cover'
    """
    return ", ".join(f"{name} {value}" for name, value in options.items())


def _method(method: Record) -> str:
    """A payment method: its id says its kind."""
    if method["source"] == "gift_card":
        return f"{method['id']} (balance {method['balance']:.2f})"
    if method["source"] == "credit_card":
        return f"{method['id']} ({method['brand']}, ends in {method['last_four']})"
    return str(method["id"])
