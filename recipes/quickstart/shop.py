"""The quickstart's world: baskets, hidden prices, and a shopper who shows how it is done, carelessly.

A task asks what a basket costs. Prices are drawn at random for every task and only the `price` tool knows them, and the
sum is left to the `calculate` tool, so an answer takes several turns and both tools.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agent_r1.tools import BaseTool, calculate

from .tools import price

ITEMS = ("apple", "pear", "plum", "bread", "milk", "cheese", "tea", "rice", "egg", "fish", "salt", "honey")

SLIPS = {"none": 0.2, "forgets an item": 0.65, "forgets a quantity": 0.05, "guesses": 0.1}
"""How often the shopper does what on a basket of two kinds: a model that imitates him faithfully fails most of them."""


@dataclass(frozen=True)
class Basket:
    """What to buy, and what each thing costs in this task's shop."""

    quantities: dict[str, int]
    prices: dict[str, int]

    @property
    def total(self) -> int:
        """What the basket costs."""
        return sum(count * self.prices[item] for item, count in self.quantities.items())

    @property
    def question(self) -> str:
        """The user's message."""
        wanted = " and ".join(f"{count} {item}" for item, count in self.quantities.items())
        return f"What do {wanted} cost?"


def draw_basket(rng: random.Random) -> Basket:
    """A random basket of one kind (three in ten) or two. Totals stay below 100."""
    items = rng.sample(ITEMS, 1 if rng.random() < 0.3 else 2)
    return Basket(
        quantities={item: rng.randint(2, 7) for item in items},
        prices={item: rng.randint(2, 7) for item in ITEMS},
    )


def task_row(basket: Basket) -> dict[str, Any]:
    """The basket as a dataset row. Its prices go to the environment, its total only to the reward."""
    return {
        "prompt": [{"role": "user", "content": basket.question}],
        "data_source": f"{len(basket.quantities)}_kind" + "s" * (len(basket.quantities) > 1),
        "reward_model": {"style": "rule", "ground_truth": str(basket.total)},
        "env_kwargs": {"prices": basket.prices, "wanted": sorted(basket.quantities)},
    }


def demonstration(basket: Basket, rng: random.Random) -> dict[str, Any]:
    """The careless shopper's conversation about a basket, as a row for the warm start.

    A basket of one kind he always gets right. Of two kinds he often forgets one, or a quantity, or guesses the sum.
    """
    slip = "none"
    if len(basket.quantities) > 1:
        slip = rng.choices(list(SLIPS), weights=list(SLIPS.values()))[0]
    terms = [f"{count}*{basket.prices[item]}" for item, count in basket.quantities.items()]
    if slip == "forgets a quantity":
        terms[1] = terms[1].split("*")[1]
    elif slip == "forgets an item":
        terms = terms[:1]
    messages: list[dict[str, Any]] = [{"role": "user", "content": basket.question}]
    messages.append(_calls("price", [{"item": item} for item in basket.quantities]))
    messages += [{"role": "tool", "content": str(basket.prices[item])} for item in basket.quantities]
    answer = basket.total + rng.randint(-9, 9)
    if slip != "guesses":
        expression = "+".join(terms)
        answer = sum(int(count) * int(rest or 1) for count, _, rest in (term.partition("*") for term in terms))
        messages.append(_calls("calculate", [{"expression": expression}]))
        messages.append({"role": "tool", "content": str(answer)})
    messages.append({"role": "assistant", "content": str(answer)})
    return {"messages": messages, "tools": [dict(tool.tool_schema) for tool in shop_tools()]}


def shop_tools() -> list[BaseTool]:
    """The tools of every task."""
    return [price, calculate]


def _calls(name: str, arguments: list[dict[str, Any]]) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": name, "arguments": entry}} for entry in arguments]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def json_lines(rows: Iterator[dict[str, Any]]) -> str:
    """Rows as JSONL text."""
    return "".join(json.dumps(row) + "\n" for row in rows)
