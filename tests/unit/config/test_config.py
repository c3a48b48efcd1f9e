"""Configuration: what composes, and what is refused with words people can act upon."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_r1.algorithms import bind_algorithm, estimators, policy_losses
from agent_r1.config import (
    Config,
    algorithm_name,
    algorithm_schema,
    changed_settings,
    data_schema,
    from_yaml,
    known_keys,
    load_config,
    model_schema,
    presets,
    schema,
    to_yaml,
)
from agent_r1.errors import AgentR1Error, ConfigError, UnknownNameError
from agent_r1.registry import Part, Registry, bind_part

QUICKSTART = Path(__file__).parents[3] / "recipes" / "quickstart"
MODEL = "model.path=somewhere"


def recipe(folder: Path, body: str, algorithm: str = "grpo") -> Path:
    """A recipe folder with this `base.yaml`."""
    head = f"defaults:\n  - agent_r1\n  - algorithm: {algorithm}\n  - _self_\n"
    (folder / "base.yaml").write_text(head + body)
    return folder


# --- what composes -------------------------------------------------------------------------------------------------


def test_the_package_default_is_grpo() -> None:
    config = load_config(None, [MODEL])
    assert config.model.path == "somewhere"
    assert config.algorithm.preset == "grpo"
    assert config.algorithm.estimator == Part("group", {"normalise_std": True, "epsilon": 1e-6})
    clip = {"ratio": "token", "clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0}
    assert config.algorithm.loss == Part("clip", clip)
    assert not config.algorithm.critic.enabled
    assert config.algorithm.kl.coefficient == 0.0


def test_the_quickstart_recipe_composes() -> None:
    config = load_config(QUICKSTART)
    assert config.run.name == "quickstart"
    assert config.model.path == "runs/quickstart_warm_start/hf"
    assert config.data.train == ["runs/quickstart_data/train.jsonl"]
    assert config.env == {"name": "tool", "tools": ["price", "calculate"]}
    assert config.rollout.max_steps == 5


def test_references_follow_overrides() -> None:
    assert load_config(QUICKSTART, ["run.folder=/elsewhere"]).model.path == "/elsewhere/quickstart_warm_start/hf"


def test_an_algorithm_is_chosen_by_name_and_its_parts_can_be_overridden() -> None:
    config = load_config(QUICKSTART, ["algorithm=ppo", "algorithm.estimator.name=step_gae", "algorithm.epochs=2"])
    assert config.algorithm.preset == "ppo"
    assert config.algorithm.estimator == Part("step_gae", {"gamma": 1.0, "lam": 1.0, "whitened": True})
    assert config.algorithm.critic.enabled
    assert config.algorithm.epochs == 2


def test_overrides_come_last(tmp_path: Path) -> None:
    folder = recipe(tmp_path, "model: {path: here}\ntrainer: {steps: 7, seed: 3}\n")
    config = load_config(folder, ["trainer.steps=9"])
    assert (config.trainer.steps, config.trainer.seed) == (9, 3)


def test_a_recipe_may_bring_an_algorithm_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "algorithm").mkdir()
    (tmp_path / "algorithm" / "mine.yaml").write_text("estimator: {name: group}\naggregation: {name: token-mean}\n")
    folder = recipe(tmp_path, "model: {path: here}\n", algorithm="mine")
    algorithm = load_config(folder).algorithm
    assert (algorithm.preset, algorithm.aggregation) == ("mine", Part("token-mean"))
    assert algorithm_name(load_config(folder)) == "mine"


def test_arguments_of_open_keys_need_no_plus() -> None:
    overrides = [
        "env.depth=3",
        "env.tools=[price]",
        "algorithm.estimator.scale=0.5",
        "algorithm.loss.clip_low=0.1",
        "algorithm.loss.floor=2",
        "+algorithm.loss.ceiling=4",
    ]
    config = load_config(None, [MODEL, *overrides])
    assert config.env == {"name": "tool", "depth": 3, "tools": ["price"]}
    assert config.algorithm.estimator == Part("group", {"normalise_std": True, "epsilon": 1e-6, "scale": 0.5})
    added = {"clip_low": 0.1, "floor": 2, "ceiling": 4}
    assert {name: config.algorithm.loss.arguments[name] for name in added} == added
    assert config.algorithm.loss.arguments["clip_high"] == 0.2


def test_an_argument_of_an_open_key_can_be_dropped() -> None:
    assert "dual_clip" not in load_config(None, [MODEL, "~algorithm.loss.dual_clip"]).algorithm.loss.arguments


def test_loading_twice_leaves_nothing_behind() -> None:
    load_config(QUICKSTART, ["trainer.steps=3"])
    assert load_config(None, [MODEL]).trainer.steps == 100


@pytest.mark.parametrize("overrides", [[MODEL], [MODEL, "algorithm=ppo", "env.depth=3", "eval.max_tasks=4"]])
def test_yaml_round_trip(overrides: list[str]) -> None:
    config = load_config(None, overrides)
    assert from_yaml(to_yaml(config)) == config


def test_yaml_has_every_key() -> None:
    text = to_yaml(Config())
    assert all(f"{key.rsplit('.', 1)[-1]}:" in text for key in known_keys())


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("trainer.stepz=5", "trainer.steps"),
        ("optimizer.learning_rat=1e-4", "optimizer.learning_rate"),
        ("algorithm.kl.coeficient=0.1", "algorithm.kl.coefficient"),
        ("rollout.groupsize=4", "rollout.group_size"),
        ("learning_rate=1e-4", "optimizer.learning_rate"),
        ("+trainer.stepz=5", "trainer.steps"),
    ],
)
def test_an_unknown_key_on_the_command_line_names_the_nearest(override: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match="unknown key") as caught:
        load_config(QUICKSTART, [override])
    assert override.lstrip("+").split("=")[0] in str(caught.value)
    assert nearest in str(caught.value)


def test_all_wrong_overrides_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(QUICKSTART, ["trainer.stepz=5", "model.pth=x", "steps"])
    text = str(caught.value)
    assert "Did you mean 'trainer.steps'?" in text
    assert "Did you mean 'model.path'?" in text
    assert "'steps' is not an override; write key=value" in text


@pytest.mark.whole
@pytest.mark.parametrize(
    ("body", "unknown", "nearest"),
    [
        ("model: {path: here}\ntrainer: {stepz: 5}\n", "trainer.stepz", "trainer.steps"),
        ("model: {path: here, dtyp: float32}\n", "model.dtyp", "model.dtype"),
        ("model: {path: here}\nalgorithm: {kl: {coeficient: 1}}\n", "algorithm.kl.coeficient", "coefficient"),
        ("model: {path: here}\nrolout: {group_size: 4}\n", "rolout", "rollout"),
    ],
)
def test_an_unknown_key_in_a_recipe_names_the_file_and_the_nearest(
    tmp_path: Path, body: str, unknown: str, nearest: str
) -> None:
    with pytest.raises(ConfigError, match="unknown key") as caught:
        load_config(recipe(tmp_path, body))
    text = str(caught.value)
    assert f"'{unknown}'" in text
    assert str(tmp_path / "base.yaml") in text
    assert f"Did you mean '{nearest}" in text or f".{nearest}'?" in text


def test_an_unknown_algorithm_on_the_command_line_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown algorithm 'grop'\. Did you mean 'grpo'") as caught:
        load_config(QUICKSTART, ["algorithm=grop"])
    assert "ppo" in str(caught.value)


def test_an_unknown_algorithm_in_a_recipe_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown algorithm 'pppo'\. Did you mean 'ppo'"):
        load_config(recipe(tmp_path, "model: {path: here}\n", algorithm="pppo"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.steps=many", ["trainer.steps", "many"]),
        ("optimizer.learning_rate=high", ["optimizer.learning_rate", "high"]),
        ("data.train=rows.jsonl", ["data.train"]),
        ("trainer.steps=null", ["trainer.steps"]),
    ],
)
def test_a_value_of_the_wrong_type_names_key_and_value(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(QUICKSTART, [override])
    assert all(word in str(caught.value) for word in words)


def test_a_value_of_the_wrong_type_in_a_recipe_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(recipe(tmp_path, "model: {path: here}\ntrainer: {steps: many}\n"))
    assert all(word in str(caught.value) for word in ("many", "steps", str(tmp_path / "base.yaml")))


def test_a_missing_model_is_named() -> None:
    with pytest.raises(ConfigError, match=r"the key 'model\.path' has no value"):
        load_config(None)


def test_a_missing_model_is_named_under_a_debugger_too() -> None:
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        with pytest.raises(ConfigError, match=r"the key 'model\.path' has no value"):
            load_config(None)
    finally:
        sys.settrace(before)


def test_a_folder_without_a_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a recipe: there is no file .*base\.yaml"):
        load_config(tmp_path)


def test_a_recipe_that_is_not_yaml_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("defaults: [agent_r1\ntrainer: {steps: 3}\n")
    with pytest.raises(AgentR1Error, match=r"base\.yaml"):
        load_config(tmp_path)


@pytest.mark.parametrize("override", ["trainer.steps", "=5", "trainer.steps 5", "--steps=5"])
def test_something_that_is_no_override_is_refused(override: str) -> None:
    with pytest.raises(ConfigError):
        load_config(QUICKSTART, [override])


# --- parts by name -------------------------------------------------------------------------------------------------


def test_a_part_is_the_registered_function_with_its_arguments() -> None:
    numbers: Registry[Any] = Registry("number")

    @numbers.register("line")
    def line(x: float, *, slope: float = 1.0, offset: float = 0.0) -> float:
        return slope * x + offset

    assert bind_part(numbers, "key", {"name": "line", "slope": 3.0})(2.0) == 6.0
    assert bind_part(numbers, "key", {"name": "line"})(2.0) == 2.0


@pytest.mark.parametrize(
    ("registry", "key", "part", "nearest"),
    [
        (policy_losses, "algorithm.loss", {"name": "clip", "clip_hihg": 0.3}, "clip_high"),
        (estimators, "algorithm.estimator", {"name": "token_gae", "lambda": 0.9}, "lam"),
        (estimators, "algorithm.estimator", {"name": "group", "normalize_std": True}, "normalise_std"),
    ],
)
def test_an_argument_a_part_does_not_take_names_the_nearest(
    registry: Registry[Any], key: str, part: dict[str, Any], nearest: str
) -> None:
    (unknown,) = set(part) - {"name"}
    with pytest.raises(ConfigError, match=f"takes no argument '{unknown}'") as caught:
        bind_part(registry, key, part)
    text = str(caught.value)
    assert f"Did you mean '{nearest}'?" in text
    assert f"'{key}.{unknown}'" in text
    assert f"~{key}.{unknown}" in text


def test_the_data_of_a_part_is_not_an_argument() -> None:
    with pytest.raises(ConfigError, match="takes no argument 'table'"):
        bind_part(estimators, "algorithm.estimator", {"name": "group", "table": 1})


def test_a_part_without_a_name_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"needs a name.*group, .*step_gae, .*token_gae"):
        bind_part(estimators, "algorithm.estimator", {"gamma": 0.9})


def test_a_part_with_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'step_gae'"):
        bind_part(estimators, "algorithm.estimator", {"name": "step_gea"})


@pytest.mark.parametrize(
    ("overrides", "estimator"),
    [
        (["algorithm.estimator=group"], Part("group")),
        (["algorithm.estimator=step_gae", "algorithm.estimator.lam=0.5"], Part("step_gae", {"lam": 0.5})),
        (["algorithm.estimator.lam=0.5", "algorithm.estimator=my.module:mine"], Part("my.module:mine", {"lam": 0.5})),
    ],
)
def test_naming_a_part_drops_the_arguments_of_the_one_it_replaces(overrides: list[str], estimator: Part) -> None:
    config = load_config(None, [MODEL, "algorithm=ppo", *overrides])
    assert config.algorithm.estimator == estimator
    assert config.algorithm.loss.arguments["clip_high"] == 0.2


def test_a_part_gets_the_defaults_of_its_function() -> None:
    def line(x: float, *, slope: float = 1.0, name: str | None = None, shape: object = object(), needed: int) -> None:
        """Takes arguments that a file can hold, one that it cannot, and one without a default."""

    completed = Part("line", {"slope": 3.0, "needed": 2}).with_defaults(line)
    assert completed == Part("line", {"slope": 3.0, "name": None, "needed": 2})


def test_a_bound_algorithm_has_every_argument_and_they_survive_the_saved_file() -> None:
    config = load_config(None, [MODEL, "algorithm=gigpo", "algorithm.estimator=gigpo"])
    assert config.algorithm.estimator == Part("gigpo")
    assert config.algorithm.gamma == 1.0
    config.algorithm = bind_algorithm(config.algorithm).settings
    assert config.algorithm.estimator.arguments == {
        "step_weight": 1.0,
        "gamma": 0.95,
        "mean_norm": False,
        "similarity": None,
        "epsilon": 1e-6,
    }
    assert config.algorithm.gamma == 0.95
    assert from_yaml(to_yaml(config)) == config


@pytest.mark.parametrize("preset", presets("algorithm"))
def test_a_preset_spells_out_every_argument_of_its_parts(preset: str) -> None:
    """The run table lists what differs from the preset: an argument it leaves out would look like a change."""
    algorithm = load_config(None, [MODEL, f"algorithm={preset}"]).algorithm
    assert bind_algorithm(algorithm).settings == algorithm


@pytest.mark.whole
def test_a_configuration_can_be_changed_by_overrides_and_keeps_its_parts() -> None:
    base = load_config(None, [MODEL, "algorithm.loss.clip_high=0.3"])
    changed = load_config(base, {"trainer.steps": 3})
    assert (changed.algorithm, changed.trainer.steps) == (base.algorithm, 3)
    assert algorithm_name(changed) == "grpo, loss.clip_high=0.3"
    other = load_config(base, {"algorithm": "ppo"})
    assert (other.algorithm.estimator.name, algorithm_name(other)) == ("token_gae", "ppo")
    replaced = load_config(base, ["algorithm.estimator=step_group"])
    assert replaced.algorithm.estimator == Part("step_group")


def test_a_configuration_without_a_preset_names_none(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("defaults: [agent_r1, _self_]\nmodel: {path: here}\n")
    config = load_config(tmp_path)
    assert config.algorithm.preset is None
    assert algorithm_name(config) == "group / clip"


def test_arguments_left_over_from_another_part_are_refused() -> None:
    """`algorithm.estimator.name=group` over PPO's preset leaves gamma and lambda behind: they would do nothing."""
    config = load_config(None, [MODEL, "algorithm=ppo", "algorithm.estimator.name=group"])
    with pytest.raises(ConfigError, match="takes no argument 'gamma'"):
        bind_part(estimators, "algorithm.estimator", config.algorithm.estimator)


# --- the schema ----------------------------------------------------------------------------------------------------


def schema_classes() -> list[ast.ClassDef]:
    files = [Path(str(module.__file__)) for module in (schema, algorithm_schema, data_schema, model_schema)]
    return [node for file in files for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]


def test_every_key_has_a_line_under_it() -> None:
    classes = schema_classes()
    sections = {node.name for node in classes}
    bare = []
    for node in classes:
        for entry, following in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(entry, ast.AnnAssign) or ast.unparse(entry.annotation) in sections:
                continue
            said = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            if not said or not str(following.value.value).strip():  # type: ignore[union-attr]
                bare.append(f"{node.name}.{ast.unparse(entry.target)}")
    assert bare == []


def test_every_section_says_what_it_is() -> None:
    assert [node.name for node in schema_classes() if not ast.get_docstring(node)] == []


def test_known_keys_are_the_leaves_of_the_schema() -> None:
    keys = known_keys()
    assert len(keys) == len(set(keys))
    assert {"imports", "env", "run.name", "algorithm.kl.place", "sft.steps"} <= set(keys)
    assert "algorithm.kl" not in keys


def test_there_are_no_more_than_ninety_keys_to_tune() -> None:
    written_by_load_config = {"recipe", "algorithm.preset"}
    seams_for_code_of_your_own = {
        *("engine.name", "engine.arguments", "reward.functions", "algorithm.group_plan", "tracking.trackers"),
        "sft.from_episode",
        *(key for key in known_keys() if key.startswith("agent.")),  # how a program of your own is reached
        *(key for key in known_keys() if key.startswith(("rollout.ray.", "rollout.processes."))),
        *(key for key in known_keys() if key.startswith(("rollout.workers", "trainer.sharding."))),
        *(key for key in known_keys() if key.startswith("engine.servers.")),  # and servers of your own
    }
    images = ("model.max_image_tokens", "model.max_image_pixels", "rollout.max_images", "rollout.max_episode_images")
    of_models_that_see = {"model.train_vision", *images}
    only_looks = {"tracking.profile_step"}  # changes nothing that is learned
    which_rows = {"data.test", "eval.split"}  # set by recipes and by `agent-r1 eval --split`
    drawn_by = ("data.curriculum.", "data.revisit.", "data.shares")  # mostly unset
    which_tasks = {key for key in known_keys() if key.startswith(drawn_by)}
    others = (
        {*known_keys()}
        - which_tasks
        - written_by_load_config
        - seams_for_code_of_your_own
        - of_models_that_see
        - which_rows
        - only_looks
    )
    assert len(others) <= 90


def test_changed_settings_are_the_overrides_that_make_one_configuration_of_another() -> None:
    old = load_config(None, ["model.path=m", "+env.size=4"])
    new = load_config(old, ["rollout.max_steps=3", "~env.size", "+env.kinds=[a, b]", "eval.max_tasks=null"])
    assert changed_settings(old, new) == ["env.kinds=['a','b']", "rollout.max_steps=3", "~env.size"]
    assert load_config(old, changed_settings(old, new)[1:]).rollout.max_steps == 3
    assert changed_settings(old, old) == []


def test_an_unknown_key_that_is_like_none_lists_the_sections_and_not_all_keys() -> None:
    with pytest.raises(ConfigError, match="unknown key 'num_generations'") as caught:
        load_config(QUICKSTART, ["num_generations=4"])
    text = str(caught.value)
    assert "Known are keys of agent, algorithm, data, engine," in text
    assert "--dry-run" in text
    assert "algorithm.aggregation" not in text


def test_null_for_a_key_that_needs_a_value_names_the_key_alone() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(QUICKSTART, {"optimizer.learning_rate": None})
    assert str(caught.value) == "optimizer.learning_rate cannot be null: it needs a value"


@pytest.mark.parametrize(
    ("text", "found"),
    [("run:\n  name: ${oc.env:HOME}\n", r"\$\{oc\.env:HOME\}"), ("run: &a\n  name: x\nimports: [*a]\n", r"\*a")],
    ids=["variable", "alias"],
)
def test_a_saved_configuration_that_refers_to_other_values_is_refused(text: str, found: str) -> None:
    """What a run saves has none, and a folder from elsewhere must not read the environment's variables."""
    with pytest.raises(ConfigError, match=f"no references to other values; found {found}"):
        from_yaml(text)


def test_a_text_made_of_a_key_without_a_value_names_both_keys() -> None:
    with pytest.raises(
        ConfigError, match=r"model\.path=\$\{sft\.folder\}_untrained/hf is made of sft\.folder, which is"
    ):
        load_config(None, ["model=tiny"])
    assert load_config(None, ["model=tiny", "sft.folder=warm"]).model.path == "warm_untrained/hf"
    assert load_config(None, [MODEL, "sft.folder=${eval.max_tasks}"]).sft.folder is None  # the value itself


def test_a_text_may_be_made_of_a_key_beside_it(tmp_path: Path) -> None:
    recipe = tmp_path / "base.yaml"
    text = "defaults: [agent_r1, {algorithm: grpo}, _self_]\nmodel: {path: '%s/hf'}\nsft: {folder: %s}\n"
    recipe.write_text(text % ("${..sft.folder}", "warm"))
    assert load_config(tmp_path).model.path == "warm/hf"
    recipe.write_text(text % ("${..sft.folder}", "null"))
    with pytest.raises(ConfigError, match=r"model\.path=.* is made of sft\.folder, which is null; set sft\.folder"):
        load_config(tmp_path)
