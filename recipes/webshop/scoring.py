"""The score of WebShop (Yao et al., 2022): how well a purchase fits a goal, from 0 to 1.

    score = r_type * (attributes + options + price) / (attributes of the goal + options of the goal + 1)

* attributes: how many of the goal's attributes the product has, as an attribute of its own that matches (see below) or
  word for word in its title, features or description;
* options: how many of the goal's option values match a chosen value, colours compared by their first colour word;
* price: 1 when the product costs no more than the goal allows.

Two texts match when their token-set ratio is above 85. r_type is 1 for a product of the goal's type: of the same query,
or with two categories in common, or with more than a fifth of the title's nouns in common; else 0.5. With less than a
tenth of the nouns in common it is 0.1, with none 0.

What differs from the original: it finds nouns with a model of spaCy, which is not needed here. All words of a title
count that are neither function words nor numbers (`type_words`). Goals whose options are a table are compared by its
values; the original compares pairs of name and value there, which match nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from agent_r1.errors import MissingExtraError

from .colours import COLOURS
from .products import Options, Product

MATCH_ABOVE = 85

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_FUNCTION_WORDS = """
a all an and any are as at be by can do for from has have in into is it its more most no not of off on one or
our out over per so than that the their them these this to up us use used using we will with without you your
"""
_IGNORED = frozenset(_FUNCTION_WORDS.split())


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """A purchase, scored."""

    score: float
    """From 0 to 1; 1 is a success."""
    type: float
    """r_type."""
    attributes: float
    """The share of the goal's attributes that the product has."""
    options: float
    """The share of the goal's options that were chosen; 1 when it has none."""
    price: float
    """1 when the price is within the goal's."""


def score_purchase(
    bought: Product,
    chosen: Options,
    *,
    wanted: Product,
    attributes: Sequence[str],
    options: Sequence[str],
    price_upper: float,
) -> Score:
    """Score a purchase of `bought` with the options `chosen` against a goal that was made of `wanted`."""
    r_type = type_score(bought, wanted)
    num_attributes = sum(has_attribute(bought, attribute) for attribute in attributes)
    num_options = count_options(chosen.values(), options)
    price = float(bought.price <= price_upper)
    total = (num_attributes + num_options + price) / (len(attributes) + len(options) + 1)
    return Score(
        score=r_type * total,
        type=r_type,
        attributes=num_attributes / len(attributes) if attributes else 1.0,
        options=num_options / len(options) if options else 1.0,
        price=price,
    )


@lru_cache(maxsize=100_000)
def _type_score(bought: tuple[str, str, str], wanted: tuple[str, str, str]) -> float:
    (query, tree, title), (wanted_query, wanted_tree, wanted_title) = bought, wanted
    nouns = type_words(wanted_title)
    shared = len(set(type_words(title)) & set(nouns)) / len(nouns) if nouns else 0.2
    if shared == 0.0:
        return 0.0
    if shared < 0.1:
        return 0.1
    same_branch = len(_branches(tree) & _branches(wanted_tree)) >= 2
    return 1.0 if query == wanted_query or same_branch or shared > 0.2 else 0.5


def type_score(bought: Product, wanted: Product) -> float:
    """r_type: whether one product is of the type of another."""
    return _type_score(*((item.query, item.product_category, item.name) for item in (bought, wanted)))


@lru_cache(maxsize=20_000)
def type_words(title: str) -> tuple[str, ...]:
    """The words of a title that may name a type.

    >>> type_words("2 Pcs Throw Pillow Covers for the Sofa, 18x18")
    ('pcs', 'throw', 'pillow', 'covers', 'sofa')
    """
    words = _WORD.findall(title.lower())
    return tuple(word for word in words if len(word) > 1 and not word[0].isdigit() and word not in _IGNORED)


def _branches(tree: str) -> set[str]:
    return {part.strip() for part in tree.split("\u203a")}


@lru_cache(maxsize=100_000)
def has_attribute(product: Product, attribute: str) -> bool:
    """Whether a product has an attribute: among its own, or in what its pages say."""
    if any(texts_match(own, attribute) for own in product.attributes):
        return True
    texts = (product.name, " ".join(product.small_description), product.full_description)
    return any(attribute in text.lower() for text in texts)


def count_options(chosen: Iterable[str], wanted: Sequence[str]) -> int:
    """How many of the wanted values match a chosen one.

    >>> count_options(["black forest", "large"], ["black", "small"])
    1
    """
    normal = [first_colour(value) for value in chosen]
    return sum(any(texts_match(value, first_colour(other)) for value in normal) for other in wanted)


@lru_cache(maxsize=20_000)
def first_colour(value: str) -> str:
    """The first colour of WebShop's list that is in a value, else the value.

    >>> first_colour("violet lavender"), first_colour("x-large")
    ('lavender', 'x-large')
    """
    return next((colour for colour in COLOURS if colour in value), value)


@lru_cache(maxsize=200_000)
def texts_match(one: str, other: str) -> bool:
    """Whether the token-set ratio of two texts is above 85.

    >>> texts_match("powder snow", "cool powder snow"), texts_match("red", "blue")
    (True, False)
    """
    try:
        from rapidfuzz import fuzz, utils
    except ModuleNotFoundError as error:
        raise MissingExtraError("rapidfuzz", "webshop", "the score of the recipe webshop") from error
    # Without the processor rapidfuzz compares case and punctuation too.
    return bool(fuzz.token_set_ratio(one, other, processor=utils.default_process) > MATCH_ABOVE)
