"""Recipes by name: the user's folder first, then those that come with Agent-R1."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_r1.config import load_config
from agent_r1.errors import ConfigError
from agent_r1.shipped import find_recipe, recipe_note, shipped_recipes

RECIPES = Path(__file__).parents[3] / "recipes"
NAMES = sorted(file.parent.name for file in RECIPES.glob("*/base.yaml"))


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own(folder: str) -> Path:
    Path(folder).mkdir(parents=True)
    (Path(folder) / "base.yaml").write_text("defaults: [agent_r1, _self_]\nmodel: {path: mine}\n")
    return Path(folder)


def test_every_recipe_is_shipped_with_a_summary_and_its_needs() -> None:
    assert [recipe.name for recipe in shipped_recipes()] == NAMES
    assert not [recipe.name for recipe in shipped_recipes() if not recipe.summary or not recipe.needs]


def test_a_name_is_the_shipped_recipe_where_there_is_no_such_folder() -> None:
    assert find_recipe("quickstart") == RECIPES / "quickstart"
    assert load_config("quickstart").recipe == str(RECIPES / "quickstart")
    assert recipe_note("quickstart") == (
        "recipe: 'quickstart' of Agent-R1; to edit it: agent-r1 recipes copy quickstart"
    )


@pytest.mark.parametrize("folder", ["quickstart", "recipes/quickstart"])
def test_a_folder_of_the_user_wins_and_it_is_said(folder: str) -> None:
    own(folder)
    assert find_recipe("quickstart") == Path(folder)
    assert load_config("quickstart").model.path == "mine"
    assert recipe_note("quickstart") == (
        f"recipe: your folder {folder}, not the recipe 'quickstart' that comes with Agent-R1"
    )


def test_a_name_also_finds_what_init_wrote() -> None:
    own("recipes/my_shop_of_tests")
    assert find_recipe("my_shop_of_tests") == Path("recipes/my_shop_of_tests")
    assert recipe_note("my_shop_of_tests") is None


def test_nothing_is_said_of_a_path_and_of_the_shipped_folder_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    own("deep/quickstart")
    assert recipe_note("deep/quickstart") is None
    monkeypatch.chdir(RECIPES.parent)
    assert recipe_note("quickstart") is None
    assert recipe_note("recipes/quickstart") is None


def test_a_folder_that_is_no_recipe_hides_the_shipped_one_and_the_error_says_so() -> None:
    Path("quickstart").mkdir()
    with pytest.raises(ConfigError, match=r"no file quickstart/base\.yaml.* hidden by this folder"):
        find_recipe("quickstart")


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("recipes/quickstart", "Did you mean the recipe 'quickstart' that comes with Agent-R1"),
        ("quikstart", "Did you mean 'quickstart'"),
        ("nothing/like/it", "Known: " + ", ".join(NAMES)),
        ("", "not a recipe"),
        ("x" * 5000, "not a recipe"),
        ("a\0b", "not a recipe"),
        ("..", "not a recipe"),
    ],
)
def test_what_is_no_recipe_gets_one_error_with_advice(given: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_recipe(given)
    assert advice in str(caught.value)
