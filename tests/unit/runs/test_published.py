"""Published results: what `agent-r1 table --export` writes, and the page that is made of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent_r1.cli import app
from agent_r1.config import load_config, to_yaml
from agent_r1.errors import DataError
from agent_r1.runs import (
    EvaluationRecord,
    RunFolder,
    publish_run,
    read_published,
    read_runs,
    write_evaluation,
    write_published,
)
from docs.generate.results import IMAGES, OLDER, PAGE, draw_pictures, results_page

TASKS = ["a", "b", "c", "d"]
SECRET = "/home/somebody/models"


def a_run(folder: Path, *overrides: str, after: list[float], before: tuple[float, ...] = (0, 0, 1, 0)) -> Path:
    """A finished run of the quickstart, with test rows of two data sources."""
    config = load_config("recipes/quickstart", [f"run.name={folder.name}", *overrides])
    config.model.path = f"{SECRET}/warm/hf"
    config.sft.folder = None
    run = RunFolder(folder)
    folder.mkdir(parents=True)
    run.config.write_text(to_yaml(config))
    lines = [
        {"step": step, "reward/success": step / 10, "time/step": 30.0, "perf/peak_gpu_gb": 10.0 + step, "other": 1.0}
        for step in (1, 2)
    ]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run.write_summary({"steps": 2, "algorithm": config.algorithm.preset, "base_model": f"{SECRET}/Tiny-1B"})
    for stage, solved in (("before", before), ("after", after)):
        write_evaluation(run.evaluation("test", stage), evaluation(solved))
    return folder


def evaluation(solved: Any) -> EvaluationRecord:
    calls = {"eval/all/tool_calls": 2.0, "eval/1_kind/tool_calls": 1.0, "eval/2_kinds/tool_calls": 3.0}
    own = {"eval/all/f1": 0.25, "eval/1_kind/f1": 0.5, "eval/2_kinds/f1": 0.0}
    return EvaluationRecord(
        split="test",
        model=f"{SECRET}/hf",
        step=2,
        tasks=TASKS,
        sources=["1_kind", "1_kind", "2_kinds", "2_kinds"],
        solved=list(solved),
        metrics={"eval/all/greedy": sum(solved) / 4, **calls, **own},
        intervals={},
    )


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of one algorithm, and the untrained model."""
    tmp_path = tmp_path_factory.mktemp("published")
    folder = tmp_path / "published"
    runs = [
        a_run(tmp_path / "runs" / f"grpo_{seed}", f"trainer.seed={seed}", "rollout.group_size=4", after=after)
        for seed, after in ((0, [1, 1, 1, 0]), (1, [1, 0, 1, 0]))
    ]
    react = tmp_path / "react.json"
    found = {
        "recipe": "recipes/quickstart",
        "overrides": [f"model.path={SECRET}/Tiny-1B", "rollout.max_tokens=64"],
        "model": None,
        "baseline": "react",
        "split": "test",
        "metrics": {"eval/all/greedy": 0.0, "eval/all/tool_calls": 0.5},
        "intervals": {},
        "tasks": TASKS,
        "sources": ["1_kind", "1_kind", "2_kinds", "2_kinds"],
        "solved": [0.0, 0.0, 0.0, 0.0],
    }
    react.write_text(json.dumps(found))
    words = ["table", *map(str, runs), str(react), "--export", str(folder)]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return folder


def test_a_published_run_has_its_tasks_its_curves_and_no_path_of_the_machine(published: Path) -> None:
    files = sorted(published.glob("*.json"))
    assert [file.name for file in files] == ["grpo_0.json", "grpo_1.json", "quickstart_react_Tiny-1B.json"]
    assert not [file for file in files if SECRET in file.read_text() or str(published.parent) in file.read_text()]
    run, other, react = read_published(published)
    assert (run.recipe, run.model, run.algorithm, run.seed, run.steps) == ("quickstart", "Tiny-1B", "grpo", 0, 2)
    assert (run.minutes, run.peak_gpu_gb, run.warm_start) == (1.0, 12.0, True)
    assert run.solved("before", "2_kinds") == {"c": 1, "d": 0}
    assert other.solved("after") == {"a": 1, "b": 0, "c": 1, "d": 0}
    assert run.curves == {"reward/success": [[1, 0.1], [2, 0.2]], "time/step": [[1, 30.0], [2, 30.0]]}
    assert run.commands == [
        "agent-r1 train recipes/quickstart run.name=grpo_0 algorithm=grpo rollout.group_size=4 model.path=Tiny-1B "
        "trainer.seed=0",
        "agent-r1 eval runs/grpo_0 --split test",
    ]
    assert react.commands == [
        "agent-r1 eval recipes/quickstart --baseline react --split test rollout.max_tokens=64 model.path=Tiny-1B"
    ]
    assert (react.baseline, react.before) == ("react", None)


def test_the_page_pools_seeds_and_compares_with_the_start_and_with_react(published: Path) -> None:
    page = results_page(published)
    section = page.partition("## quickstart, Tiny-1B")[2].partition(OLDER.read_text())[0]
    assert "**1_kind**, 2 test tasks" in section
    table = section.partition("**all**, 4 test tasks")[2]
    rows = {line.split(" | ")[0]: line.split(" | ") for line in table.splitlines() if line.startswith("| ")}
    # Seed 0 goes from 1 to 3 solved tasks of 4 and seed 1 from 1 to 2: differences (1, 0.5, 0, 0) per task.
    grpo = rows["| grpo"]
    assert grpo[1:3] == ["0, 1", "62.5 (15.6 - 100.0)"]
    assert grpo[3].startswith("+0.375 (")
    assert "p = " in grpo[3]
    assert grpo[4].startswith("+0.625 (")
    assert grpo[5:] == ["2", "2", "1.0", "12.0", "0.25 |"]
    assert rows["| warm start"][2] == "25.0 (4.6 - 69.9)"
    assert rows["| warm start"][4].startswith("+0.250")
    assert rows["| untrained (ReAct)"][2] == "0.0 (0.0 - 49.0)"
    assert "![quickstart, Tiny-1B: curves of training](images/results_quickstart_tiny_1b.png)" in section
    assert section.count("agent-r1 train recipes/quickstart") == 2
    assert "model.path=Tiny-1B \\\n        trainer.seed=1\n" in section
    assert not [line for line in section.splitlines() if len(line) > 150 and not line.startswith("|")]


@pytest.mark.whole
def test_the_curves_are_drawn_where_the_page_looks_for_them(published: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    [file] = draw_pictures(published, tmp_path)
    assert f"images/{file.name}" in results_page(published)
    assert file.stat().st_size > 5_000


def test_the_page_in_the_documentation_is_the_generated_one() -> None:
    """Otherwise: python -m docs.generate.results"""
    assert PAGE.read_text() == results_page()
    drawn = {
        line.partition("images/")[2].partition(")")[0] for line in results_page().splitlines() if "](images/" in line
    }
    assert not [name for name in drawn if not (IMAGES / name).is_file()]


def test_figures_of_the_older_protocol_are_marked_as_such() -> None:
    _, found, older = PAGE.read_text().partition("## Figures of the older protocol\n")
    assert found
    assert "Settings were chosen on the held-out rows" in older
    assert "| PPO, 40 steps | **59.6**" in older


def test_paths_in_the_folder_of_runs_are_no_changes(tmp_path: Path) -> None:
    moved = a_run(tmp_path / "grpo", f"run.folder={SECRET}", after=[1, 1, 1, 1])
    [run] = read_runs([moved])
    command = publish_run(run, model="Tiny-1B").commands[0]
    assert command == (
        "agent-r1 train recipes/quickstart run.name=grpo algorithm=grpo model.path=Tiny-1B trainer.seed=0"
    )


def test_a_model_that_the_recipe_makes_is_not_named_in_its_command(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "grpo", after=[1, 1, 1, 1])
    own = load_config("recipes/quickstart", ["run.name=grpo", f"run.folder={SECRET}"])
    RunFolder(folder).config.write_text(to_yaml(own))
    [run] = read_runs([folder])
    command = publish_run(run, model="tiny").commands[0]
    assert command == "agent-r1 train recipes/quickstart run.name=grpo algorithm=grpo trainer.seed=0"


def test_only_evaluations_with_the_settings_of_the_run_are_published(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "grpo", after=[1, 1, 1, 1])
    changed = replace(evaluation([0, 0, 0, 0]), settings=("rollout.max_steps=8",))
    for stage in ("before", "after"):
        write_evaluation(RunFolder(folder).evaluation("test", stage, changed.settings), changed)
    [run] = read_runs([folder])
    assert publish_run(run).after["solved"] == [1, 1, 1, 1]
    assert run.evaluated_with(changed.settings).splits["test"][1].solved == [0, 0, 0, 0]


def test_a_run_without_test_rows_is_not_published(tmp_path: Path) -> None:
    run = a_run(tmp_path / "grpo", after=[1, 1, 1, 1])
    RunFolder(run).evaluation("test", "before").unlink()
    result = CliRunner().invoke(app, ["table", str(run), "--export", str(tmp_path / "out")], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert "no evaluation on test rows before and after training; make it with: agent-r1 eval" in result.output
    assert not (tmp_path / "out").exists()
    refused = CliRunner().invoke(app, ["table", str(run), "--model", "Q"], env={"COLUMNS": "300"})
    assert refused.exit_code == 2
    assert "give --export FOLDER" in refused.output


@pytest.mark.parametrize("text", ["", "[]", '{"kind": "run"}', "not json"])
def test_a_file_that_is_no_published_result_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(DataError, match=r"odd\.json is not a published result"):
        read_published(tmp_path)
    result = CliRunner().invoke(app, ["table", str(tmp_path / "odd.json"), "--export", str(tmp_path)])
    assert result.exit_code == 2


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    [run] = read_runs([a_run(tmp_path / "grpo", after=[1, 0.5, 1, 1])])
    published = publish_run(run, model="Named")
    write_published(tmp_path / "out", published)
    assert read_published(tmp_path / "out") == [published]
    assert published.model == "Named"
