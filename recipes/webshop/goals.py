"""Goals: what a customer asks for, with what the score compares. The splits are by product.

A synthetic goal is a product's instruction with one value of each of its options and a price:

    Find me machine wash women's pants with elastic waist with color: navy, and size: large, and price lower than 30.00
    dollars

A product has as many of them as its options have combinations. A human goal is one that a person wrote for a product.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agent_r1.errors import DataError

from .products import Options, Product

NO_LIMIT = 1_000_000.0
"""The price limit of a goal that names none."""
_PRICE_STEPS = tuple(10.0 * number for number in range(1, 100))

HELD_OUT = {"test": 0.30, "validation": 0.14}
"""The share of the products with goals whose goals are held out."""
MOST_PER_PRODUCT = {"train": 12, "validation": 10, "test": 10}
"""Without a limit the products with many options would make up most of a split: one of them alone has 558 goals."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """One goal."""

    goal_id: str
    """The product's id and the number of the goal: `B01ABCDEFG-3`."""
    text: str
    """The instruction, which is all that the model sees of the goal."""
    asin: str
    """The product that it was made of."""
    attributes: tuple[str, ...]
    options: Options
    """The wanted values; the names of human goals' options are numbers."""
    price_upper: float

    def to_json(self) -> dict[str, Any]:
        """What the environment is given."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Any) -> Goal:
        """Read it back. A goal that cannot be used is a DataError that says why."""
        try:
            return cls(
                goal_id=str(given["goal_id"]),
                text=str(given["text"]),
                asin=str(given["asin"]).upper(),
                attributes=tuple(map(str, given["attributes"])),
                options={str(name): str(value) for name, value in dict(given["options"]).items()},
                price_upper=float(given["price_upper"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"env_kwargs.goal must have {', '.join(cls.__dataclass_fields__)}; {error!r} in {given!r:.200}"
            ) from error


def synthetic_goals(product: Product) -> list[Goal]:
    """The goals of a product with an instruction, one per combination of its options."""
    return _goals(product, product.instruction, product.instruction_attributes) if product.instruction else []


def _goals(product: Product, instruction: str, attributes: Sequence[str]) -> list[Goal]:
    price_upper, price_text = price_limit(product)
    names = sorted(product.options)
    goals = []
    for number, values in enumerate(itertools.product(*(product.options[name] for name in names))):
        options = dict(zip(names, values, strict=True))
        wanted = ", and ".join(f"{name}: {value}" for name, value in options.items())
        goals.append(
            Goal(
                goal_id=f"{product.asin}-{number}",
                text=instruction + (f" with {wanted}" if wanted else "") + price_text,
                asin=product.asin,
                attributes=tuple(attributes),
                options=options,
                price_upper=price_upper,
            )
        )
    return goals


def human_goals(product: Product) -> list[Goal]:
    """The goals that people wrote for a product; those without attributes are left out, as in WebShop."""
    price_upper, price_text = price_limit(product)
    return [
        Goal(
            goal_id=f"{product.asin}-human-{number}",
            text=str(given["instruction"]).strip(".") + price_text,
            asin=product.asin,
            attributes=tuple(given["instruction_attributes"]),
            options={str(n): value for n, value in enumerate(given["instruction_options"])},
            price_upper=price_upper,
        )
        for number, given in enumerate(product.human_instructions)
        if given["instruction_attributes"]
    ]


def price_limit(product: Product) -> tuple[float, str]:
    """The limit of a product's goals and the words for it: of the next four tens above the price the higher of two
    that are drawn, by the product's id."""
    above = [step for step in _PRICE_STEPS if step > product.price][:4]
    if len(above) < 2:
        return NO_LIMIT, ""
    limit = max(random.Random(f"limit {product.asin}").sample(above, 2))
    return limit, f", and price lower than {limit:.2f} dollars"


def extra_goals(products: Iterable[Product], *, like: Iterable[Product]) -> list[Goal]:
    """Goals for products without an instruction that have attributes, to train on.

    They are worded as the instructions of the products `like`: an attribute stands before the type ("non slip
    sandals"), after "with" or after "for", where it stands in those; one that is in none stands after "with".
    """
    places = attribute_places(like)
    goals: list[Goal] = []
    for product in products:
        if product.instruction or not product.attributes:
            continue
        known = [attribute for attribute in product.attributes if attribute in places]
        chosen = [*known, *(attribute for attribute in product.attributes if attribute not in places)][:3]
        parts: dict[str, list[str]] = {"before": [], "with": [], "for": []}
        for attribute in chosen:
            parts[places.get(attribute, "with")].append(attribute)
        words = [", ".join(parts["before"]), product.query]
        words += [f"{word} {', '.join(parts[word])}" for word in ("with", "for") if parts[word]]
        goals += _goals(product, " ".join(["Find me", *filter(None, words)]), chosen)
    return goals


def attribute_places(products: Iterable[Product]) -> dict[str, str]:
    """Where the attributes of instructions stand: before the type, after "with" or after "for"."""
    counts: dict[str, Counter[str]] = {}
    for product in products:
        before, _, after = product.instruction.partition(product.query)
        after_with, _, after_for = after.partition(" for ")
        for attribute in product.instruction_attributes:
            texts = {"before": before, "for": after_for, "with": after_with}
            place = next((name for name, text in texts.items() if attribute in text), "with")
            counts.setdefault(attribute, Counter())[place] += 1
    return {attribute: places.most_common(1)[0][0] for attribute, places in counts.items()}


def split_goals(
    products: Sequence[Product], *, extra: bool = True, most: Mapping[str, int] | None = None
) -> dict[str, list[Goal]]:
    """The synthetic goals of each split. No product has goals in two of them; the hash of its id decides.

    `extra` adds goals for products without an instruction to the ones to train on; `most` replaces
    `MOST_PER_PRODUCT`.
    """
    limits = {**MOST_PER_PRODUCT, **(most or {})}
    with_goals = sorted((product for product in products if product.instruction), key=lambda item: _hash(item.asin))
    num_test, num_validation = (max(1, round(share * len(with_goals))) for share in HELD_OUT.values())
    parts = {
        "test": with_goals[:num_test],
        "validation": with_goals[num_test : num_test + num_validation],
        "train": with_goals[num_test + num_validation :],
    }
    if not parts["train"]:
        raise DataError(f"{len(with_goals)} products have goals; three splits need at least 3 of them")
    splits = {
        name: [goal for product in part for goal in _some(synthetic_goals(product), limits[name])]
        for name, part in parts.items()
    }
    if extra:
        by_product: dict[str, list[Goal]] = {}
        for goal in extra_goals(products, like=parts["train"]):
            by_product.setdefault(goal.asin, []).append(goal)
        # Fewer per product than real ones: they are simpler.
        splits["train"] += [goal for goals in by_product.values() for goal in _some(goals, limits["train"] // 3)]
    return splits


def _some(goals: Sequence[Goal], most: int) -> list[Goal]:
    """Up to so many of a product's goals; their hashes decide which."""
    chosen = set(sorted((goal.goal_id for goal in goals), key=_hash)[: max(most, 1)])
    return [goal for goal in goals if goal.goal_id in chosen]


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
