"""A product of the shop, and the file of products that the data script writes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from agent_r1.data import read_raw, write_rows
from agent_r1.errors import DataError

PRODUCTS_FILE = "products.jsonl"
DEFAULT_PRICE = 100.0
"""The price of a product that has none, as in WebShop."""

Options = Mapping[str, str]
"""One value per option: `{"size": "large", "color": "black"}`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Product:
    """One product. The fields are those of a row of `products.jsonl`."""

    asin: str
    """Its id."""
    name: str
    """The title."""
    category: str
    """beauty, electronics, fashion, garden or grocery."""
    query: str
    """The words by which it was found when the shop was collected; the type that instructions name."""
    product_category: str
    """Its place in the shop's tree, from the top; the parts are separated by the character U+203A."""
    pricing: tuple[float, ...]
    """One price, or the lowest and the highest; empty when it is not known."""
    full_description: str
    small_description: tuple[str, ...]
    """The features."""
    options: Mapping[str, tuple[str, ...]]
    """The values of each option, in the order of the page."""
    attributes: tuple[str, ...]
    """What the score compares; no page shows them."""
    instruction: str = ""
    """The beginning of its synthetic goals; empty: it has none."""
    instruction_attributes: tuple[str, ...] = ()
    """The attributes that the instruction asks for."""
    human_instructions: tuple[Mapping[str, Any], ...] = ()
    """Goals that people wrote: `instruction`, `instruction_attributes`, `instruction_options`."""
    reviews: tuple[str, ...] = ()
    rating: str = "N.A."

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Product:
        """The product of a row; what is missing or null is empty.

        >>> Product.from_row({"asin": "A", "name": "n", "query": "q", "product_category": "c", "pricing": [3.5]}).price
        3.5
        """
        missing = [column for column in ("asin", "query") if not row.get(column)]
        if missing:
            raise DataError(f"a product needs {', '.join(missing)}; found: {', '.join(sorted(row))}")
        options = row.get("options") or {}
        return cls(
            asin=str(row["asin"]).upper(),
            name=_plain(row.get("name") or ""),
            category=row.get("category") or "",
            query=row["query"].strip().lower(),
            product_category=row.get("product_category") or "",
            pricing=tuple(float(price) for price in row.get("pricing") or ())[:2],
            full_description=row.get("full_description") or "",
            small_description=tuple(row.get("small_description") or ()),
            options={
                _plain(name): tuple(_plain(value).lower() for value in values)
                for name, values in options.items()
                if values
            },
            attributes=tuple(row.get("attributes") or ()),
            instruction=row.get("instruction") or "",
            instruction_attributes=tuple(row.get("instruction_attributes") or ()),
            human_instructions=tuple(row.get("human_instructions") or ()),
            reviews=tuple(row.get("reviews") or ()),
            rating=str(row.get("rating") or "N.A."),
        )

    def to_row(self) -> dict[str, Any]:
        """The row of `products.jsonl`."""
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in self._fields().items()}

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @cached_property
    def price(self) -> float:
        """What it costs. WebShop picks a price between the lowest and the highest at random; here the id decides."""
        if not self.pricing:
            return DEFAULT_PRICE
        return self.pricing[0] if len(self.pricing) == 1 else random.Random(self.asin).uniform(*self.pricing)

    @property
    def price_tag(self) -> str:
        """What the pages show: `$34.0`, or `$19.99 to $27.99`."""
        return " to ".join(f"${price}" for price in self.pricing or (DEFAULT_PRICE,))

    @cached_property
    def option_names(self) -> dict[str, str]:
        """The option of each value. A value that two options have belongs to the later one, as on WebShop's pages."""
        return {value: name for name, values in self.options.items() for value in values}

    @cached_property
    def searchable(self) -> str:
        """What the search engine reads: title, description, first feature, options."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.name, self.full_description, *self.small_description[:1], options]).lower()


def _plain(text: str) -> str:
    """A text with single spaces: what a button says must be possible to write."""
    return " ".join(text.split())


def read_products(file: Path) -> list[Product]:
    """The products of a file of rows."""
    products = [Product.from_row(row) for row in read_raw([file])]
    if not products:
        raise DataError(f"{file} has no products")
    return products


def write_products(file: Path, products: Iterable[Product]) -> None:
    """Write products as rows."""
    write_rows(file, (product.to_row() for product in products))
