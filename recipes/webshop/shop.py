"""The shop: its products and its search engine. All episodes of a process share one per folder."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from agent_r1.errors import ConfigError, DataError
from agent_r1.tools.builtin.search import BM25Index, Passage

from .goals import Goal
from .products import PRODUCTS_FILE, Options, Product, read_products, write_products
from .scoring import Score, score_purchase

INDEX_FOLDER = "index"
MAX_RESULTS = 50
PER_PAGE = 10
_KEPT_SEARCHES = 4096


class Shop:
    """Products by id, and a search over them by words (BM25)."""

    def __init__(self, products: Iterable[Product], index: BM25Index) -> None:
        self.products = {product.asin: product for product in products}
        self._asins = list(self.products)
        self._index = index
        if len(index) != len(self._asins):
            raise DataError(f"the index has {len(index)} products and the shop {len(self._asins)}; make both again")
        self._searches: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def search(self, words: str) -> tuple[str, ...]:
        """The ids of the best products, at most 50; none when no product has any of the words."""
        query = " ".join(words.lower().split())
        known = self._searches.get(query)
        if known is None:
            known = tuple(self._asins[number] for number, _ in self._index.rank(query, MAX_RESULTS))
            # The members of a group often search for the same; the oldest searches are forgotten.
            self._searches[query] = known
            if len(self._searches) > _KEPT_SEARCHES:
                self._searches.popitem(last=False)
        return known

    def product(self, asin: str) -> Product:
        """The product with this id."""
        try:
            return self.products[asin]
        except KeyError:
            raise DataError(f"the shop has no product {asin}; its {len(self.products)} products are others") from None

    def score(self, goal: Goal, asin: str, options: Options) -> Score:
        """The score of a purchase."""
        return score_purchase(
            self.product(asin),
            options,
            wanted=self.product(goal.asin),
            attributes=goal.attributes,
            options=list(goal.options.values()),
            price_upper=goal.price_upper,
        )


def write_shop(folder: Path, products: Iterable[Product]) -> None:
    """Write the products and the index of a shop."""
    products = list({product.asin: product for product in products}.values())
    write_products(folder / PRODUCTS_FILE, products)
    passages = (Passage(passage_id=item.asin, title="", text=item.searchable) for item in products)
    BM25Index.build(passages, folder / INDEX_FOLDER)


def open_shop(folder: str | Path) -> Shop:
    """The shop in a folder; the same object as long as its files do not change."""
    folder = Path(folder).expanduser().resolve()
    try:
        changed = tuple((folder / name).stat().st_mtime_ns for name in (PRODUCTS_FILE, INDEX_FOLDER))
    except OSError as error:
        raise ConfigError(
            f"env.shop={folder} has no {PRODUCTS_FILE} and {INDEX_FOLDER} ({error.strerror}). Make them: "
            f"python recipes/webshop/data_preprocess/process_webshop.py --local_save_dir {folder}"
        ) from error
    return _open_shop(folder, changed)


@lru_cache(maxsize=2)
def _open_shop(folder: Path, changed: tuple[int, ...]) -> Shop:
    return Shop(read_products(folder / PRODUCTS_FILE), BM25Index.load(folder / INDEX_FOLDER))
