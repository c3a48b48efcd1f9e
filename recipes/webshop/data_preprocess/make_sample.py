"""Made-up products for `sample/`: the real ones were scraped from a shop, so none of them comes with the recipe.

    python recipes/webshop/data_preprocess/make_sample.py recipes/webshop/sample/products.jsonl

Names, features and attributes are put together of word lists; instructions are worded as WebShop's are.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_r1.data import write_rows

NUM_PRODUCTS = 72

_TYPES: Mapping[str, Sequence[tuple[str, str, Sequence[str]]]] = {
    "fashion": [
        ("men's shirts", "Clothing \u203a Men \u203a Shirts", ["Shirt", "Tee", "Henley"]),
        ("women's dresses", "Clothing \u203a Women \u203a Dresses", ["Dress", "Sundress", "Gown"]),
        ("sandals", "Clothing \u203a Shoes \u203a Sandals", ["Sandal", "Slide", "Flip Flop"]),
    ],
    "garden": [
        ("desks", "Home \u203a Furniture \u203a Desks", ["Desk", "Writing Table", "Workstation"]),
        ("table lamps", "Home \u203a Lighting \u203a Lamps", ["Lamp", "Table Light", "Lantern"]),
    ],
    "electronics": [
        ("hdmi cables", "Electronics \u203a Cables \u203a HDMI", ["HDMI Cable", "HDMI Cord", "Video Cable"]),
        ("headsets", "Electronics \u203a Audio \u203a Headsets", ["Headset", "Headphones", "Earbuds"]),
    ],
    "beauty": [("hair masks", "Beauty \u203a Hair Care \u203a Masks", ["Hair Mask", "Hair Treatment", "Hair Balm"])],
    "grocery": [("tea", "Grocery \u203a Beverages \u203a Tea", ["Green Tea", "Herbal Tea", "Black Tea"])],
}
_BEFORE = {
    "fashion": ["machine wash", "loose fit", "slip resistant", "light weight"],
    "garden": ["easy assemble", "height adjustable", "space saving", "heavy duty"],
    "electronics": ["high speed", "gold plated", "hands free", "plug play"],
    "beauty": ["sulfate free", "cruelty free", "long lasting"],
    "grocery": ["gluten free", "certified organic", "low sugar"],
}
_WITH = {
    "fashion": ["elastic waist", "rubber sole", "long sleeve", "button closure"],
    "garden": ["wood frame", "metal legs", "steel frame"],
    "electronics": ["noise cancelling", "stainless steel", "carbon fiber"],
    "beauty": ["coconut oil", "tea tree", "argan oil"],
    "grocery": ["natural flavors", "dietary fiber", "whole leaf"],
}
_FOR = {
    "fashion": ["daily wear", "gym workout"],
    "garden": ["living room", "home office"],
    "electronics": ["home theater", "video games"],
    "beauty": ["dry hair", "damaged hair"],
    "grocery": ["gift giving", "cold brew"],
}
_OPTIONS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "fashion": {"size": ["small", "medium", "large", "x-large"], "color": ["navy", "black", "olive", "coral", "white"]},
    "garden": {"color": ["walnut", "espresso", "white", "gray"]},
    "electronics": {"size": ["3 feet", "6 feet", "10 feet"], "color": ["black", "red"]},
    "beauty": {"size": ["4 fl oz", "8 fl oz (pack of 1)", "8 fl oz (pack of 2)"]},
    "grocery": {"flavor name": ["mint", "ginger", "lemon"], "size": ["20 count", "50 count"]},
}
_MAKERS = ["Alder", "Brook", "Cove", "Dune", "Elm", "Fern", "Grove", "Heath", "Isle", "Juniper"]


def made_up_rows(count: int = NUM_PRODUCTS) -> list[dict[str, Any]]:
    """So many products; the same each time."""
    types = [(category, *entry) for category, entries in _TYPES.items() for entry in entries]
    return [_row(number, *types[number % len(types)]) for number in range(count)]


def _row(number: int, category: str, query: str, tree: str, nouns: Sequence[str]) -> dict[str, Any]:
    rng = random.Random(f"made-up product {number}")
    parts = [rng.sample(words[category], rng.choice(counts)) for words, counts in _PLACES]
    before, with_, for_ = parts
    attributes = [*before, *with_, *for_]
    options = {
        name: sorted(rng.sample(values, rng.randint(2, len(values))), key=values.index)
        for name, values in _OPTIONS[category].items()
        if rng.random() < 0.75
    }
    named = [attribute.title() for attribute in attributes if rng.random() < 0.5]
    low = round(rng.uniform(6, 90), 2)
    instruction = " ".join(filter(None, ["Find me", ", ".join(before), query, *_joined(with_, for_)]))
    has_goal = len(attributes) >= 2 and number % 4 != 3
    wish = {
        "instruction": f"i need {' '.join(before)} {query} that are {attributes[0]}.",
        "instruction_attributes": attributes[:1],
        "instruction_options": [values[0] for values in options.values()][:1],
    }
    return {
        "asin": f"M{number:09d}",
        "name": " ".join([rng.choice(_MAKERS), *named, rng.choice(nouns), f"No. {rng.randint(1, 99)}"]),
        "category": category,
        "query": query,
        "product_category": tree,
        "pricing": [low] if rng.random() < 0.7 else [low, round(low * 1.4, 2)],
        "full_description": f"Made for people who look for {query}." if rng.random() < 0.5 else "",
        "small_description": [f"It is {', '.join(attributes)}.", f"Item {number} of a made-up catalogue."],
        "options": options,
        "attributes": attributes,
        "instruction": instruction if has_goal else None,
        "instruction_attributes": attributes if has_goal else None,
        "human_instructions": [wish] if number % 9 == 0 else [],
    }


_PLACES = ((_BEFORE, (1, 1, 2)), (_WITH, (0, 1, 1)), (_FOR, (0, 0, 1)))


def _joined(with_: Sequence[str], for_: Sequence[str]) -> list[str]:
    return [f"{word} {', '.join(words)}" for word, words in (("with", with_), ("for", for_)) if words]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="where the products go")
    parser.add_argument("--count", type=int, default=NUM_PRODUCTS, help="how many")
    chosen = parser.parse_args(arguments)
    write_rows(chosen.file, made_up_rows(chosen.count))


if __name__ == "__main__":
    main()
