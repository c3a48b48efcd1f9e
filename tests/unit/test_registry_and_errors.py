"""Names, recipe folders, the error tree, seeds, and what importing the package costs."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from contextlib import chdir
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agent_r1
from agent_r1 import errors
from agent_r1.errors import (
    AgentR1Error,
    ConfigError,
    DataError,
    EpisodeError,
    MissingExtraError,
    UnknownNameError,
    boundary,
    did_you_mean,
    report_problems,
)
from agent_r1.registry import Registry, load_object, recipe_folder
from agent_r1.seeds import mix_seed, unit_float
from agent_r1.types import Completion, Observation, Step, StopReason, Trajectory
from tests.helpers.fuzzing import cases

ROOT = Path(__file__).parents[2]


def shapes() -> Registry[Any]:
    registry: Registry[Any] = Registry("shape")
    registry.add("circle", int)
    registry.add("square", str)
    return registry


def recipe(folder: Path, **files: str) -> Path:
    """A recipe folder with the given files; `a__b` is the file b of the folder a."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def load_from(folder: Path | None, reference: str) -> Any:
    with recipe_folder(folder):
        return load_object(reference, kind="reward function")


# Names


def test_registered_things_are_found_by_name() -> None:
    registry = shapes()

    @registry.register("dot")
    class Dot:
        pass

    assert registry.get("dot") is Dot
    assert registry.names() == ["circle", "dot", "square"]


def test_unknown_name_lists_what_exists_and_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        shapes().get("sqare")
    assert str(caught.value) == (
        "unknown shape 'sqare'. Did you mean 'square'? Known: circle, square. "
        "Or point to your own with module:attribute."
    )


def test_name_with_a_colon_is_refused() -> None:
    with pytest.raises(ConfigError, match="may not contain ':', found 'a:b'"):
        shapes().add("a:b", int)


def test_name_taken_by_another_thing_is_refused_and_the_first_stays() -> None:
    registry = shapes()
    with pytest.raises(ConfigError, match=r"the shape name 'circle' is taken by .*int.*; choose another for .*float"):
        registry.add("circle", float)
    assert registry.get("circle") is int


def test_same_thing_may_be_registered_again() -> None:
    registry = shapes()
    registry.add("circle", int)
    assert registry.get("circle") is int


def test_thing_of_a_file_that_is_loaded_again_replaces_itself(tmp_path: Path) -> None:
    registry = shapes()
    folder = recipe(tmp_path, drawing="class Dot:\n    pass\n")
    first = load_from(folder, "drawing:Dot")
    registry.add("dot", first)
    importlib.reload(sys.modules[first.__module__])
    again = load_from(folder, "drawing:Dot")
    assert again is not first
    registry.add("dot", again)
    assert registry.get("dot") is again


def test_module_and_attribute_is_found_without_a_name() -> None:
    assert shapes().get("math:pi") == pytest.approx(3.14159265)


@pytest.mark.parametrize("reference", ["math:", ":pi", ":"])
def test_half_a_reference_is_refused(reference: str) -> None:
    with pytest.raises(UnknownNameError, match="expected module:attribute"):
        load_object(reference, kind="number")


def test_missing_module_and_missing_attribute_say_so() -> None:
    with pytest.raises(UnknownNameError, match="there is no module 'no_such_module'"):
        load_object("no_such_module:x", kind="number")
    with pytest.raises(UnknownNameError, match=r"there is no module 'json\.no_such_part'"):
        load_object("json.no_such_part:x", kind="number")
    with pytest.raises(UnknownNameError, match=r"'math' has no 'sqr'\. Did you mean 'sqrt'"):
        load_object("math:sqr", kind="number")


@pytest.mark.parametrize(
    ("name", "known", "text"),
    [
        ("grop", ["ppo", "grpo"], "Did you mean 'grpo'? Known: grpo, ppo."),
        ("zzz", ["ppo", "grpo", "ppo"], "Known: grpo, ppo."),
        ("x", [], "Known: none."),
    ],
)
def test_hint_names_the_nearest_and_everything_there_is(name: str, known: list[str], text: str) -> None:
    assert did_you_mean(name, known) == text


# Recipe folders


def test_two_recipes_with_files_of_the_same_name_do_not_collide(tmp_path: Path) -> None:
    a = recipe(tmp_path / "a", reward_fn="def score(): return 'a'\n")
    b = recipe(tmp_path / "b", reward_fn="def score(): return 'b'\n")
    found = [load_from(folder, "reward_fn:score")() for folder in (a, b, a)]
    assert found == ["a", "b", "a"]
    assert "reward_fn" not in sys.modules


def test_relative_imports_work_inside_a_recipe_folder(tmp_path: Path) -> None:
    folder = recipe(
        tmp_path,
        reward_fn="from .shop import PRICE\nfrom .parts.more import BONUS\ndef score(): return PRICE + BONUS\n",
        shop="PRICE = 7\n",
        parts____init__="",
        parts__more="from ..shop import PRICE\nBONUS = PRICE * 10\n",
    )
    assert load_from(folder, "reward_fn:score")() == 77
    assert load_from(folder, "parts.more:BONUS") == 70


def test_recipe_may_be_loaded_by_a_relative_path(tmp_path: Path) -> None:
    recipe(tmp_path / "mine", reward_fn="def score(): return 'mine'\n")
    with chdir(tmp_path):
        found = load_from(Path("mine"), "reward_fn:score")
    assert found is load_from(tmp_path / "mine", "reward_fn:score")


def test_file_of_the_recipe_comes_before_an_installed_module_and_only_inside_the_block(tmp_path: Path) -> None:
    folder = recipe(tmp_path, math="pi = 3\n")
    assert load_from(folder, "math:pi") == 3
    assert load_from(None, "math:pi") == pytest.approx(3.14159265)
    assert load_from(folder, "cmath:pi") == pytest.approx(3.14159265)


def test_recipe_folder_is_put_back_after_an_error(tmp_path: Path) -> None:
    recipe(tmp_path, tests_only_here="x = 1\n")
    with pytest.raises(RuntimeError, match="on purpose"), recipe_folder(tmp_path):
        raise RuntimeError("on purpose")
    with pytest.raises(UnknownNameError, match="no module 'tests_only_here'"):
        load_object("tests_only_here:x", kind="number")


def test_missing_recipe_file_says_where_was_looked(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_from(tmp_path, "reward_fn:score")
    assert f"looked in {tmp_path.resolve()} and among installed modules" in str(caught.value)


def test_recipe_that_needs_a_missing_module_names_that_module(tmp_path: Path) -> None:
    folder = recipe(tmp_path, reward_fn="import no_such_package\n")
    with pytest.raises(ConfigError, match="reward_fn needs the module 'no_such_package'"):
        load_from(folder, "reward_fn:score")


@pytest.mark.parametrize(("module", "extra"), [("PIL", "images"), ("bm25s", "search"), ("math_verify", "math")])
def test_recipe_that_needs_a_module_of_an_extra_names_the_extra(
    module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = {name for name in (module, *sys.modules) if name.partition(".")[0] == module}
    for name in hidden:
        monkeypatch.setitem(sys.modules, name, None)
    folder = recipe(tmp_path, reward_fn=f"import {module}\n")
    with pytest.raises(ConfigError, match=rf"needs the module '{module}': pip install 'agent-r1\[{extra}\]'$"):
        load_from(folder, "reward_fn:score")


def test_recipe_file_that_imports_its_neighbour_without_the_dot_is_told_about_the_dot(tmp_path: Path) -> None:
    folder = recipe(tmp_path, reward_fn="from prices import PRICES\n", prices="PRICES = {}\n")
    with pytest.raises(ConfigError, match=r"a file of the same folder: write `from \.prices import \.\.\.`"):
        load_from(folder, "reward_fn:score")


# Errors


@pytest.mark.parametrize(
    ("name", "standard"),
    [
        ("ConfigError", ValueError),
        ("DataError", ValueError),
        ("UnknownNameError", LookupError),
        ("MissingExtraError", ImportError),
        ("CheckpointError", RuntimeError),
        ("RunLockedError", RuntimeError),
        ("StorageError", OSError),
        ("EngineError", RuntimeError),
        ("DivergenceError", ArithmeticError),
        ("DeviceMemoryError", MemoryError),
        ("RolloutsFailingError", RuntimeError),
        ("EpisodeError", RuntimeError),
    ],
)
def test_every_error_is_also_the_standard_one_it_resembles(name: str, standard: type[Exception]) -> None:
    error = getattr(errors, name)
    assert issubclass(error, AgentR1Error)
    assert issubclass(error, standard)
    assert f"{name} ({standard.__name__})" in (errors.__doc__ or "")


def test_tree_in_the_docstring_is_complete() -> None:
    defined = {thing.__name__ for thing in vars(errors).values() if isinstance(thing, type)}
    public = {name for name in defined if name.endswith("Error")}
    assert public
    assert all(name in (errors.__doc__ or "") for name in public)


def test_missing_extra_has_the_pip_line() -> None:
    assert str(MissingExtraError("wandb", "wandb", "tracking with wandb")) == (
        "tracking with wandb needs the package 'wandb': pip install 'agent-r1[wandb]'"
    )


def test_boundary_turns_any_exception_into_an_episode_error_with_its_traceback() -> None:
    with pytest.raises(EpisodeError) as caught, boundary(StopReason.ENV_ERROR, "reset of Shop"):
        raise OSError("connection lost")
    error = caught.value
    assert (error.reason, error.where) == (StopReason.ENV_ERROR, "reset of Shop")
    assert str(error).startswith("reset of Shop failed (env_error):\nTraceback")
    assert "OSError: connection lost" in error.details
    assert isinstance(error.__cause__, OSError)


def test_inner_boundary_decides_the_reason() -> None:
    with (
        pytest.raises(EpisodeError) as caught,
        boundary(StopReason.FLOW_ERROR, "the flow"),
        boundary(StopReason.ENGINE_ERROR, "the engine"),
    ):
        raise OSError("connection lost")
    assert (caught.value.reason, caught.value.where) == (StopReason.ENGINE_ERROR, "the engine")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_boundary_lets_a_wish_to_stop_through(stop: type[BaseException]) -> None:
    with pytest.raises(stop), boundary(StopReason.ENV_ERROR, "reset"):
        raise stop


def test_boundary_does_nothing_when_all_is_well() -> None:
    with boundary(StopReason.ENV_ERROR, "reset"):
        value = 1
    assert value == 1


def test_problems_are_reported_together() -> None:
    report_problems([], DataError, "nothing wrong")
    with pytest.raises(DataError) as caught:
        report_problems(["a is wrong", "b is wrong"], DataError, "the data:")
    assert str(caught.value) == "the data:\n  - a is wrong\n  - b is wrong"


# Records


def test_stop_reasons_are_one_of_end_truncation_and_failure() -> None:
    assert {reason for reason in StopReason if reason.is_truncation} == {
        StopReason.MAX_STEPS,
        StopReason.MAX_TOKENS,
        StopReason.CONTEXT_FULL,
    }
    assert {reason for reason in StopReason if reason.is_failure} == {
        StopReason.TIMEOUT,
        StopReason.ENV_ERROR,
        StopReason.TOOL_ERROR,
        StopReason.ENGINE_ERROR,
        StopReason.REWARD_ERROR,
        StopReason.FLOW_ERROR,
        StopReason.AGENT_ERROR,
    }
    assert not StopReason.DONE.is_truncation
    assert not StopReason.DONE.is_failure


@pytest.mark.parametrize("given", [{}, {"text": "a", "token_ids": (1,)}, {"messages": (), "text": ""}])
def test_observation_is_given_in_exactly_one_way(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exactly one of messages, text, token_ids"):
        Observation(**given)


@pytest.mark.parametrize(("num_logprobs", "num_versions", "missing"), [(1, 2, "1 log-probs"), (2, 0, "0 policy")])
def test_step_needs_a_log_prob_and_a_version_for_each_action_id(
    num_logprobs: int, num_versions: int, missing: str
) -> None:
    with pytest.raises(ValueError, match=f"2 action ids but {missing}"):
        Step(
            observation=Observation(token_ids=(1,)),
            prompt_ids=(1,),
            action=agent_r1.Action(text=""),
            action_ids=(2, 3),
            rollout_logprobs=(-0.5,) * num_logprobs,
            reward=0.0,
            done=True,
            policy_versions=(0,) * num_versions,
        )


@pytest.mark.parametrize("record", [Observation, Step, Trajectory, Completion, agent_r1.Task, agent_r1.Action])
def test_records_are_frozen_and_keyword_only(record: type) -> None:
    parameters: Any = record.__dataclass_params__  # type: ignore[attr-defined]
    assert parameters.frozen
    assert all(field.kw_only for field in record.__dataclass_fields__.values())  # type: ignore[attr-defined]


# Seeds

PARTS = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4)


@settings(deadline=None, max_examples=cases(60))
@given(parts=PARTS)
def test_seed_is_63_bits_and_unit_float_is_below_one(parts: list[int]) -> None:
    assert 0 <= mix_seed(*parts) < 2**63
    assert mix_seed(*parts) == mix_seed(*parts)
    assert 0.0 <= unit_float(*parts) < 1.0


@settings(deadline=None, max_examples=cases(60))
@given(a=PARTS, b=PARTS)
def test_different_parts_give_different_seeds(a: list[int], b: list[int]) -> None:
    assert (mix_seed(*a) == mix_seed(*b)) == (a == b)


def test_neighbouring_parts_give_unrelated_seeds() -> None:
    grid = [unit_float(seed, step) for seed in range(64) for step in range(64)]
    assert len(set(grid)) == 4096
    # The standard error of the mean is 0.0045, of a tenth's share 0.0047.
    assert sum(grid) / 4096 == pytest.approx(0.5, abs=0.02)
    assert sum(value < 0.1 for value in grid) / 4096 == pytest.approx(0.1, abs=0.02)
    rises = sum(after > before for before, after in pairwise(grid))
    assert rises / 4095 == pytest.approx(0.5, abs=0.03)


# The package


def test_every_exported_name_resolves() -> None:
    for name in agent_r1.__all__:
        assert getattr(agent_r1, name) is not None
    assert dir(agent_r1) == sorted(agent_r1.__all__)
    assert list(agent_r1.__all__) == sorted(agent_r1.__all__)


def test_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'agent_r1' has no attribute 'tran'"):
        agent_r1.tran  # noqa: B018


@pytest.mark.parametrize("room", ["tools", "envs", "flows", "chat", "engines", "rewards", "rollout"])
def test_every_name_a_room_exports_resolves(room: str) -> None:
    module = importlib.import_module(f"agent_r1.{room}")
    assert all(hasattr(module, name) for name in module.__all__)


def in_a_fresh_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.whole
def test_writing_environments_and_running_rollouts_imports_no_torch() -> None:
    rooms = ("tools", "envs", "flows", "chat", "engines", "rewards", "rollout", "data", "evaluation")
    code = (
        "import sys, agent_r1\n"
        f"for room in {rooms}: __import__('agent_r1.' + room)\n"
        "agent_r1.tool, agent_r1.ToolEnv, agent_r1.ScriptedEngine\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'transformers', 'ray'}))"
    )
    assert in_a_fresh_process(code) == "[]"


def test_importing_the_package_takes_less_than_half_a_second() -> None:
    code = "import time\nstarted = time.perf_counter()\nimport agent_r1\nprint(time.perf_counter() - started)"
    assert min(float(in_a_fresh_process(code)) for _ in range(3)) < 0.5


@pytest.mark.parametrize("anchor", [[1, 2], 3])
def test_the_anchor_of_an_observation_is_text(anchor: Any) -> None:
    with pytest.raises(
        ValueError, match=r"the anchor of an Observation is text that names the state; got .*str\(\.\.\.\)"
    ):
        Observation(messages=(), anchor=anchor)
