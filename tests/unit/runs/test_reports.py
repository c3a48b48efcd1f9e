"""Curves and tables of runs, from folders made by hand. Without matplotlib (extra `plot`) the figures are skipped."""

from __future__ import annotations

import importlib.util
import json
import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent_r1.cli import app
from agent_r1.config import AlgorithmConfig, algorithm_name, load_config, to_yaml
from agent_r1.config.compose import presets
from agent_r1.errors import DataError, MissingExtraError
from agent_r1.metric_names import SFT_LOSS
from agent_r1.runs import (
    DEFAULT_KEYS,
    EvaluationRecord,
    RunFolder,
    draw_curves,
    markdown_table,
    read_runs,
    save_figure,
    table_rows,
    write_evaluation,
)
from agent_r1.runs.evaluations import read_evaluation
from agent_r1.runs.folder import base_model
from agent_r1.runs.model_names import TINY_SUFFIX
from agent_r1.runs.reports.plot import curve
from tests.helpers import commands
from tests.helpers.tiny_runs import tiny_overrides, write_tasks
from tests.integration.test_runs import score_variety

LINES: list[dict[str, float]] = [
    {"step": 0, "eval/all/greedy": 0.25, "eval/all/rows": 8, "eval/math/greedy": 0.5, "eval/shop/greedy": 0.0},
    {"step": 1, "reward/outcome": 0.5, "reward/success": 0.5, "time/step": 30.0, "perf/peak_gpu_gb": 3.25},
    {"step": 2, "reward/outcome": 0.75, "reward/success": 0.75, "time/step": 90.0, "perf/peak_gpu_gb": 3.5},
    {"step": 2, "eval/all/greedy": 0.75, "eval/all/rows": 8, "eval/math/greedy": 0.5, "eval/shop/greedy": 1.0},
]


@lru_cache
def config_text(overrides: tuple[str, ...]) -> str:
    return to_yaml(load_config(None, ["model.path=org/small-model", "trainer.steps=2", *overrides]))


def write_run(
    folder: Path,
    lines: list[dict[str, float]] = LINES,
    overrides: tuple[str, ...] = (),
    summary: Mapping[str, Any] | None = None,
) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.yaml").write_text(config_text(overrides))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


# --- curves --------------------------------------------------------------------------------------------------------


def test_a_curve_is_drawn_by_step_or_by_minutes_of_training(tmp_path: Path) -> None:
    [run] = read_runs([write_run(tmp_path / "one")])
    assert curve(run, "reward/outcome") == ([1, 2], [0.5, 0.75])
    assert curve(run, "reward/outcome", by_minutes=True) == ([0.5, 2.0], [0.5, 0.75])
    assert curve(run, "eval/all/greedy") == ([0, 2], [0.25, 0.75])
    assert curve(run, "eval/all/greedy", by_minutes=True) == ([0.0, 2.0], [0.25, 0.75])
    assert curve(run, "loss/sft") == ([], [])


def panels_of(figure: Any) -> dict[str, list[list[float]]]:
    return {panel.get_title(): [list(line.get_ydata()) for line in panel.get_lines()] for panel in figure.axes}


@pytest.mark.whole
def test_every_metric_has_a_panel_and_every_run_that_logged_it_a_line(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    other = [{**line, "reward/outcome": 0.0, "loss/policy": 2.0} for line in LINES[1:3]]
    runs = read_runs([write_run(tmp_path / "one"), write_run(tmp_path / "two", other)])
    figure = draw_curves(runs, ["reward/outcome", "eval/all/greedy", "loss/policy"])
    assert panels_of(figure) == {
        "outcome reward": [[0.5, 0.75], [0.0, 0.0]],
        "held-out tasks solved": [[0.25, 0.75]],
        "loss/policy": [[2.0, 2.0]],
    }
    colours = [[line.get_color() for line in panel.get_lines()] for panel in figure.axes]
    assert colours == [["C0", "C1"], ["C0"], ["C1"]]
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two"]


def test_without_keys_the_default_ones_that_were_logged_are_drawn_and_one_run_needs_no_legend(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = draw_curves(read_runs([write_run(tmp_path / "one")]))
    assert list(panels_of(figure)) == [
        "solved in training",
        "outcome reward",
        "held-out tasks solved",
        "seconds per step",
    ]
    assert figure.legends == []


def test_a_model_that_was_made_for_a_warm_start_is_called_tiny(tmp_path: Path) -> None:
    base = f"runs/quickstart_warm_start{TINY_SUFFIX}"
    folder = write_run(tmp_path / "one", summary={"steps": 2, "base_model": base})
    other = write_run(tmp_path / "two", overrides=("model.path=runs/warm_untrained/hf",))
    assert [run.model for run in read_runs([folder, other])] == ["tiny", "tiny"]


def test_runs_of_two_recipes_are_not_pooled(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name) for name in ("shop", "games")]
    for folder in folders:
        config = folder / "config.yaml"
        config.write_text(config.read_text().replace("recipe: null", f"recipe: /recipes/{folder.name}"))
    assert [row[0] for row in table_rows(read_runs(folders), pool=True)] == ["run", "shop", "games"]


@pytest.mark.whole
def test_the_default_metrics_are_what_a_run_logs(tmp_path: Path, model_folder: Path) -> None:
    held_out = write_tasks(tmp_path / "held_out.jsonl", count=2)
    commands.train(
        *tiny_overrides(tmp_path, model_folder, "trainer.steps=1", f"data.eval=[{held_out}]"),
        quiet=True,
        reward=score_variety,
    )
    [run] = read_runs([tmp_path / "tiny"])
    assert set(DEFAULT_KEYS) - {SFT_LOSS} <= run.metric_names
    assert (run.model, run.algorithm, run.steps, run.peak_gpu_gb) == (model_folder.name, "grpo", "1", None)
    summary = json.loads((tmp_path / "tiny" / "summary.json").read_text())
    assert summary["base_model"] == str(model_folder)
    assert (summary["algorithm"], summary["seed"], summary["peak_gpu_gb"]) == ("grpo", 0, None)
    assert summary["metrics_before"]["eval/all/rows"] == 2.0


def num_shades(png: bytes) -> int:
    """How many different bytes a PNG's pixels have; a blank one has a few."""
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    return len(set(zlib.decompress(data)))


@pytest.mark.whole
def test_the_command_writes_a_figure_that_is_not_blank(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = write_run(tmp_path / "one")
    out = tmp_path / "figures" / "curves.png"
    result = CliRunner().invoke(app, ["plot", str(run), "--out", str(out), "--keys", "reward/outcome,time/step"])
    assert result.exit_code == 0, result.output
    assert out.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert num_shades(out.read_bytes()) > 50


def test_a_metric_that_no_run_logged_names_the_nearest(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(DataError, match=r"no run logged 'reward/outcom'\. Did you mean 'reward/outcome'"):
        draw_curves(read_runs([write_run(tmp_path / "one")]), ["reward/outcom"])


def test_an_ending_no_figure_has_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = draw_curves(read_runs([write_run(tmp_path / "one")]))
    with pytest.raises(DataError, match=r"curves\.xyz has no suffix of a figure.* png"):
        save_figure(figure, tmp_path / "curves.xyz")


def test_without_matplotlib_the_pip_line_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_r1.errors.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'agent-r1\[plot\]'"):
        draw_curves(read_runs([write_run(tmp_path / "one")]))


def test_a_folder_that_is_no_run_names_those_there_are(tmp_path: Path) -> None:
    write_run(tmp_path / "grpo")
    with pytest.raises(DataError, match="Did you mean 'grpo'"):
        read_runs([tmp_path / "grop"])


def test_runs_of_one_name_go_by_their_paths(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / place / "run") for place in ("a", "b")]
    assert [run.label for run in read_runs(folders)] == list(map(str, folders))


def test_a_last_line_cut_by_a_kill_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rew')
    [run] = read_runs([folder])
    assert len(run.lines) == len(LINES)


# --- tables --------------------------------------------------------------------------------------------------------


def test_a_table_has_a_row_for_each_run_and_a_column_for_each_source(tmp_path: Path) -> None:
    finished = write_run(tmp_path / "one", overrides=("trainer.seed=3", "algorithm=ppo"), summary={"steps": 2})
    cut = write_run(tmp_path / "two", LINES[:2])
    assert table_rows(read_runs([finished, cut])) == [
        [
            "run",
            "model",
            "algorithm",
            "seed",
            "steps",
            "minutes",
            "peak GPU GB",
            "math, validation, before -> after",
            "shop, validation, before -> after",
            "all (8 rows), validation, before -> after",
        ],
        ["one", "small-model", "ppo", "3", "2", "2.0", "3.5", "0.500 -> 0.500", "0.000 -> 1.000", "0.250 -> 0.750"],
        ["two", "small-model", "grpo", "0", "1 of 2", "0.5", "3.2", "0.500 -> ?", "0.000 -> ?", "0.250 -> ?"],
    ]


def test_a_warm_start_is_told_by_its_loss(tmp_path: Path) -> None:
    """It counts in `sft.steps`, not in the training steps of its recipe, and has no summary."""
    losses = [{"step": step, "loss/sft": 1.0 / step} for step in range(1, 5)]
    done = write_run(tmp_path / "done", losses, ("sft.steps=4",))
    cut = write_run(tmp_path / "cut", losses[:3], ("sft.steps=4",))
    runs = read_runs([done, cut])
    assert [(run.algorithm, run.steps) for run in runs] == [("sft", "4"), ("sft", "3 of 4")]
    if importlib.util.find_spec("matplotlib"):
        titles = [axes.get_title() for axes in draw_curves(runs).axes if axes.get_title()]
        assert titles == ["loss of the warm start"]


def test_what_the_summary_says_counts_before_the_configuration(tmp_path: Path) -> None:
    said = {"base_model": "runs/warm/hf", "algorithm": "mine"}
    [run] = read_runs([write_run(tmp_path / "one", summary=said)])
    assert (run.model, run.algorithm) == ("warm", "mine")


def test_a_run_of_an_earlier_schema_can_be_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", summary={"steps": 2})
    (folder / "config.yaml").write_text("model: {path: old}\ntrainer: {seed: 1}\noptimizer: {betas: [0.9]}\n")
    [run] = read_runs([folder])
    assert (run.model, run.algorithm, run.setting("trainer.seed")) == ("old", "?", 1)


def evaluated(folder: Path, before: float, after: float, *settings: str) -> None:
    """Record an evaluation on one test task before and after training."""
    for stage, solved in (("before", before), ("after", after)):
        record = EvaluationRecord(
            split="test",
            model="m",
            step=0,
            tasks=["a"],
            sources=["shop"],
            solved=[solved],
            metrics={"eval/shop/greedy": solved},
            intervals={},
            settings=settings,
        )
        write_evaluation(RunFolder(folder).evaluation("test", stage, settings), record)


@pytest.mark.whole
def test_evaluations_with_other_settings_are_rows_of_their_own_that_name_them(tmp_path: Path) -> None:
    done = {"steps": 2, "algorithm": "grpo", "base_model": "m"}
    folders = [write_run(tmp_path / name, overrides=(f"trainer.seed={name}",), summary=done) for name in "12"]
    for run in folders:
        evaluated(run, 0.0, 1.0)
        evaluated(run, 0.0, 0.5, "rollout.max_steps=8")
    evaluated(folders[1], 1.0, 1.0, f"env.note={'x' * 100}")
    runs = read_runs(folders)
    header, *rows = table_rows(runs)
    chosen = [header.index("run"), header.index("evaluated with"), header.index("shop, test, before -> after")]
    assert [[row[column] for column in chosen] for row in rows] == [
        ["1", "-", "0.000 -> 1.000"],
        ["1", "rollout.max_steps=8", "0.000 -> 0.500"],
        ["2", "-", "0.000 -> 1.000"],
        ["2", f"env.note={'x' * 71}...", "1.000 -> 1.000"],
        ["2", "rollout.max_steps=8", "0.000 -> 0.500"],
    ]
    pooled = table_rows(runs, pool=True)[1:]
    assert [row[0] for row in pooled] == ["1, 2", "1, 2", "2"]  # never a figure over two settings
    assert "evaluated with" not in table_rows(runs, split="validation")[0]
    assert markdown_table(runs).splitlines()[1].startswith("| --- | --- | --- | --- | ---: |")


def test_a_pair_of_evaluations_made_with_different_settings_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    evaluated(run, 0.0, 1.0, "rollout.max_steps=8")
    evaluated(run, 0.0, 1.0)
    other = RunFolder(run).evaluation("test", "after", ["rollout.max_steps=8"])
    other.replace(RunFolder(run).evaluation("test", "after"))
    with pytest.raises(DataError, match=r"test_before\.json and test_after\.json are not of the same split"):
        read_runs([run])


def test_the_table_as_markdown(tmp_path: Path) -> None:
    lines = [{"step": 0, "eval/all/greedy": 0.5, "eval/math/greedy": 0.5}, {"step": 1, "time/step": 6.0}]
    runs = read_runs([write_run(tmp_path / "a|b", lines)])
    assert markdown_table(runs) == (
        "| run | model | algorithm | seed | steps | minutes | peak GPU GB | math, validation, before -> after |\n"
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |\n"
        "| a\\|b | small-model | grpo | 0 | 1 of 2 | 0.1 | - | 0.500 -> ? |\n"
    )


@pytest.mark.whole
def test_the_command_prints_either_table(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", summary={"steps": 2})
    markdown = CliRunner().invoke(app, ["table", str(folder), "--md"])
    assert markdown.output == markdown_table(read_runs([folder]))
    assert "small-model" in CliRunner(env={"COLUMNS": "200"}).invoke(app, ["table", str(folder)]).output


# --- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["dr_grpo", "steppo"])
def test_an_algorithm_is_known_by_its_configuration(preset: str) -> None:
    config = load_config(None, ["model.path=here", f"algorithm={preset}", "rollout.max_tokens=77"])
    assert algorithm_name(config) == preset


def test_changes_of_an_algorithm_are_told() -> None:
    config = load_config(None, ["model.path=here", "algorithm.kl.coefficient=0.01"])
    assert algorithm_name(config) == "grpo, kl.coefficient=0.01"


def test_what_is_said_of_a_critic_that_is_not_there_is_no_change() -> None:
    said = ["model.path=here", "algorithm.critic.learning_rate=1"]
    assert algorithm_name(load_config(None, said)) == "grpo"
    assert algorithm_name(load_config(None, [*said, "algorithm=steppo"])) == "steppo, critic.learning_rate=1.0"


def test_a_part_that_was_replaced_is_one_change() -> None:
    overrides = ["model.path=here", "algorithm.estimator=step_gae", "algorithm.estimator.lam=0.5"]
    assert algorithm_name(load_config(None, overrides)) == "grpo, estimator=step_gae"


def test_many_changes_are_counted() -> None:
    changes = ["epochs=2", "minibatches=3", "loss.clip_low=0.1", "kl.coefficient=0.5"]
    config = load_config(None, ["model.path=here", *(f"algorithm.{change}" for change in changes)])
    assert algorithm_name(config) == "grpo, 4 changes"


def test_an_algorithm_without_a_preset_is_called_by_its_parts() -> None:
    config = load_config(None, ["model.path=here"])
    config.algorithm = AlgorithmConfig(estimator={"name": "mine", "a": 1})  # type: ignore[arg-type]
    assert algorithm_name(config) == "mine / clip"


@pytest.mark.whole
def test_no_two_presets_are_the_same() -> None:
    names = presets("algorithm")
    config = load_config(None, ["model.path=here"])
    from agent_r1.config.differences import _preset_keys

    flat = [_preset_keys(name, config) for name in names]
    assert all(flat[i] != flat[j] for i in range(len(flat)) for j in range(i))


def test_the_base_of_a_warm_start_is_what_it_was_made_of(tmp_path: Path) -> None:
    write_run(tmp_path / "warm", overrides=("model.path=org/root",))
    write_run(tmp_path / "second", overrides=(f"model.path={tmp_path / 'warm' / 'hf'}",))
    assert base_model(str(tmp_path / "second" / "hf")) == "org/root"
    assert base_model("org/root") == "org/root"


def test_matplotlib_is_imported_only_when_something_is_drawn() -> None:
    source = Path(str(importlib.util.find_spec("agent_r1.runs.reports.plot").origin)).read_text()  # type: ignore[union-attr]
    assert "\nfrom matplotlib" not in source
    assert "\nimport matplotlib" not in source


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x: ${oc.env:HOME}\n", id="environment variable"),
        pytest.param("a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]\n", id="aliases"),
        pytest.param(DEEP[:2000], id="deep"),
    ],
)
def test_a_config_that_refers_to_other_values_or_is_nested_deeply_is_a_data_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(DataError, match=r"config\.yaml of the run"):
        table_rows(read_runs([tmp_path]))


@pytest.mark.parametrize("text", [DEEP, '{"steps": 1' + "0" * 5000 + "}", "NaN"])
def test_a_summary_that_is_no_strict_json_is_a_data_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(DataError, match="not the summary of a run"):
        read_runs([tmp_path])


@pytest.mark.parametrize("value", ['"a"', "null", "[1]", "1" + "0" * 400])
def test_a_metric_that_is_no_number_names_the_line(tmp_path: Path, value: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "time/step": {value}}}\n{{"step": 2}}\n')
    with pytest.raises(DataError, match=r"line 1 of .*metrics\.jsonl.*numbers"):
        read_runs([tmp_path])


@pytest.mark.parametrize(
    "changed",
    [
        {"solved": [None]},
        {"solved": ["1"]},
        {"metrics": 3},
        {"tasks": [1]},
        {"split": ["test"]},
        {"solved": [1.0, 1.0]},
    ],
)
def test_an_evaluation_with_values_of_another_type_is_a_data_error(tmp_path: Path, changed: dict[str, Any]) -> None:
    record = {"split": "test", "model": "m", "step": 0, "tasks": ["a"], "sources": ["s"], "solved": [1.0]}
    whole = {**record, "metrics": {"eval/s/greedy": None}, "intervals": {}}
    (tmp_path / "test_before.json").write_text(json.dumps(whole))
    assert read_evaluation(tmp_path / "test_before.json").metrics == {}
    (tmp_path / "test_before.json").write_text(json.dumps({**whole, **changed}))
    with pytest.raises(DataError, match="not the record of an evaluation"):
        read_evaluation(tmp_path / "test_before.json")


@pytest.mark.parametrize("text", [DEEP, "[]", "5"])
def test_an_evaluation_that_is_no_object_is_a_data_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "test_before.json").write_text(text)
    with pytest.raises(DataError, match="not the record of an evaluation"):
        read_evaluation(tmp_path / "test_before.json")


def test_names_in_a_table_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "summary.json").write_text(
        json.dumps({"steps": 1, "base_model": "\x1b]0;title\x07m\n|", "algorithm": "a"})
    )
    cells = table_rows(read_runs([tmp_path]))[1]
    assert "␛]0;title␇m↵|" in cells
