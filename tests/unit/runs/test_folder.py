"""The layout of a run folder, and that what is written in it is strict JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from agent_r1.codec import read_json, write_json
from agent_r1.config import load_config, to_yaml
from agent_r1.errors import ConfigError, DataError
from agent_r1.runs import RunFolder, read_trajectories, write_trajectories
from agent_r1.types import Action, Group, Observation, Step, StopReason, Task, Trajectory

CONFIG = load_config(None, ["model.path=org/base", "run.folder=elsewhere", "run.name=mine"])


def test_the_folder_of_a_configuration_is_its_name_below_its_folder() -> None:
    assert RunFolder.of(CONFIG).path == Path("elsewhere/mine")


def test_the_run_that_exported_a_model_is_found_from_the_model(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.model.mkdir(parents=True)
    assert RunFolder.of_model(run.model) is None
    run.config.write_text(to_yaml(CONFIG))
    exporter = RunFolder.of_model(run.model)
    assert exporter is not None
    assert exporter.read_config() == CONFIG
    assert RunFolder.of_model(run.checkpoints) is None


def test_warnings_are_kept_up_to_the_step_that_a_run_resumes_from(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.read_warnings() == []
    for step in (1, 2, 3):
        run.add_warning(step, "no spread", f"nothing is learned in {step}\n\u2028")
    with run.warnings.open("a") as file:
        file.write('{"step": 3, "ru')
    assert [warning["step"] for warning in run.read_warnings()] == [1, 2, 3]
    run.rewind(2)
    assert run.read_warnings()[-1] == {"step": 2, "rule": "no spread", "text": "nothing is learned in 2\n\u2028"}
    assert len(run.warnings.read_text().splitlines()) == 2


def test_a_missing_configuration_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml cannot be read"):
        RunFolder(tmp_path).read_config()


def test_a_summary_has_no_nan(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_summary({"steps": 3, "metrics": {"eval/all/greedy": float("nan"), "eval/all/rows": 2.0}})
    assert read_json(run.summary.read_text())["metrics"] == {"eval/all/greedy": None, "eval/all/rows": 2.0}
    assert run.read_summary() == {"steps": 3, "metrics": {"eval/all/greedy": None, "eval/all/rows": 2.0}}


def one_group(info: Mapping[str, Any]) -> Group:
    step = Step(
        observation=Observation(text="?"),
        prompt_ids=(1, 2),
        action=Action(text="x"),
        action_ids=(3,),
        rollout_logprobs=(-0.5,),
        reward=0.0,
        done=True,
        policy_versions=(0,),
        info=info,
    )
    trajectory = Trajectory(
        task_id="t", group_id=0, member=0, steps=(step,), outcome_reward=1.0, stop_reason=StopReason.DONE, vote="x"
    )
    task = Task(task_id="t", prompt=({"role": "user", "content": "?"},))
    return Group(task=task, group_id=0, trajectories=(trajectory,))


def test_trajectories_have_no_nan_and_can_be_read_back(tmp_path: Path) -> None:
    group = one_group({"distance": float("inf"), "seen": b"\x00\x01", "board": MappingProxyType({"a": 1})})
    file = tmp_path / "1.jsonl"
    write_trajectories(file, [group], policy_step=0)
    assert read_json(file.read_text())["steps"][0]["info"] == {"distance": None, "seen": "<2 bytes>", "board": {"a": 1}}
    [read] = read_trajectories(file)
    assert (read.vote, read.steps[0].action_ids) == ("x", (3,))


def test_json_is_written_as_python_writes_it_where_all_numbers_are_finite() -> None:
    value = {"a": [1, 2.5, None, True, "ä"], "b": {"c": (1, 2)}}
    assert write_json(value) == json.dumps(value)
    assert write_json({"a": [float("-inf"), MappingProxyType({"b": float("nan")})]}) == '{"a": [null, {"b": null}]}'
    with pytest.raises(TypeError, match="object cannot be written"):
        write_json({"a": object()})


@pytest.mark.whole
def test_reading_runs_needs_no_torch() -> None:
    code = "import sys, agent_r1.runs; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((), ["x"], "the line must be an object"),
        (("outcome_reward",), "1", "outcome_reward must be a finite number, got str"),
        (("outcome_reward",), None, "outcome_reward must be a finite number"),
        (("reward_parts",), {"success": [1]}, r"reward_parts\.success must be a finite number, got list"),
        (("prompt",), ["hello"], r"prompt\[0\] must be an object"),
        (("group_id",), 0.5, "group_id must be a whole number"),
        (("steps",), {}, "steps must be a list"),
        (("steps", 0, "reward"), float("nan"), r"steps\[0\]\.reward must be a finite number"),
        (("steps", 0, "action_ids"), [3, "x"], r"steps\[0\]\.action_ids\[1\] must be a whole number"),
        (("steps", 0, "tool_calls"), [{"name": 1}], r"steps\[0\]\.tool_calls\[0\]\.name must be text"),
        (("stop_reason",), "bored", "'bored' is not a valid StopReason"),
    ],
)
def test_a_damaged_line_names_its_number_and_what_is_wrong(
    tmp_path: Path, place: tuple[Any, ...], value: Any, message: str
) -> None:
    file = tmp_path / "1.jsonl"
    write_trajectories(file, [one_group(MappingProxyType({}))], policy_step=0)
    line = json.loads(file.read_text())
    inner = line
    for key in place[:-1]:
        inner = inner[key]
    if place:
        inner[place[-1]] = value
    file.write_text(json.dumps(line if place else value) + "\n")
    with pytest.raises(DataError, match=rf"1\.jsonl, line 1: not a trajectory \(.*{message}"):
        list(read_trajectories(file))


def test_a_line_that_is_nested_too_deeply_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "1.jsonl"
    file.write_text("[" * 200_000 + "\n")
    with pytest.raises(DataError, match=r"line 1: not a trajectory \(RecursionError"):
        list(read_trajectories(file))
