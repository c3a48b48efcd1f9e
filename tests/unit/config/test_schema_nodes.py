"""The quick way from values to a node of the schema gives what a merge gives: the same values, the same errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from agent_r1.config import Config, load_config, to_yaml
from agent_r1.config.compose import to_plain
from agent_r1.config.schema_nodes import on_schema, read_yaml
from tests.helpers.fuzzing import fuzz_settings

RECIPES = sorted(file.parent for file in (Path(__file__).parents[3] / "recipes").glob("*/base.yaml"))


def merged(values: Any) -> DictConfig:
    return OmegaConf.unsafe_merge(OmegaConf.structured(Config), values)


def outcome(make: Any, values: Any) -> tuple[str, str]:
    """Values with their types, or the error."""
    try:
        node = make(values)
        return OmegaConf.to_yaml(node), repr(OmegaConf.to_container(node))
    except (OmegaConfBaseException, YAMLError, ValueError, TypeError, AttributeError, AssertionError) as error:
        return type(error).__name__, str(error)


@pytest.mark.whole
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda folder: folder.name)
def test_each_recipes_values_and_their_text_give_the_merged_node(recipe: Path) -> None:
    config = load_config(recipe)
    expected = merged(to_plain(config))
    for node in (on_schema(to_plain(config)), read_yaml(to_yaml(config))):
        assert node == expected
        assert repr(OmegaConf.to_object(node)) == repr(OmegaConf.to_object(expected))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"trainer": {"steps": 3}, "optimizer": {"learning_rate": 1}, "run": {"name": 7}},
        {"trainer": {"steps": "4"}, "model": {"path": "???"}, "run": {"name": "${model.path}"}},
        {"trainer": {"steps": "many"}},
        {"trainer": {"steps": None}},
        {"trainer": {"step": 3}},
        {"trainer": 3},
        {"trainer": None},
        {"trainer": []},
        {"trainer": {"steps": {}}},
        {"trainer": {"steps": [1]}},
        {"run": "${model.path}"},
        {"run": {"name": "${model.path"}},
        {"env": {"name": "tool", "tools": [], "more": {}}, "tools": {"a": {"timeout": 1}}},
        {"env": None},
        {"data": {"train": {}, "eval": None}},
        {"data": {"train": [1, None, "x"]}},
        {"reward": {"functions": [{"name": "a", "weight": 2}, {"nam": 1}]}},
        {"nothing": 1, "trainer": {"steps": 3}},
        {1: 2},
    ],
    ids=str,
)
def test_values_and_mistakes_are_those_of_a_merge(values: dict[Any, Any]) -> None:
    assert outcome(on_schema, values) == outcome(merged, values)


@pytest.mark.parametrize(
    "text",
    [
        "trainer: {steps: 3}\noptimizer: {learning_rate: 1e-3}\nrun: {name: 2026-01-01}\n",
        *(
            "trainer: {steps: 3, steps: 4}\n",
            "",
            "run",
            "- 1\n",
            "trainer: [1\n",
            "a: b: c\n",
            "run: {name: 'x\\y\u0085'}\n",
        ),
        *(
            "run: {name: \x07}\n",
            "run: &a {name: x}\nmodel: *a\n",
            "run: {name: !!python/name:os.system x}\n",
            "<<: {a: 1}\n",
        ),
    ],
)
def test_a_text_is_read_as_omegaconf_reads_it(text: str) -> None:
    assert outcome(read_yaml, text) == outcome(lambda text: merged(OmegaConf.create(text)), text)


leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("${run.name}"))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=4,
)


@fuzz_settings(0.5)
@given(
    st.sampled_from([("trainer", "steps"), ("env", "name"), ("env", "x"), ("data", "train"), ("model", "lora")]), trees
)
def test_random_values_are_set_as_a_merge_sets_them(key: tuple[str, str], value: Any) -> None:
    assert outcome(on_schema, {key[0]: {key[1]: value}}) == outcome(merged, {key[0]: {key[1]: value}})
