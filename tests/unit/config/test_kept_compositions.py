"""A load that copies a kept composition gives what Hydra's full composition gives: the same values, the same errors."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore
from hypothesis import given
from hypothesis import strategies as st

from agent_r1.config import Config, compose, hydra_compose, known_keys, load_config, presets, to_yaml
from agent_r1.errors import AgentR1Error
from tests.helpers.fuzzing import fuzz_settings

RECIPES = sorted(file.parent for file in (Path(__file__).parents[3] / "recipes").glob("*/base.yaml"))
QUICKSTART = next(folder for folder in RECIPES if folder.name == "quickstart")
HEAD = "defaults:\n  - agent_r1\n  - algorithm: grpo\n  - _self_\nmodel: {path: here}\n"


def outcome(recipe: Path | Config | None, overrides: list[str]) -> tuple[str, object]:
    """What a load gives or says."""
    try:
        config = load_config(recipe, overrides)
    except AgentR1Error as error:
        return type(error).__name__, str(error)
    return repr(config), config  # 1 == 1.0 == True, but they are written differently


def in_full(recipe: Path | Config | None, overrides: list[str]) -> tuple[str, object]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "compose_config", hydra_compose.compose_fully)
        return outcome(recipe, overrides)


def compare(recipe: Path | Config | None, overrides: list[str]) -> None:
    """Hydra composes in full once; where a load falls back on that, it is not made again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hydra_compose, "compose_fully", remembered(hydra_compose.compose_fully))
        expected = in_full(recipe, overrides)
        assert outcome(recipe, overrides) == expected
        assert outcome(recipe, overrides) == expected  # from a composition that is certainly kept
    if isinstance(expected[1], Config):
        assert to_yaml(expected[1])


def remembered(compose_fully: Callable[..., hydra_compose.Composed]) -> Callable[..., hydra_compose.Composed]:
    """The same result, or the same error, for the same arguments."""
    known: dict[str, hydra_compose.Composed | Exception] = {}

    def composed(*arguments: object) -> hydra_compose.Composed:
        key = repr(arguments)
        if key not in known:
            try:
                known[key] = compose_fully(*arguments)
            except hydra_compose.REFUSALS as error:
                known[key] = error
        result = known[key]
        if isinstance(result, Exception):
            raise result
        return copy.deepcopy(result)

    return composed


RIGHT = [
    ["trainer.steps=3", "run.name=a b", "env.depth=3", "env.tools=[price,'a b']", "eval.max_tasks=null"],
    ["algorithm=ppo", "algorithm.estimator=step_gae", "algorithm.estimator.lam=0.5", "~algorithm.loss.dual_clip"],
    ["+algorithm.loss.ceiling=4", "++algorithm.loss.clip_low=0.1", "env={name:tool,depth:2}", "run.folder=/elsewhere"],
    ["run.name=${model.path}", "model.path=x${oc.env:HOME}", "engine=openai", "algorithm={epochs:2}"],
    ["model=smollm2", "trainer.steps=1", "trainer.steps=2", "tools.search.timeout=5"],
    ["algorithm=ppo", "algorithm=dapo", "data.train=[]", "+algorithm.epochs=2"],
]
WRONG = [
    ["trainer.steps=many"],
    ["trainer.steps=null", "algorithm=ppo"],
    ["data.train=rows.jsonl"],
    ["algorithm=grop"],
    ["model=nothing"],
    ["++algorithm=ppo"],
    ["~trainer.steps=4"],
    ["~env.nothing"],
    ["~algorithm"],
    ["+trainer.steps=4"],
    ["trainer.steps=1,2"],
    ["run.name=${no.such.key}"],
    ["env=[1,2"],
    ["algorithm@trainer=ppo"],
    ["/algorithm=ppo"],
    ["trainer=null"],
    ["trainer.steps=${hydra.job.name}"],
    ["env.a=interval(0,1)", "env.b=choice(1,2)"],
]


@pytest.mark.whole
@pytest.mark.parametrize("recipe", [None, *RECIPES], ids=str)
def test_each_recipe_and_each_algorithm_load_as_composed_in_full(recipe: Path | None) -> None:
    model = ["model.path=m"] if recipe is None else []
    compare(recipe, model)
    for algorithm in presets("algorithm") if recipe is None else ("ppo", "gigpo"):
        compare(recipe, [f"algorithm={algorithm}", *model])


@pytest.mark.whole
@pytest.mark.parametrize("recipe", [None, QUICKSTART], ids=str)
@pytest.mark.parametrize("overrides", [*RIGHT, *WRONG], ids=str)
def test_overrides_give_what_a_full_composition_gives(recipe: Path | None, overrides: list[str]) -> None:
    compare(recipe, overrides)


@pytest.mark.whole
@pytest.mark.parametrize("overrides", [[], *RIGHT, *WRONG], ids=str)
def test_a_configuration_that_is_changed_gives_what_a_full_composition_gives(overrides: list[str]) -> None:
    compare(load_config(QUICKSTART, ["algorithm.loss.clip_high=0.3"]), overrides)


keys = st.sampled_from([*known_keys(), "algorithm", "model", "env.x", "algorithm.loss.x", "trainer", "tools.a.b"])
values = st.one_of(
    st.integers(-3, 3).map(str),
    st.sampled_from(["null", "true", "1e-3", "[]", "[1,a]", "{a:1}", "'q'", "x y", "ppo", "${run.name}", "1,2", "???"]),
    st.text(max_size=6),
)
signs = st.sampled_from(["", "", "", "", "+", "++", "~"])
random_overrides = st.builds("{}{}={}".format, signs, keys, values)


@pytest.mark.whole
@fuzz_settings(0.5)
@given(st.lists(random_overrides, max_size=3))
def test_random_overrides_give_what_a_full_composition_gives(overrides: list[str]) -> None:
    compare(QUICKSTART, overrides)


def test_a_second_load_composes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    load_config(QUICKSTART, ["algorithm=ppo"])
    monkeypatch.setattr(hydra_compose, "compose", lambda *_, **__: pytest.fail("Hydra composes"))
    for steps in range(3):
        overrides = ["algorithm=ppo", f"trainer.steps={steps}", "env.depth=3"]
        assert load_config(QUICKSTART, overrides).trainer.steps == steps


def test_loads_share_nothing() -> None:
    first = load_config(QUICKSTART)
    first.env["tools"].append("mine")
    first.algorithm.loss.arguments["clip_low"] = 7
    assert load_config(QUICKSTART).env["tools"] == ["price", "calculate"]
    assert load_config(QUICKSTART).algorithm.loss.arguments["clip_low"] == 0.2


def test_an_edited_file_is_seen_even_when_size_and_time_stay(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(HEAD + "trainer: {steps: 7}\n")
    before = base.stat()
    assert load_config(tmp_path).trainer.steps == 7
    base.write_text(HEAD + "trainer: {steps: 8}\n")
    os.utime(base, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert load_config(tmp_path).trainer.steps == 8


@pytest.mark.whole
def test_a_preset_of_the_recipe_is_seen_when_it_appears_changes_and_goes(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(HEAD)
    preset = tmp_path / "algorithm" / "ppo.yaml"
    assert load_config(tmp_path, ["algorithm=ppo"]).algorithm.estimator.name == "token_gae"
    preset.parent.mkdir()
    for name in ("group", "rloo"):
        preset.write_text(f"estimator: {{name: {name}}}\n")
        assert load_config(tmp_path, ["algorithm=ppo"]).algorithm.estimator.name == name
    preset.unlink()
    assert load_config(tmp_path, ["algorithm=ppo"]).algorithm.estimator.name == "token_gae"


@pytest.mark.whole
def test_a_folder_that_makes_a_key_a_group_is_seen(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(HEAD)
    compare(tmp_path, ["run={name: a}", "trainer=quick"])
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "quick.yaml").write_text("steps: 2\n")
    compare(tmp_path, ["trainer=quick"])
    assert load_config(tmp_path, ["+trainer=quick"]).trainer.steps == 2


@pytest.mark.whole
def test_a_configuration_that_is_registered_anew_is_seen(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(HEAD.replace("  - _self_", "  - my_defaults\n  - _self_"))
    for steps in (3, 4):
        ConfigStore.instance().store(name="my_defaults", node={"trainer": {"steps": steps}})
        assert load_config(tmp_path).trainer.steps == steps


@pytest.mark.whole
def test_the_environment_is_read_at_each_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = HEAD.replace("algorithm: grpo", "algorithm: ${oc.env:MY_ALGORITHM}")
    (tmp_path / "base.yaml").write_text(chosen + "run: {name: '${oc.env:MY_RUN}'}\n")
    for name in ("ppo", "rloo"):
        monkeypatch.setenv("MY_ALGORITHM", name)
        monkeypatch.setenv("MY_RUN", name)
        config = load_config(tmp_path)
        assert (config.algorithm.preset, config.run.name) == (name, name)


@pytest.mark.whole
def test_settings_of_hydra_in_a_recipe_are_composed_in_full(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(HEAD + "hydra: {job: {env_copy: [NO_SUCH_VARIABLE]}}\n")
    compare(tmp_path, [])
    assert outcome(tmp_path, [])[0] == "ConfigError"


@pytest.mark.whole
def test_a_recipe_without_self_warns_at_each_load(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(HEAD.replace("  - _self_\n", ""))
    for _ in range(2):
        with pytest.warns(UserWarning, match="_self_"):
            load_config(tmp_path)


def test_the_number_of_kept_compositions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hydra_compose, "_MAX_COMPOSITIONS", 2)
    for algorithm in ("ppo", "rloo", "dapo"):
        load_config(QUICKSTART, [f"algorithm={algorithm}"])
    assert [key[2] for key in hydra_compose._compositions] == [("algorithm=rloo",), ("algorithm=dapo",)]
