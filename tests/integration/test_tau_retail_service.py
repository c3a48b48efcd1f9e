"""What the shop of tau_retail does and refuses, on a database made by hand, and the views that episodes have of it."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest

from agent_r1.errors import ConfigError, DataError
from agent_r1.registry import load_module, recipe_folder
from agent_r1.tools import ToolContext, ToolRunner
from agent_r1.types import Task, ToolCall
from tests.helpers.recipe_runs import ROOT

RECIPE = ROOT / "recipes" / "tau_retail"

with recipe_folder(RECIPE):
    database, service, tools = load_module("database"), load_module("service"), load_module("tools")
    outputs, texts = load_module("outputs"), load_module("texts")

HOME = {"address1": "1 Elm Way", "address2": "", "city": "Reno", "state": "NV", "country": "USA", "zip": "89501"}


def variant(number: int, price: float, colour: str, *, available: bool = True) -> dict[str, Any]:
    return {"item_id": str(number), "price": price, "options": {"color": colour}, "available": available}


def item(number: int, product: str, price: float, colour: str) -> dict[str, Any]:
    name = {"10": "Mug", "20": "Lamp"}[product]
    return {
        "name": name,
        "product_id": product,
        "item_id": str(number),
        "price": price,
        "options": {"color": colour},
    }


def order(number: int, status: str, items: list[dict[str, Any]], amount: float, method: str) -> dict[str, Any]:
    paid = {"transaction_type": "payment", "amount": amount, "payment_method_id": method}
    return {
        "order_id": f"#W{number}",
        "user_id": "ann_lee_1",
        "address": dict(HOME),
        "items": items,
        "fulfillments": [],
        "status": status,
        "payment_history": [paid],
    }


def made_database() -> Any:
    user = {
        "name": {"first_name": "Ann", "last_name": "Lee"},
        "address": dict(HOME),
        "email": "ann.lee@example.com",
        "payment_methods": {
            "gift_card_1": {"source": "gift_card", "balance": 20, "id": "gift_card_1"},
            "paypal_1": {"source": "paypal", "id": "paypal_1"},
            "credit_card_1": {"source": "credit_card", "brand": "visa", "last_four": "1234", "id": "credit_card_1"},
        },
        "orders": ["#W1", "#W2", "#W3", "#W4"],
    }
    mugs = [variant(101, 5.5, "red"), variant(102, 7.25, "blue"), variant(103, 60.0, "gold")]
    mugs.append(variant(104, 6.0, "grey", available=False))
    products = {
        "10": {"name": "Mug", "product_id": "10", "variants": {one["item_id"]: one for one in mugs}},
        "20": {"name": "Lamp", "product_id": "20", "variants": {"201": variant(201, 30.0, "black")}},
    }
    reds = [item(101, "10", 5.5, "red"), item(101, "10", 5.5, "red"), item(201, "20", 30.0, "black")]
    orders = [
        order(1, "pending", reds, 41.0, "paypal_1"),
        order(2, "delivered", copy.deepcopy(reds), 41.0, "paypal_1"),
        order(3, "processed", [item(201, "20", 30.0, "black")], 30.0, "gift_card_1"),
        order(4, "pending", [item(101, "10", 5.5, "red")], 5.5, "gift_card_1"),
    ]
    return database.Database.from_rows(
        {
            "users": [{"key": "ann_lee_1", "value": user}],
            "orders": [{"key": one["order_id"], "value": one} for one in orders],
            "products": [{"key": key, "value": value} for key, value in products.items()],
        }
    )


BASE = made_database()


@pytest.fixture
def view() -> Any:
    return database.View(database=BASE)


def card(view: Any) -> float:
    return float(view.user("ann_lee_1")["payment_methods"]["gift_card_1"]["balance"])


# Changes


def test_cancelling_refunds_every_payment_and_a_gift_card_at_once(view: Any) -> None:
    service.cancel(view, "#W4", "no longer needed")
    changed = view.order("#W4")
    assert (changed["status"], changed["cancel_reason"]) == ("cancelled", "no longer needed")
    assert changed["payment_history"][1:] == [
        {"transaction_type": "refund", "amount": 5.5, "payment_method_id": "gift_card_1"}
    ]
    assert card(view) == 25.5
    service.cancel(view, "#W1", "ordered by mistake")
    assert card(view) == 25.5


def test_items_of_a_pending_order_change_once_and_the_difference_is_paid(view: Any) -> None:
    service.change_items(view, "#W1", ["101", "101"], ["102", "101"], "gift_card_1")
    changed = view.order("#W1")
    assert [one["item_id"] for one in changed["items"]] == ["102", "101", "201"]
    assert (changed["items"][0]["price"], changed["items"][0]["options"]) == (7.25, {"color": "blue"})
    assert changed["payment_history"][-1] == {
        "transaction_type": "payment",
        "amount": 1.75,
        "payment_method_id": "gift_card_1",
    }
    assert card(view) == 18.25
    for again in (
        lambda: service.change_items(view, "#W1", ["201"], ["201"], "paypal_1"),
        lambda: service.cancel(view, "#W1", "no longer needed"),
        lambda: service.change_order_address(view, "#W1", HOME),
    ):
        with pytest.raises(service.RefusedError, match=r"#W1 is pending \(items modified\); only pending orders"):
            again()


def test_a_payment_method_is_replaced_and_the_old_one_refunded(view: Any) -> None:
    service.change_payment(view, "#W4", "paypal_1")
    assert [(one["transaction_type"], one["payment_method_id"]) for one in view.order("#W4")["payment_history"]] == [
        ("payment", "gift_card_1"),
        ("payment", "paypal_1"),
        ("refund", "gift_card_1"),
    ]
    assert card(view) == 25.5
    with pytest.raises(service.RefusedError, match="more than one transaction"):
        service.change_payment(view, "#W4", "credit_card_1")


def test_an_exchange_and_a_return_are_requested_and_then_nothing_more(view: Any) -> None:
    service.exchange(view, "#W2", ["101", "201"], ["102", "201"], "credit_card_1")
    changed = view.order("#W2")
    assert changed["status"] == "exchange requested"
    assert (changed["exchange_items"], changed["exchange_new_items"]) == (["101", "201"], ["102", "201"])
    assert (changed["exchange_price_difference"], changed["exchange_payment_method_id"]) == (1.75, "credit_card_1")
    with pytest.raises(service.RefusedError, match="only delivered orders can be returned"):
        service.send_back(view, "#W2", ["101"], "paypal_1")
    other = database.View(database=BASE)
    returned = service.send_back(other, "#W2", ["201", "101"], "gift_card_1")
    assert (returned["status"], returned["return_items"]) == ("return requested", ["101", "201"])
    assert service.refund_of(returned, ["201", "101"]) == 35.5


WRONG: list[tuple[str, tuple[Any, ...], str]] = [
    ("cancel", ("#W9", "no longer needed"), "there is no order '#W9'"),
    ("cancel", ("W1", "no longer needed"), "Order ids begin with #"),
    ("cancel", ("#W3", "no longer needed"), "#W3 is processed; only pending orders can be cancelled"),
    ("change_payment", ("#W1", "paypal_1"), "already paid with paypal_1"),
    ("change_payment", ("#W1", "paypal_2"), "no payment method 'paypal_2', but: gift_card_1, paypal_1, credit_card_1"),
    ("change_payment", ("#W1", "gift_card_1"), r"gift_card_1 has 20\.00, not the 41\.00 that is due"),
    ("change_items", ("#W1", ["101"], ["103"], "gift_card_1"), r"has 20\.00, not the 54\.50 that is due"),
    ("change_items", ("#W1", ["101"], ["201"], "paypal_1"), r"'201' is not an item of product 10 \(Mug\), as 101 is"),
    ("change_items", ("#W1", ["101"], ["104"], "paypal_1"), "item 104 is not available"),
    ("change_items", ("#W1", ["101"], ["102", "102"], "paypal_1"), "1 items and 2 new ones"),
    ("change_items", ("#W1", ["101"] * 3, ["102"] * 3, "paypal_1"), "has no item '101', or not so many of it"),
    ("change_items", ("#W1", [], [], "paypal_1"), "name at least one item"),
    ("exchange", ("#W1", ["101"], ["102"], "paypal_1"), "#W1 is pending; only delivered orders can be exchanged"),
    ("exchange", ("#W2", ["999"], ["102"], "paypal_1"), "has no item '999'"),
    ("send_back", ("#W2", ["101"], "credit_card_1"), "a refund goes to the order's payment method, paypal_1"),
    ("send_back", ("#W4", ["101"], "paypal_1"), "only delivered orders can be returned"),
    ("change_user_address", ("bob_1", HOME), "there is no user 'bob_1'"),
]


@pytest.mark.parametrize(("function", "arguments", "message"), WRONG)
def test_what_the_policy_forbids_is_refused_and_changes_nothing(
    view: Any, function: str, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(service.RefusedError, match=message):
        getattr(service, function)(view, *arguments)
    assert view.changes() == {"users": {}, "orders": {}}


# Views


def test_views_share_the_database_and_see_only_their_own_changes() -> None:
    before = copy.deepcopy((BASE.users, BASE.orders))
    views = [database.View(database=BASE) for _ in range(3)]
    service.cancel(views[0], "#W4", "no longer needed")
    service.change_user_address(views[1], "ann_lee_1", {**HOME, "zip": "10001"})
    assert [view.order("#W4")["status"] for view in views] == ["cancelled", "pending", "pending"]
    assert (BASE.users, BASE.orders) == before
    assert views[2].order("#W4") is BASE.orders["#W4"]
    assert (list(views[0].changed_orders), list(views[0].changed_users)) == (["#W4"], ["ann_lee_1"])
    assert views[1].find_user("ann", "LEE", "10001") == "ann_lee_1"
    assert views[1].find_user("Ann", "Lee", "89501") is None
    assert views[2].find_user("Ann", "Lee", "89501") == "ann_lee_1"


def test_equal_databases_have_equal_hashes_however_they_were_reached() -> None:
    def digest(*changes: Any) -> str:
        view = database.View(database=BASE)
        for function, *arguments in changes:
            function(view, *arguments)
        return str(view.digest())

    moved = {**HOME, "zip": "10001"}
    cancel = (service.cancel, "#W1", "no longer needed")
    move = (service.change_user_address, "ann_lee_1", moved)
    back = (service.change_user_address, "ann_lee_1", HOME)
    assert digest(cancel, move) == digest(move, cancel)
    assert digest(cancel, move, back) == digest(cancel)
    assert digest(move, back) == digest()
    other = (service.cancel, "#W1", "ordered by mistake")
    assert len({digest(), digest(cancel), digest(other), digest(move), digest(cancel, move)}) == 5


def test_rows_that_cannot_be_used_are_named_together(tmp_path: Any) -> None:
    rows: dict[str, list[dict[str, Any]]] = {
        "users": [{"key": "a", "value": {"name": {}}}, {"key": 3}],
        "orders": [{"key": "#W1", "value": BASE.orders["#W1"]}],
        "products": [],
    }
    with pytest.raises(DataError, match=r"(?s)3 records .*a lacks address, email.*found key\n.*no user ann_lee_1"):
        database.Database.from_rows(rows)
    with pytest.raises(ConfigError, match=r"has no users\.jsonl, orders\.jsonl, products\.jsonl\. Make the data"):
        database.open_database(str(tmp_path))


# Tools


def run_tool(name: str, form: str = "compact", view: Any = None, **arguments: Any) -> Any:
    desk = tools.Desk(view=view or database.View(database=BASE), form=form)
    context = ToolContext(task=Task(task_id="t", prompt=()), state={tools.STATE: desk})
    by_name = {tool.name: tool for tool in tools.TOOLS}

    async def call() -> Any:
        async with ToolRunner() as runner:
            return await runner.call(by_name, ToolCall(name=name, arguments=arguments), context)

    return asyncio.run(call())


def test_there_are_the_functions_of_tau_bench_and_all_their_parameters() -> None:
    assert len(tools.TOOLS) == 16
    schemas = {tool.name: tool.tool_schema["function"]["parameters"] for tool in tools.TOOLS}
    items = ["order_id", "item_ids", "new_item_ids", "payment_method_id"]
    assert list(schemas["exchange_delivered_order_items"]["properties"]) == items
    assert schemas["cancel_pending_order"]["properties"]["reason"]["enum"] == list(service.REASONS)
    address = {"address1", "address2", "city", "state", "country", "zip"}
    assert set(schemas["modify_user_address"]["required"]) == {"user_id"} | address


@pytest.mark.parametrize(
    ("name", "arguments", "shown"),
    [
        ("find_user_id_by_email", {"email": "Ann.Lee@example.com"}, "ann_lee_1"),
        ("find_user_id_by_name_zip", {"first_name": "ann", "last_name": "lee", "zip": "89501"}, "ann_lee_1"),
        ("find_user_id_by_email", {"email": "x@example.com"}, "Error: no user has the e-mail address 'x@example.com'"),
        (
            "get_user_details",
            {"user_id": "ann_lee_1"},
            "gift_card_1 (balance 20.00), paypal_1, credit_card_1 (visa, ends",
        ),
        ("get_order_details", {"order_id": "#W1"}, "item 201: Lamp (product 20), 30.00, color black"),
        ("get_product_details", {"product_id": "10"}, "Mug, product 10: item | price | color\n101 | 5.50 | red"),
        ("get_product_details", {"product_id": "10"}, "104 | 6.00 | grey | not available"),
        ("get_product_details", {"product_id": "101"}, "Error: there is no product '101'. That is the id of an item"),
        ("list_all_product_types", {}, "Lamp: 20\nMug: 10"),
        ("calculate", {"expression": "(5.5 + 7.25) * 2"}, "25.50"),
        ("calculate", {"expression": "9**9**9"}, "Error: "),
        ("calculate", {"expression": "__import__('os')"}, "Error: an expression has numbers"),
        ("think", {"thought": "hm"}, "noted"),
        ("cancel_pending_order", {"order_id": "#W1", "reason": "because"}, "Error: "),
        ("cancel_pending_order", {"order_id": "#W1"}, "Error: "),
        ("return_delivered_order_items", {"order_id": "#W2", "item_ids": "101", "payment_method_id": "p"}, "Error: "),
    ],
)
def test_tools_answer_in_short_lines_and_explain_what_is_wrong(
    name: str, arguments: dict[str, Any], shown: str
) -> None:
    outcome = run_tool(name, **arguments)
    assert shown in outcome.response.text
    assert (outcome.status == "ok") == (not shown.startswith("Error"))


def test_records_can_be_shown_as_json() -> None:
    assert json.loads(run_tool("get_order_details", "json", order_id="#W1").response.text) == BASE.orders["#W1"]
    assert json.loads(run_tool("list_all_product_types", "json").response.text) == {"Mug": "10", "Lamp": "20"}
    done = json.loads(run_tool("cancel_pending_order", "json", order_id="#W1", reason="no longer needed").response.text)
    assert done["status"] == "cancelled"


# Outputs


@pytest.mark.parametrize(
    ("wanted", "said", "given"),
    [
        ("10", "There are 10 of them.", True),
        ("10", "There are 2103 of them.", False),
        ("10", "It costs 10.5.", False),
        ("180.1", "That is $180.10.", True),
        ("1497.65", "You paid $1,497.65!", True),
        ("943 Maple Drive", "It goes to 943 maple drive, Suite 356", True),
        ("IL", "I will, Illinois", False),
        ("20 hours", "It runs for 20 hours.", True),
        ("8276.23", "", False),
    ],
)
def test_outputs_are_compared_as_numbers_and_words(wanted: str, said: str, given: bool) -> None:
    assert (outputs.missing_outputs([wanted], ["Hello", said]) == []) == given
