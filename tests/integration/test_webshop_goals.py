"""The recipe webshop, without a model: products and their files, goals, splits, the score."""

from __future__ import annotations

import doctest
import json
import lzma
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from agent_r1.errors import DataError
from agent_r1.registry import load_module, recipe_folder
from tests.helpers.recipe_runs import ROOT, WHOLE_DATA

pytest.importorskip("rapidfuzz", reason="the extra webshop is not installed")

RECIPE = ROOT / "recipes" / "webshop"
SAMPLE = RECIPE / "sample"
WHOLE = WHOLE_DATA / "webshop"
needs_whole_data = pytest.mark.skipif(not WHOLE.is_dir(), reason="the whole data set is not here")

with recipe_folder(RECIPE):
    expert = load_module("expert")
    goals = load_module("goals")
    make_sample = load_module("data_preprocess.make_sample")
    products = load_module("products")
    prompts = load_module("prompts")
    scoring = load_module("scoring")
    sources = load_module("data_preprocess.sources")


def product(asin: str = "A1", **given: Any) -> Any:
    row = {
        "name": "Navy Cotton Shirt",
        "query": "men's shirts",
        "product_category": "Clothing \u203a Men \u203a Shirts",
        "pricing": [20.0],
        "attributes": ["machine wash", "long sleeve"],
    }
    return products.Product.from_row({"asin": asin, **row, **given})


def score(bought: Any, chosen: dict[str, str], **given: Any) -> Any:
    goal = {"attributes": ["machine wash", "long sleeve"], "options": ["navy", "large"], "price_upper": 30.0}
    return scoring.score_purchase(bought, chosen, wanted=product(), **{**goal, **given})


@cache
def whole_products() -> list[Any]:
    return [products.Product.from_row(row) for row in sources.product_rows(WHOLE)]


@pytest.mark.parametrize("module", [expert, prompts, scoring, sources])
def test_examples_of_docstrings_hold(module: Any) -> None:
    failed, tried = doctest.testmod(module)
    assert tried > 0
    assert failed == 0


# The score


def test_the_wanted_product_with_the_wanted_options_scores_one() -> None:
    found = score(product(), {"color": "navy", "size": "large"})
    assert found == scoring.Score(score=1.0, type=1.0, attributes=1.0, options=1.0, price=1.0)


def test_each_attribute_option_and_the_price_count_the_same() -> None:
    # Two attributes, two options and the price: each is a fifth.
    assert score(product(), {}).score == pytest.approx(3 / 5)
    assert score(product(), {"color": "navy", "size": "small"}).score == pytest.approx(4 / 5)
    assert score(product(attributes=["machine wash"]), {"color": "navy", "size": "large"}).score == pytest.approx(4 / 5)
    assert score(product(pricing=[30.01]), {"color": "navy", "size": "large"}).score == pytest.approx(4 / 5)
    assert score(product(attributes=[], pricing=[99]), {}).score == 0.0


def test_an_attribute_may_also_stand_in_the_text_of_the_product() -> None:
    bought = product(attributes=[], small_description=["Fit for Machine Wash."], full_description="Has a long sleeve")
    assert score(bought, {}).attributes == 1.0
    assert score(product(attributes=["long sleeves", "machine washable"]), {}).attributes == 1.0  # matched, not equal
    assert score(product(attributes=["short sleeve", "dry clean"]), {}).attributes == 0.0


def test_values_with_the_same_first_colour_match_and_sizes_must_be_near() -> None:
    assert scoring.count_options(["deep navy stripes"], ["navy"]) == 1
    assert scoring.count_options(["x-large"], ["large"]) == 1  # a token set: WebShop's own leniency
    assert scoring.count_options(["8 fl oz (pack of 2)"], ["8 fl oz (pack of 1)"]) == 1  # likewise: above 85
    assert scoring.count_options(["small"], ["large"]) == 0
    assert scoring.count_options(["navy"], ["navy", "navy"]) == 2


@pytest.mark.parametrize(
    ("title", "query", "tree", "expected"),
    [
        ("Linen Gown", "men's shirts", "Clothing \u203a Men \u203a Gowns", 0.0),  # no word in common counts most
        ("Cotton Gown", "gowns", "Clothing \u203a Women", 1.0),  # one of three words is more than a fifth
        ("Cotton Shirt", "other", "Other", 1.0),
    ],
)
def test_a_product_of_another_type_scores_less(title: str, query: str, tree: str, expected: float) -> None:
    bought = product("A2", name=title, query=query, product_category=tree)
    assert scoring.type_score(bought, product()) == expected


def test_few_words_in_common_give_a_half_or_a_tenth() -> None:
    long_name = "Navy " + " ".join(f"word{letter}" for letter in "abcdefgh")
    wanted, other = product(name=long_name), product("A2", name="Navy Lamp", query="lamps", product_category="Home")
    assert scoring.type_score(other, wanted) == 0.5  # one of nine words
    longer = product(name=f"{long_name} wordi wordj wordk")
    assert scoring.type_score(other, longer) == 0.1  # one of twelve, below a tenth
    assert scoring.type_score(product("A3", name="Navy Lamp"), wanted) == 1.0  # of the same query


# Goals


def test_a_product_has_a_goal_for_every_combination_of_its_options() -> None:
    item = product(
        options={"size": ["small", "large"], "color": ["navy", "red"]},
        instruction="Find me machine wash men's shirts with long sleeve",
        instruction_attributes=["machine wash", "long sleeve"],
    )
    found = goals.synthetic_goals(item)
    limit = found[0].price_upper
    assert limit in (40.0, 50.0, 60.0)  # 20.0 costs less than 30, 40, 50 and 60; the higher of two of them
    assert [goal.text for goal in found[:2]] == [
        f"Find me machine wash men's shirts with long sleeve with color: navy, and size: {size}, "
        f"and price lower than {limit:.2f} dollars"
        for size in ("small", "large")
    ]
    assert len(found) == 4
    assert goals.Goal.from_json(json.loads(json.dumps(found[3].to_json()))) == found[3]


def test_prices_and_their_limits_are_the_same_each_time() -> None:
    first, second = product(pricing=[10, 90]), product(pricing=[10, 90])
    assert 10 <= first.price == second.price <= 90
    assert goals.price_limit(first) == goals.price_limit(second)
    assert goals.price_limit(product(pricing=[2000.0])) == (goals.NO_LIMIT, "")


def test_a_goal_that_cannot_be_used_says_why() -> None:
    with pytest.raises(DataError, match=r"env_kwargs\.goal must have goal_id, text, asin"):
        goals.Goal.from_json(None)


def test_no_product_has_goals_in_two_splits() -> None:
    splits = goals.split_goals([products.Product.from_row(row) for row in make_sample.made_up_rows()])
    asins = {name: {goal.asin for goal in part} for name, part in splits.items()}
    assert all(asins.values())
    assert not asins["train"] & asins["test"]
    assert not asins["train"] & asins["validation"]
    assert not asins["test"] & asins["validation"]


def test_products_without_instruction_get_goals_to_train_on_alone() -> None:
    items = [products.Product.from_row(row) for row in make_sample.made_up_rows()]
    without = {item.asin for item in items if not item.instruction}
    with_extra, plain = goals.split_goals(items), goals.split_goals(items, extra=False)
    added = {goal.asin for goal in with_extra["train"]} - {goal.asin for goal in plain["train"]}
    assert added
    assert added <= without
    assert with_extra["test"] == plain["test"]
    place = goals.attribute_places([item for item in items if item.instruction])
    assert place["machine wash"] == "before"
    assert place["living room"] == "for"


def test_too_few_products_for_three_splits_are_refused() -> None:
    with pytest.raises(DataError, match="2 products have goals; three splits need at least 3"):
        goals.split_goals([product(asin, instruction="Find me shirts") for asin in ("A1", "A2")])


@needs_whole_data
def test_the_gold_purchase_of_every_goal_scores_one_and_wrong_ones_never() -> None:
    items = {item.asin: item for item in whole_products()}
    found = [goal for item in items.values() for goal in goals.synthetic_goals(item)]
    assert len(found) == 6910
    assert len({goal.asin for goal in found}) == 415

    def scored(goal: Any, asin: str, chosen: Any) -> float:
        return float(
            scoring.score_purchase(
                items[asin],
                chosen,
                wanted=items[goal.asin],
                attributes=goal.attributes,
                options=list(goal.options.values()),
                price_upper=goal.price_upper,
            ).score
        )

    assert all(scored(goal, goal.asin, goal.options) == 1.0 for goal in found)
    assert not any(scored(goal, goal.asin, {}) == 1.0 for goal in found if goal.options)
    some = found[::50]
    others = [next(a for a, item in items.items() if item.category != items[g.asin].category) for g in some]
    assert not any(scored(goal, other, {}) == 1.0 for goal, other in zip(some, others, strict=True))


@needs_whole_data
def test_the_splits_of_the_whole_data_have_the_sizes_of_the_readme() -> None:
    splits = goals.split_goals(whole_products())
    assert {name: len(part) for name, part in splits.items()} == {"test": 528, "validation": 236, "train": 1877}
    assert sum(len(goals.human_goals(item)) for item in whole_products()) == 13


@pytest.mark.skipif(not (WHOLE_DATA / "webshop_extra").is_dir(), reason="what people typed is not here")
def test_the_fillers_are_the_words_that_people_leave_out() -> None:
    with lzma.open(WHOLE_DATA / "webshop_extra" / "goal_query_map.jsonl.xz", "rt") as file:
        assert expert.measure_fillers(map(json.loads, file)) == expert.FILLERS


# Files


def test_the_sample_is_what_the_script_makes() -> None:
    shipped = [json.loads(line) for line in (SAMPLE / "products.jsonl").read_text().splitlines()]
    assert shipped == make_sample.made_up_rows()


def test_products_come_back_from_their_file(tmp_path: Path) -> None:
    items = [products.Product.from_row(row) for row in make_sample.made_up_rows()]
    products.write_products(tmp_path / "products.jsonl", items)
    assert [item.to_row() for item in products.read_products(tmp_path / "products.jsonl")] == [
        item.to_row() for item in items
    ]


def test_a_product_without_an_id_is_refused() -> None:
    with pytest.raises(DataError, match="a product needs asin, query; found: name"):
        products.Product.from_row({"name": "Lamp"})


OFFICIAL = {
    "items_shuffle_1000": [
        {
            "asin": "B000000001",
            "name": "Tea",
            "category": "grocery",
            "query": "Tea ",
            "product_category": "Grocery",
            "pricing": "$1,003.50$2,000.00",
            "full_description": None,
            "small_description": "Green",
            "customization_options": {"Size": [{"value": "20/40 Count", "image": None}], "Color": None},
        },
        {"asin": "B000000001", "name": "Tea again", "query": "tea"},
        {"asin": "nan", "name": "No tea", "query": "tea"},
    ],
    "items_ins_v2_1000": {
        "B000000001": {
            "attributes": ["gluten free"],
            "instruction": "Find me gluten free tea",
            "instruction_attributes": ["gluten free"],
        }
    },
    "items_human_ins": {
        "B000000001": [
            {
                "instruction": "i want tea.",
                "instruction_attributes": ["gluten free"],
                "instruction_options": ["20 count"],
            }
        ]
    },
}


def check_official(rows: list[dict[str, Any]]) -> None:
    [item] = [products.Product.from_row(row) for row in rows]
    assert (item.query, item.pricing, item.price_tag) == ("tea", (1003.5, 2000.0), "$1003.5 to $2000.0")
    assert item.options == {"size": ("20 | 40 count",)}
    assert (item.small_description, item.attributes) == (("Green",), ("gluten free",))
    [goal] = goals.human_goals(item)
    assert (goal.text, goal.options) == ("i want tea", {"0": "20 count"})  # no price limit: it costs too much
    [goal] = goals.synthetic_goals(item)
    assert goal.text == "Find me gluten free tea with size: 20 | 40 count"


def write_official(folder: Path, ending: str = ".json") -> None:
    for name, content in OFFICIAL.items():
        (folder / f"{name}{ending}").write_text(json.dumps(content))


def test_the_official_files_are_read_from_a_folder(tmp_path: Path) -> None:
    write_official(tmp_path)
    check_official(sources.product_rows(tmp_path))


def test_the_official_files_are_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = tmp_path / "served"
    served.mkdir()
    write_official(served)
    monkeypatch.delenv("AGENT_R1_DATA", raising=False)
    monkeypatch.setenv("AGENT_R1_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *arguments: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(served)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        for name in OFFICIAL:
            address = f"http://127.0.0.1:{server.server_port}/{name}.json?id=x"
            monkeypatch.setitem(sources.OFFICIAL, name, [address])
        check_official(sources.product_rows())
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    check_official(sources.product_rows())  # the server is gone


def test_a_download_that_is_a_web_page_says_what_to_do(tmp_path: Path) -> None:
    write_official(tmp_path)
    (tmp_path / "items_human_ins.json").write_text("<html>Quota exceeded</html>")
    with pytest.raises(DataError, match=r"is not the JSON of items_human_ins.*setup\.sh -d small"):
        sources.product_rows(tmp_path)
