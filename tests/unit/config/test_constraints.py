"""Values that a key or an argument does not take are refused before a run, and so are values that nothing can use."""

from __future__ import annotations

import inspect
import json
import math
import types
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from torch import Tensor
from typer.testing import CliRunner

from agent_r1.algorithms import aggregations, corrections, estimators, kl_estimators, policy_losses
from agent_r1.cli import app
from agent_r1.codec.strict_json import read_json, write_json
from agent_r1.config import Config, load_config, value_problems
from agent_r1.constraints import (
    MAX_NESTING,
    Count,
    Fraction,
    argument_problems,
    field_problems,
    reward_problem,
    unusable_parts,
)
from agent_r1.envs import AgentEnv, as_step_result, context_policies, env_wrappers
from agent_r1.errors import ConfigError
from agent_r1.models.load import choose_device
from agent_r1.registry import Registry, recipe_folder
from agent_r1.rewards import NORMALISATIONS
from agent_r1.runs.tracking import NOT_FINITE, JsonlTracker
from agent_r1.tools import BaseTool
from agent_r1.tools.results import as_result
from agent_r1.training.plan import make_plan
from agent_r1.types import StepResult
from tests.helpers.commands import resolve
from tests.helpers.tiny_runs import tiny_overrides

RECIPE = Path(__file__).parents[3] / "recipes" / "quickstart"


def leaves(schema: Any = Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of the schema with their annotations."""
    hints = typing.get_type_hints(schema, include_extras=True)
    for entry in fields(schema):
        key, hint = f"{prefix}{entry.name}", hints[entry.name]
        yield from leaves(hint, f"{key}.") if is_dataclass(hint) else [(key, hint)]


def number_of(hint: Any) -> type | None:
    """int or float when the annotation is a number, or null or a number."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for option in options:
        kind = typing.get_args(option)[0] if typing.get_origin(option) is Annotated else option
        if kind in (int, float):
            return kind
    return None


def refused(hint: Any, value: Any) -> bool:
    def holder(argument: Any) -> None: ...

    holder.__annotations__ = {"argument": hint}
    return bool(list(argument_problems(holder, {"argument": value})))


NUMBERS = [(key, hint) for key, hint in leaves() if number_of(hint) is not None]


@pytest.mark.parametrize(("key", "hint"), NUMBERS, ids=[key for key, _ in NUMBERS])
def test_every_number_of_the_schema_has_a_range(key: str, hint: Any) -> None:
    odd: list[Any] = [-1, -1.0, 10**12, 1e12] if number_of(hint) is int else [-1.0, -1e-9, 0.0]
    assert any(refused(hint, value) for value in odd), f"{key} takes any number: give its type a range"
    assert all(refused(hint, value) for value in (math.nan, math.inf, -math.inf, True, "1"))


def arguments_of_parts() -> Iterator[tuple[str, Any]]:
    registries: list[Registry[Any]] = [
        *(estimators, policy_losses, aggregations, corrections, kl_estimators),
        *(context_policies, env_wrappers, AgentEnv.registry, BaseTool.registry),
    ]
    for registry in registries:
        for name in registry.names():
            target = registry.get(name)
            if not target.__module__.startswith("agent_r1.") or not (
                inspect.isclass(target) or inspect.isfunction(target)
            ):
                continue
            function = target.__init__ if inspect.isclass(target) else target
            for argument, hint in typing.get_type_hints(
                function, localns={"Tensor": Tensor}, include_extras=True
            ).items():
                if number_of(hint) is not None and argument != "return":
                    yield f"{registry.kind} {name}.{argument}", hint


PARTS = dict(arguments_of_parts())


@pytest.mark.parametrize("name", PARTS)
def test_every_number_that_a_part_takes_has_a_range(name: str) -> None:
    odd: list[Any] = [-1, 10**12] if number_of(PARTS[name]) is int else [-1.0]
    assert any(refused(PARTS[name], value) for value in odd), f"{name} takes any number: give its annotation a range"
    assert refused(PARTS[name], math.nan)


def test_parts_with_numbers_are_found() -> None:
    assert {"advantage estimator step_gae.lam", "policy loss clip.clip_low", "tool search.k"} <= set(PARTS)


@pytest.mark.whole
def test_defaults_and_every_recipe_keep_to_the_constraints() -> None:
    assert value_problems(load_config(None, ["model.path=x"])) == []
    for recipe in sorted(RECIPE.parent.iterdir()):
        if (recipe / "base.yaml").is_file():
            for algorithm in ("grpo", "ppo", "steppo"):
                assert value_problems(load_config(recipe, [f"algorithm={algorithm}", "model.path=x"])) == []


@pytest.mark.whole
@pytest.mark.parametrize("value", ["9" * 5000, "[" * 3000, "{a: {", "1e999"])
def test_value_that_breaks_the_reader_is_a_configuration_error(value: str) -> None:
    with pytest.raises(ConfigError):
        load_config(RECIPE, [f"trainer.steps={value}"])
    with pytest.raises(ConfigError):
        load_config(RECIPE, [f"algorithm.kl.target={value}", "trainer.steps=x"])


def test_number_that_no_float_holds_in_a_recipe_is_a_configuration_error(tmp_path: Path) -> None:
    body = f"model: {{path: x}}\nalgorithm: {{kl: {{target: {'9' * 400}}}}}\n"
    (tmp_path / "base.yaml").write_text(f"defaults: [agent_r1, {{algorithm: grpo}}, _self_]\n{body}")
    with pytest.raises(ConfigError):
        load_config(tmp_path)


def test_choices_are_those_that_the_code_knows() -> None:
    hints = dict(leaves())
    for name in NORMALISATIONS:
        assert not refused(hints["algorithm.process.normalisation"], name)
    for name in ("ground_truth", "observation"):
        assert not refused(hints["algorithm.critic.privileged"], name)
    assert refused(hints["algorithm.process.normalisation"], "min")


BAD_VALUES = [
    ("optimizer.learning_rate=nan", "optimizer.learning_rate=nan must be a finite number"),
    ("optimizer.learning_rate=inf", "optimizer.learning_rate=inf must be a finite number"),
    ("rollout.top_p=5", "rollout.top_p=5.0 must be at most 1"),
    ("optimizer.final_fraction=-3", "optimizer.final_fraction=-3.0 must be at least 0"),
    ("trainer.device=tpu", "trainer.device=tpu must be auto, cpu, cuda or cuda:N"),
    ("trainer.seed=-1", "trainer.seed=-1 must be at least 0"),
    ("trainer.steps=99999999999", "trainer.steps=99999999999 must be at most"),
    ("run.resume=maybe", "run.resume=maybe must be one of auto, never, must"),
    ("algorithm.process.normalisation=max", "must be one of none, return_max, group_std, running"),
    ("env.limits=5", "env.limits is a list"),
    ("env.limits=[5]", "env.limits is a list"),
    ("env.limits=[{name: time, seconds: soon}]", "env.limits.seconds=soon must be a number"),
    ("env.limits=[{name: steps, steps: 2.5}]", "env.limits.steps=2.5 must be a whole number"),
    ("env.tools=null", "env.tools"),
    ("env.tools=[5]", "env.tools"),
    ("env.tools=[{nme: price}]", "env.tools"),
    ("env.context=5", "env.context"),
    ("env.context={name: window, turns: 0}", "env.context.turns=0 must be at least 1"),
    ("env.name=null", "'env' needs a name"),
    ("env.tools=[{name: python, seconds: -1}]", "seconds=-1 must be at least 0.001"),
    ("env.tools=[{name: python, sandbox: none}]", "sandbox=none must be"),
    ("tools.price.timeout=nan", "tools.price.timeout is nan"),
    ("tools.price.timeout=1e400", "tools.price.timeout is inf"),
    ("tools.mcp=5", "tools.mcp=5 must name servers"),
    ("tools.mcp.shop.url=5", "tools.mcp.shop.url=5 must be text"),
    ("algorithm.loss.clip_low=-0.2", "algorithm.loss.clip_low=-0.2 must be more than 0"),
    ("algorithm.loss.dual_clip=0.5", "algorithm.loss.dual_clip=0.5 must be more than 1"),
    ("algorithm.estimator.normalise_std=5", "algorithm.estimator.normalise_std=5 must be true or false"),
    ("imports=['..']", "is not a module name"),
]


@pytest.mark.parametrize(("override", "message"), BAD_VALUES, ids=[override for override, _ in BAD_VALUES])
def test_bad_value_is_refused_before_a_model_is_loaded(
    tmp_path: Path, model_folder: Path, override: str, message: str
) -> None:
    recipe, config = resolve([*tiny_overrides(tmp_path, model_folder), override])
    with recipe_folder(recipe), pytest.raises(ConfigError) as caught:
        make_plan(config)
    assert message in str(caught.value)


def test_all_bad_values_are_reported_at_once(tmp_path: Path, model_folder: Path) -> None:
    extra = ["rollout.top_p=5", "trainer.device=tpu", "env.limits=5", "reward.function=math:pi"]
    recipe, config = resolve([*tiny_overrides(tmp_path, model_folder), *extra])
    with recipe_folder(recipe), pytest.raises(ConfigError) as caught:
        make_plan(config)
    for word in ("rollout.top_p", "trainer.device", "env.limits", "math:pi"):
        assert word in str(caught.value)


@pytest.mark.parametrize("gamma", [-0.1, 1.5, math.nan, "much", None, True])
def test_discounts_lie_between_0_and_1(gamma: Any) -> None:
    for name in ("step_gae", "token_gae", "step_group", "return_to_go", "token_return", "gigpo"):
        assert list(argument_problems(estimators.get(name), {"gamma": gamma}))


def test_path_that_no_file_system_takes_is_refused() -> None:
    for path in ("x" * 300, "/".join(["x" * 100] * 60)):
        assert any(
            "is not a path" in problem for problem in value_problems(load_config(RECIPE, [f"model.path={path}"]))
        )
    assert any("NUL" in problem for problem in value_problems(load_config(RECIPE, ["run.folder=a\0b"])))
    assert any("surrogate" in problem for problem in value_problems(load_config(RECIPE, ["run.folder=a\udce4b"])))


@pytest.mark.parametrize("arguments", [["--port", "99999"], ["--port", "-1"], ["--idle-seconds", "nan"]])
def test_option_outside_its_range_is_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["env", "serve", "tests.helpers.served_env:Echo", *arguments])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert choose_device("cuda:0").index == 0
    with pytest.raises(ConfigError, match="no device cuda:1: this machine has 1 GPUs"):
        choose_device("cuda:1")


# --- overrides as a shell passes them ---------------------------------------------------------------------------------

TEXTS = [
    *("/home/jürgen/m", "日本/模型", "a b", "a=b", "a,b", "it's", 'say "x"', "ends\\", "C:\\new", "007", "1e5", "true"),
    *("(a)", "a#b", "!x", "~/x", "a\nb", "[a]", "{a}", "a:b", "choice(1,2)", "100%", "?*|&;<>`", "\t x ", "😀"),
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_key_takes_every_character_as_it_stands(text: str) -> None:
    assert load_config(RECIPE, [f"model.path={text}"]).model.path == text


@pytest.mark.parametrize(
    ("value", "items"),
    [
        ("[/data/ä.jsonl,b]", ["/data/ä.jsonl", "b"]),
        ("['ä b',\"c,d\"]", ["ä b", "c,d"]),
        ("[ ü , x#y ]", ["ü", "x#y"]),
        ("[a:ö]", ["a:ö"]),
        ("[]", []),
    ],
)
def test_list_keeps_its_items(value: str, items: list[str]) -> None:
    assert load_config(RECIPE, [f"data.train={value}"]).data.train == items


def test_object_with_odd_characters_keeps_its_form() -> None:
    config = load_config(RECIPE, ["env.tools=[prüfe,{name: süche, index: /ä/b:c, k: 3, tags: [ö, 'x: y']}]"])
    assert config.env["tools"] == ["prüfe", {"name": "süche", "index": "/ä/b:c", "k": 3, "tags": ["ö", "x: y"]}]


def test_quotes_interpolation_and_null_mean_what_they_did() -> None:
    assert load_config(RECIPE, ["model.path='a b'"]).model.path == "a b"
    assert load_config(RECIPE, ["model.path=${run.name}/x"]).model.path == "quickstart/x"
    assert load_config(RECIPE, ["model.prepare=null"]).model.prepare is None
    assert load_config(RECIPE, ["env.depth=3"]).env["depth"] == 3


# --- rewards and metrics ----------------------------------------------------------------------------------------------


def test_reward_that_would_overflow_is_refused() -> None:
    assert reward_problem(-1e9) is None
    for value in (1e308, -1e10, math.nan, math.inf):
        assert reward_problem(value) is not None
    with pytest.raises(ValueError, match=r"1e\+308; rewards must be finite and at most 1e\+09"):
        as_step_result(StepResult(observation=None, reward=1e308, done=True))
    with pytest.raises(ValueError, match="rewards must be finite"):
        as_result(("5", 1e308))


def test_metrics_file_is_json_whatever_is_logged(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    tracker.log(1, {"reward/outcome": math.inf, "loss/policy": math.nan, "reward/success": 0.5})
    tracker.close()
    line = read_json((tmp_path / "metrics.jsonl").read_text())
    assert line == {"step": 1, "reward/success": 0.5, NOT_FINITE: 2.0}
    assert json.loads(write_json({"a": [math.nan, 1.0]})) == {"a": [None, 1.0]}


# --- values inside values ---------------------------------------------------------------------------------------------


def test_deep_nesting_is_found_without_recursion() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert list(unusable_parts(deep, "x")) == [f"x is nested more than {MAX_NESTING} levels deep"]


@pytest.mark.parametrize("value", [math.nan, "\ud800", b"x", 10**400, {1: 2}, {"\udfff": 1}, object()])
def test_value_that_json_cannot_hold_is_found_anywhere(value: Any) -> None:
    [problem] = unusable_parts({"a": [{"b": value}]}, "row")
    assert problem.startswith("row.a[0].b")


def test_values_of_json_are_usable() -> None:
    assert list(unusable_parts({"a": [1, 2.5, None, True, "ä\0", {"b": []}]}, "row")) == []


def test_a_function_of_ones_own_is_checked_by_its_annotations() -> None:
    def mine(table: Any, *, share: Fraction = 0.5, names: tuple[str, ...] = (), rounds: Count = 1) -> None: ...

    assert list(argument_problems(mine, {"share": 0, "names": ["a"], "rounds": 3})) == []
    assert [name for name, _ in argument_problems(mine, {"share": 2.0, "names": [1], "rounds": 0})] == [
        "share",
        "names",
        "rounds",
    ]


def test_annotations_that_cannot_be_read_are_not_checked() -> None:
    def mine(table: Any, *, share: float) -> None: ...

    mine.__annotations__["share"] = "NoSuchName"
    assert list(argument_problems(mine, {"share": "x"})) == []


def test_problem_names_key_value_and_choices() -> None:
    config = Config()
    config.trainer.packing = "no" * 100
    [problem] = [problem for problem in field_problems(config) if problem.startswith("trainer.packing")]
    assert problem.endswith("... must be one of trie, rows")
    assert len(problem) < 150
