"""The public Python API: what it exports, what it accepts, what it logs."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import subprocess
import sys
from collections import UserDict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import pandas
import pytest

import agent_r1
from agent_r1 import Action, AgentEnv, Episode, Observation, StepResult, Task, load_config
from agent_r1.api import resolve
from agent_r1.data import load_tasks, row_files
from agent_r1.errors import ConfigError, DataError
from agent_r1.rewards import reward_functions
from agent_r1.tools import BaseTool, ToolResponse
from agent_r1.tools.base import ToolResult
from tests.helpers.tiny_runs import RECIPE, tiny_overrides

SIMPLE = [{"question": "2+2?", "answer": 4, "level": 1}, {"prompt": "3+3?", "answer": "6"}]
MODEL = "model.path=somewhere"


def correct(task: Task, episode: Episode) -> float:
    return 1.0


def format_ok(task: Task, episode: Episode) -> dict[str, float]:
    return {"score": 0.5, "brackets": 2.0}


def variety(task: Task, episode: Episode) -> float:
    """Differs from member to member, so that there is something to learn."""
    return len(set(episode.steps[-1].action_ids)) / 8


def one_argument(episode: Episode) -> float:
    return 1.0


def three_arguments(task: Task, episode: Episode, answer: str) -> float:
    return 1.0


class Nameless(BaseTool):
    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        return ToolResponse(text="x"), None, {}


class Flat(Nameless):
    name = "flat"
    tool_schema: ClassVar[dict[str, Any]] = {"name": "flat"}


class Counter(Nameless):
    name = "counter_of_the_api_test"
    tool_schema: ClassVar[dict[str, Any]] = {
        "type": "function",
        "function": {"name": name, "description": "Counts.", "parameters": {}},
    }


# --- importing -------------------------------------------------------------------------------------------------------


def test_importing_the_package_is_fast_and_needs_no_torch() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import agent_r1; seconds = time.perf_counter() - start\n"
        "print(seconds, 'torch' in sys.modules)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    results = [run.stdout.split() for run in runs]
    assert {has_torch for _, has_torch in results} == {"False"}
    assert min(float(seconds) for seconds, _ in results) < 0.5


def test_every_exported_name_exists_and_is_typed() -> None:
    names = set(agent_r1.__all__)
    assert {"train", "evaluate", "check", "replay", "sft", "demonstrate"} < names
    assert {"Config", "load_config", "load_trajectories"} < names
    assert {"RewardFunction", "Group", "SamplingParams", "Completion", "ToolCall"} < names
    assert all(getattr(agent_r1, name) is not None for name in names)
    assert dir(agent_r1) == sorted(names)


ON_RECIPES = [agent_r1.train, agent_r1.evaluate, agent_r1.sft, agent_r1.demonstrate, agent_r1.check]
ON_RUNS = [agent_r1.evaluate_run, agent_r1.replay]


@pytest.mark.parametrize("function", [*ON_RECIPES, *ON_RUNS])
def test_every_argument_of_a_public_function_is_typed_and_documented(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    _, *others = parameters
    expected = ["run"] if function in ON_RUNS else ["config_or_recipe", "model", "data", "eval_data"]
    assert list(parameters)[: len(expected)] == expected
    assert all(parameter.annotation is not parameter.empty for parameter in parameters.values())
    assert [name for name in parameters if f"        {name}: " not in (function.__doc__ or "")] == []
    assert {parameters[name].kind for name in others} == {inspect.Parameter.KEYWORD_ONLY}


# --- configuration ---------------------------------------------------------------------------------------------------


def test_overrides_may_be_texts_or_a_mapping() -> None:
    texts = load_config(RECIPE, ["trainer.steps=3", "algorithm=ppo", "eval.max_tasks=null", "env.tools=[price]"])
    mapping = {"trainer.steps": 3, "algorithm": "ppo", "eval.max_tasks": None, "env.tools": ["price"]}
    assert load_config(RECIPE, mapping) == texts


def test_one_text_instead_of_a_list_of_overrides_is_refused() -> None:
    with pytest.raises(ConfigError, match="give a list"):
        load_config(RECIPE, "trainer.steps=3")


def test_a_configuration_can_be_changed_and_passed_on_with_its_recipe() -> None:
    config = load_config(RECIPE, {"algorithm": "steppo"})
    config.trainer.steps = 7
    again = resolve(config, overrides={"trainer.seed": 3})
    assert (again.trainer.steps, again.trainer.seed, again.recipe) == (7, 3, str(RECIPE))
    assert again.algorithm == config.algorithm


def test_a_preset_replaces_the_whole_algorithm_of_a_configuration() -> None:
    assert load_config(load_config(RECIPE, ["algorithm=steppo"]), ["algorithm=grpo"]) == load_config(RECIPE)


# --- rows ------------------------------------------------------------------------------------------------------------


def rows_in(tmp_path: Path, rows: Any) -> list[Task]:
    config = resolve(data=rows, overrides=[MODEL, f"run.folder={tmp_path}"])
    return load_tasks(config.data.train)


def test_simple_rows_have_a_question_and_an_answer(tmp_path: Path) -> None:
    first, second = rows_in(tmp_path, SIMPLE)
    assert first.prompt == ({"role": "user", "content": "2+2?"},)
    assert (first.ground_truth, dict(first.extra_info)) == (4, {"level": 1})
    assert second.ground_truth == "6"


def test_simple_rows_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in SIMPLE))
    assert [task.ground_truth for task in load_tasks([tmp_path / "rows.jsonl"])] == [4, "6"]


def test_an_answer_beside_a_reward_model_is_not_the_ground_truth(tmp_path: Path) -> None:
    [task] = rows_in(tmp_path, [{"prompt": "?", "answer": "a long text", "reward_model": {"ground_truth": "4"}}])
    assert task.ground_truth == "4"


def test_tasks_come_back_as_they_were(tmp_path: Path) -> None:
    tasks = [
        Task(task_id="a", prompt=({"role": "user", "content": "?"},), env_kwargs={"prices": {"tea": 4}}),
        Task(task_id="b", prompt=({"role": "user", "content": "!"},), reward_model={"ground_truth": [1, 2]},
             agent_name="single_step", data_source="s", extra_info={"n": 1}, control_tokens=True),
    ]  # fmt: skip
    assert rows_in(tmp_path, tasks) == tasks


class Dataset:
    """As `datasets.Dataset`: no list, its rows are mappings."""

    def __iter__(self) -> Any:
        yield from (UserDict(row) for row in SIMPLE)


def test_anything_that_yields_mappings_is_data(tmp_path: Path) -> None:
    assert [task.ground_truth for task in rows_in(tmp_path, Dataset())] == [4, "6"]


def test_numbers_and_arrays_of_numpy_are_plain_numbers(tmp_path: Path) -> None:
    import numpy

    [task] = rows_in(tmp_path, [{"prompt": "?", "answer": numpy.int64(4), "scores": numpy.array([1.5, 2.0])}])
    assert (task.ground_truth, task.extra_info["scores"]) == (4, [1.5, 2.0])


def test_the_same_rows_are_the_same_file_and_other_rows_another(tmp_path: Path) -> None:
    def file_of(rows: Any) -> list[str]:
        return resolve(data=rows, overrides=[MODEL, f"run.folder={tmp_path}"]).data.train

    assert file_of(SIMPLE) == file_of(Dataset()) != file_of(SIMPLE[:1])


def test_files_stay_as_they_are(tmp_path: Path) -> None:
    config = resolve(data=["a.jsonl", Path("b.jsonl")], eval_data="c d.jsonl", overrides=[MODEL])
    assert (config.data.train, config.data.eval) == (["a.jsonl", "b.jsonl"], ["c d.jsonl"])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"train": SIMPLE}, r"one split of a data set: data=dataset\['train'\]"),
        ([1, 2], "row 0 is a int: a row is a mapping or a Task"),
        ([{"prompt": "?", "answer": {1, 2}}], r"row 0\.answer is a set, which JSON does not have"),
        ([], "there are no rows"),
    ],
)
def test_rows_that_are_none_are_refused_with_their_number(tmp_path: Path, rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        rows_in(tmp_path, rows)


# --- rewards ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reward", [[correct, (format_ok, 0.2)], {"correct": correct, "format_ok": (format_ok, 0.2)}])
def test_several_rewards_stand_in_the_configuration_with_their_weights(reward: Any) -> None:
    config = resolve(RECIPE, reward=reward)
    assert [(part.name, part.weight) for part in config.reward.functions] == [("correct", 1.0), ("format_ok", 0.2)]


def test_a_mapping_names_rewards_that_have_no_name() -> None:
    resolve(RECIPE, reward={"short": lambda task, episode: 0.0})
    other = resolve(RECIPE, reward={"short": lambda task, episode: 1.0, "long": (correct, -1)})
    assert [(part.name, part.weight) for part in other.reward.functions] == [("short", 1.0), ("long", -1.0)]
    with pytest.raises(ConfigError, match=r"needs a name.*reward=\{'correct'"):
        resolve(RECIPE, reward=lambda task, episode: 0.0)


def test_a_reward_given_as_an_object_cannot_take_the_name_of_one_of_the_library() -> None:
    before = reward_functions.get("exact_match")
    with pytest.raises(ConfigError, match="'exact_match' is taken"):
        resolve(RECIPE, reward={"exact_match": correct})
    assert reward_functions.get("exact_match") is before


# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path, model_folder: Path) -> list[str]:
    return tiny_overrides(tmp_path, model_folder)[1:]


def shop_rows(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]


@pytest.mark.whole
def test_a_run_on_rows_given_as_objects_is_resumed_and_logs_each_reward_by_name(
    tmp_path: Path, small: list[str], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = shop_rows(tmp_path)
    rewards = {"variety": variety, "format": (format_ok, 0.2)}

    def run(steps: int, given: list[dict[str, Any]]) -> int:
        overrides = [*small, f"trainer.steps={steps}"]
        return agent_r1.train(RECIPE, data=given, reward=rewards, overrides=overrides, quiet=True).steps

    with caplog.at_level(logging.INFO, logger="agent_r1"):
        assert (run(1, rows), run(2, rows)) == (1, 2)
    assert capsys.readouterr().out == ""
    logged = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("step 1/1") for line in logged)
    assert any(line.startswith("resuming from step 1") for line in logged)
    metrics = [json.loads(line) for line in (tmp_path / "tiny" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [1, 2]
    for line in metrics:
        assert line["reward/outcome"] == pytest.approx(line["reward/variety"] + 0.2 * line["reward/format"])
        assert line["reward/format/brackets"] == 2.0
    assert [t.reward_parts["format"] for t in agent_r1.load_trajectories(tmp_path / "tiny", step=2)] == [0.5] * 8
    assert len(agent_r1.load_trajectories(tmp_path / "tiny")) == 16
    fingerprints = json.loads((tmp_path / "tiny" / "fingerprints.json").read_text())
    assert [name for name in fingerprints if name.startswith(f"data.train {tmp_path}/.data/train-")]
    run(2, rows[:4])  # other rows are another run
    assert (tmp_path / "tiny.1").is_dir()


def test_trajectories_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no trajectories"):
        agent_r1.load_trajectories(tmp_path)


@pytest.mark.whole
def test_train_evaluate_check_and_sft_work_in_a_running_loop(tmp_path: Path, small: list[str]) -> None:
    data = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()][:2]
    said = [{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "4"}]}] * 2

    async def cell() -> list[Any]:
        run: dict[str, Any] = {"data": data, "reward": variety, "overrides": [*small, "trainer.steps=1"], "quiet": True}
        return [
            agent_r1.train(RECIPE, **run).steps,
            agent_r1.evaluate(RECIPE, **run).metrics["eval/all/rows"],
            agent_r1.check(RECIPE, **run, trials=False).results[0].status,
            agent_r1.sft(RECIPE, **run, demonstrations=said),
        ]

    steps, rows, status, folder = asyncio.run(cell())
    assert (steps, rows, status) == (1, 2.0, "ok")
    assert (folder / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"reward": 5}, "reward must be a function, its name, a list or a mapping of them, found 5"),
        ({"reward": (correct, 0.2)}, r"reward holds 0.2, .* reward=\[correct, \(format_ok, 0.2\)\]"),
        ({"reward": {"my reward": correct}}, "a reward function is named 'my reward'; a name is letters, digits and _"),
        (
            {"reward": one_argument},
            r"'one_argument' is a function of \(episode\); expected a function of a task and an",
        ),
        ({"reward": three_arguments}, r"is a function of \(task, episode, answer\); expected a function of a task and"),
        ({"env": dict}, "env is the class dict, which is no subclass of AgentEnv. A Gymnasium environment is given by"),
        ({"tools": [5]}, "a tool is a function or an object of a subclass of BaseTool, found 5"),
        ({"tools": [Nameless]}, "the tool class Nameless has no name; set the attribute: name = 'price'"),
        ({"tools": [Nameless()]}, "the tool class Nameless has no name; set the attribute: name = 'price'"),
        ({"tools": [Flat()]}, r"tool 'flat' has the tool_schema {'name': 'flat'}; it must have the form"),
        ({"tools": [partial(print, 1)]}, "a tool needs a name, which functools.partial"),
        ({"tools": 5}, "tools must be a list of tools, functions or names, found 5"),
        ({"tools": [int]}, "a tool is a function or an object of a subclass of BaseTool, found <class 'int'>"),
        ({"reward": [(correct,)]}, "a reward with a weight is a pair such as"),
        ({"reward": {"a": (correct, "x")}}, "a reward with a weight is a pair such as"),
        ({"env": 5}, "env must be an environment class or a name such as 'gym:FrozenLake-v1', found 5"),
        ({"model": 5}, "model must be a folder, an id or a GGUF file, found 5"),
        ({"config_or_recipe": 5}, "a recipe is a folder, the name of one, or a Config, found 5"),
        ({"overrides": 5}, r"overrides must be a list such as \['trainer.steps=20'\], or a mapping, found 5"),
        ({"overrides": [5]}, "an override is a text such as 'trainer.steps=20', found 5"),
        ({"tools": "calculate"}, "tools='calculate' is one text; give a list"),
    ],
)
def test_parts_of_a_wrong_type_are_refused_in_words(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(**{"overrides": {"model.path": "MODEL"}, **parts})


def test_a_tool_class_is_instantiated_for_every_episode() -> None:
    config = resolve(overrides={"model.path": "MODEL"}, tools=[Counter])
    [entry] = config.env["tools"]
    (first,), (second,) = BaseTool.find(entry), BaseTool.find(entry)
    assert (type(first), type(second)) == (Counter, Counter)
    assert first is not second


def test_data_of_a_wrong_type_is_refused_in_words(tmp_path: Path) -> None:
    for rows in (5, True, b"rows.jsonl", print):
        with pytest.raises(DataError, match=r"^eval data must be a file, a list of files, or rows .* found "):
            row_files(cast(Any, rows), tmp_path, "eval")
    with pytest.raises(DataError, match=r"^train data must be a file"):
        resolve(overrides=[MODEL, f"run.folder={tmp_path}"], data=cast(Any, 5))


class _Sized(AgentEnv):
    """An environment with an argument, which may be too much for it."""

    def __init__(self, size: int) -> None:
        if size > 3:
            raise OSError(f"no room for {size}")

    async def reset(self, task: Task) -> Observation:
        return Observation(messages=task.prompt)

    async def step(self, action: Action) -> StepResult:
        return StepResult(observation=None, done=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "environment '_Sized' needs env.size, and the configuration does not give it"),
        ({"env.size": 4}, r"the environment of task '.*' cannot be made \(OSError: no room for 4\)"),
    ],
)
def test_an_environment_that_cannot_be_made_is_named_before_the_run(
    model_folder: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    overrides = {"run.folder": str(tmp_path), **settings}
    with pytest.raises(ConfigError, match=message):
        agent_r1.train(model=model_folder, data=SIMPLE, env=_Sized, reward="none", overrides=overrides, quiet=True)


def test_a_data_frame_of_pandas_is_rows_without_its_missing_values(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "2+2?"}]
    frame = pandas.DataFrame([{"prompt": prompt, "answer": "4"}, {"prompt": prompt, "level": 2.5}])
    [file] = row_files(cast(Any, frame), tmp_path, "train")
    first, second = load_tasks([file])
    assert (first.ground_truth, first.extra_info) == ("4", {"level": None})
    assert (second.ground_truth, second.extra_info) == (None, {"level": 2.5})


def test_a_data_frame_of_polars_is_rows(tmp_path: Path) -> None:
    class Frame:
        def to_dicts(self) -> list[dict[str, Any]]:
            return SIMPLE

        def __iter__(self) -> Iterator[str]:
            return iter(("question", "answer"))

    assert row_files(cast(Any, Frame()), tmp_path, "train") == row_files(SIMPLE, tmp_path, "train")


def test_a_data_set_that_gives_every_row_every_key_names_no_environment_and_no_tools(tmp_path: Path) -> None:
    rows = [{"prompt": "2+2?", "env_kwargs": {"env": None, "tools": None, "seed": None}}]
    [task] = load_tasks(row_files(rows, tmp_path, "train"))
    assert task.env_kwargs == {"seed": None}


def test_a_module_that_starts_a_run_when_it_is_imported_is_named(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "starts_a_run.py").write_text("import agent_r1\nagent_r1.train(reward='starts_a_run:score')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="the module 'starts_a_run' starts a run while a run imports it") as caught:
        agent_r1.train(model=model_folder, data=SIMPLE, reward="starts_a_run:score", quiet=True)
    assert "if __name__ == '__main__':" in str(caught.value)


def test_a_line_that_is_no_trajectory_is_named(tmp_path: Path) -> None:
    for line in (b'{"broken', b"\xff", b"[]", b"null", b"{}"):
        (tmp_path / "1.jsonl").write_bytes(line + b"\n")
        with pytest.raises(DataError, match=r"1\.jsonl, line 1: not a trajectory"):
            agent_r1.load_trajectories(tmp_path / "1.jsonl")
