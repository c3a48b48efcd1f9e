"""The pages of the shop: where each button leads, and what a page says.

A page is a value: the same search, page number, product and chosen options are the same page. So a click is a look-up,
an episode keeps nothing but its page, and the page is the state that algorithms may compare (`Page.anchor`).

| page | buttons |
|---|---|
| search | none; every page takes `search[words]` |
| results | `back to search`, `< prev`, `next >`, the ids of up to ten products |
| item | `back to search`, `< prev` (the results), values of options, `description`, `features`, `reviews`, `buy now` |
| sub-page | `back to search`, `< prev` (the item) |
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from agent_r1.tools.builtin.search import shorten

from .products import Product
from .shop import PER_PAGE, Shop

BACK, PREV, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
SUB_PAGES = ("description", "features", "reviews")
FIXED = (BACK, PREV, NEXT, *SUB_PAGES, BUY)
"""The buttons that are not products or values of options."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page; without a query it is the search page."""

    query: str = ""
    """What was searched for."""
    number: int = 1
    """Which page of the results, from 1."""
    asin: str = ""
    """The product of an item page."""
    options: tuple[tuple[str, str], ...] = ()
    """The chosen options, by name."""
    sub_page: str = ""
    """description, features or reviews."""
    bought: bool = False
    """The end: the product was bought."""

    @property
    def anchor(self) -> str:
        """The page as a text: equal pages, and no others, have equal anchors."""
        return json.dumps([self.query, self.number, self.asin, self.options, self.sub_page, self.bought])


def search(words: str) -> Page:
    """The first page of results."""
    return Page(query=" ".join(words.lower().split()))


def buttons(shop: Shop, page: Page) -> list[str]:
    """The buttons of a page, in lower case and in the order of the page."""
    if not page.query:
        return []
    if not page.asin:
        found = shop.search(page.query)
        turns = {PREV: page.number > 1, NEXT: page.number < _num_pages(len(found))}
        return [BACK, *(name for name, there in turns.items() if there), *map(str.lower, _on_page(found, page))]
    if page.sub_page:
        return [BACK, PREV]
    return [BACK, PREV, *shop.product(page.asin).option_names, *SUB_PAGES, BUY]


def follow(shop: Shop, page: Page, button: str) -> Page | None:
    """The page that a button leads to; None when the page has no such button. Letters of either case will do."""
    button = button.lower()
    if not page.query:
        return None
    if button == BACK:
        return Page()
    if not page.asin:
        return _from_results(shop, page, button)
    if page.sub_page:
        return replace(page, sub_page="") if button == PREV else None
    return _from_item(shop, page, button)


def _from_results(shop: Shop, page: Page, button: str) -> Page | None:
    found = shop.search(page.query)
    if button in (PREV, NEXT):
        number = page.number + (1 if button == NEXT else -1)
        return replace(page, number=number) if 0 < number <= _num_pages(len(found)) else None
    asin = button.upper()
    return replace(page, asin=asin) if asin in _on_page(found, page) else None


def _from_item(shop: Shop, page: Page, button: str) -> Page | None:
    if button == PREV:
        return Page(query=page.query, number=page.number)
    if button == BUY:
        return replace(page, bought=True)
    if button in SUB_PAGES:
        return replace(page, sub_page=button)
    name = shop.product(page.asin).option_names.get(button)
    return None if name is None else replace(page, options=_with_option(page, name, button))


def _with_option(page: Page, name: str, value: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({**dict(page.options), name: value}.items()))


def _num_pages(num_found: int) -> int:
    return -(-num_found // PER_PAGE)


def _on_page(found: tuple[str, ...], page: Page) -> tuple[str, ...]:
    return found[(page.number - 1) * PER_PAGE : page.number * PER_PAGE]


@dataclass(frozen=True, kw_only=True, slots=True)
class PageText:
    """Writes pages as text, shorter than WebShop's where texts are long."""

    title_characters: int = 100
    """Length of a title among the results."""
    text_characters: int = 600
    """Length of a description, of the features and of the reviews."""

    def write(self, shop: Shop, page: Page) -> str:
        """What a page says."""
        if not page.query:
            return "Search page. Write search[words]."
        if not page.asin:
            return self._results(shop, page)
        product = shop.product(page.asin)
        return self._sub_page(product, page.sub_page) if page.sub_page else self._item(product, page)

    def _results(self, shop: Shop, page: Page) -> str:
        found = shop.search(page.query)
        if not found:
            return f"No product was found.\n[{BACK}]"
        names = [name for name in buttons(shop, page) if name in (BACK, PREV, NEXT)]
        items = [shop.product(asin) for asin in _on_page(found, page)]
        lines = [f"[{item.asin}] {shorten(item.name, self.title_characters)} {item.price_tag}" for item in items]
        head = f"Page {page.number} of {_num_pages(len(found))}, {len(found)} products"
        return "\n".join([head, _in_brackets(names), *lines])

    def _item(self, product: Product, page: Page) -> str:
        options = [f"{name}: {_in_brackets(values)}" for name, values in product.options.items()]
        lines = [product.name, f"Price: {product.price_tag}, rating: {product.rating}", *options]
        if page.options:
            lines.append(choices(product, page))
        return "\n".join([*lines, _in_brackets((BACK, PREV, *SUB_PAGES, BUY))])

    def _sub_page(self, product: Product, name: str) -> str:
        texts = {
            "description": product.full_description,
            "features": "\n".join(product.small_description),
            "reviews": "\n".join(product.reviews),
        }
        text = shorten(texts[name].strip(), self.text_characters)
        return f"{name}:\n{text or 'none'}\n{_in_brackets((BACK, PREV))}"


def mention(shop: Shop, page: Page) -> str:
    """A few words for a page whose text stands above in the conversation, and what is chosen on it."""
    if not page.query:
        return "Search page."
    if not page.asin:
        return f"Page {page.number} of the results for {page.query}, as above."
    if page.sub_page:
        return f"{page.sub_page} of {page.asin}, as above."
    return choices(shop.product(page.asin), page) if page.options else f"{page.asin}, as above."


def choices(product: Product, page: Page) -> str:
    """What is chosen, and what is not yet: `Chosen: color: navy. Not chosen: size.`"""
    chosen = dict(page.options)
    left = [name for name in product.options if name not in chosen]
    said = "Chosen: " + ", ".join(f"{name}: {chosen[name]}" for name in product.options if name in chosen) + "."
    return f"{said} Not chosen: {', '.join(left)}." if left else said


def _in_brackets(names: Iterable[str]) -> str:
    return " ".join(f"[{name}]" for name in names)
