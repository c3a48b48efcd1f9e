"""`load_run`: a run's folder as tables and records, while it is written and afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import agent_r1
from agent_r1.errors import DataError
from agent_r1.runs import RunFolder, Table, lock_folder, write_credit, write_trajectories
from agent_r1.types import TrajectoryCredit
from tests.helpers.view_runs import MadeRun
from tests.unit.runs.test_credit_files import TWO_TOKENS


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    """Two training steps with trajectories, evaluated before the first and after the second."""
    run = MadeRun(tmp_path / "shop", algorithm={"preset": "<b>ppo</b>"})
    metrics = RunFolder(run.folder).metrics
    metrics.write_text('{"step": 0, "eval/all/greedy": 0.25, "eval/all/rows": 4}\n')
    for step in (1, 2):
        run.log(step)
        run.roll_out(step, groups=1, members=2)
    with metrics.open("a") as file:
        file.write('{"step": 2, "error/failed_records": 1.0}\n{"step": 2, "eval/all/greedy": 0.75}\n{"step": 3, "rew')
    return run


def test_metrics_are_one_row_per_training_step(run: MadeRun) -> None:
    metrics = agent_r1.load_run(run.folder).metrics
    assert metrics["step"] == [1, 2]
    assert metrics["reward/success"] == pytest.approx([0.1, 0.2])
    assert metrics["error/failed_records"] == [None, 1.0]
    assert not [name for name in metrics.columns if name.startswith("eval/")]
    assert next(iter(metrics)) == {
        "step": 1,
        "reward/success": 0.1,
        "reward/outcome": 0.1,
        "policy/entropy": 0.5,
        "episode/tool_calls": 2.0,
        "time/step": 30.0,
    }


def test_evaluations_are_a_table_of_their_own(run: MadeRun) -> None:
    evaluations = agent_r1.load_run(run.folder).evaluations
    assert evaluations.columns == ("step", "eval/all/greedy", "eval/all/rows")
    assert evaluations.rows == ((0, 0.25, 4), (2, 0.75, None))


def test_a_live_run_shows_what_it_has_written_so_far(run: MadeRun) -> None:
    loaded = agent_r1.load_run(str(run.folder))
    assert (loaded.state, len(loaded.metrics)) == ("failed", 2)
    with lock_folder(run.folder):
        assert loaded.state == "running"
        with RunFolder(run.folder).metrics.open("a") as file:
            file.write('ard/success": 0.3}\n')
        assert loaded.metrics["step"] == [1, 2, 3]
    RunFolder(run.folder).write_summary({"steps": 3, "success_after": 0.75})
    assert (loaded.state, loaded.summary["success_after"]) == ("finished", 0.75)


def test_a_warm_start_is_finished_when_its_model_is_there(run: MadeRun) -> None:
    """It writes no summary."""
    assert agent_r1.load_run(run.folder).state == "failed"
    (RunFolder(run.folder).model / "config.json").write_text("{}")
    assert agent_r1.load_run(run.folder).state == "finished"


def test_a_run_that_has_logged_nothing_yet_can_be_loaded(tmp_path: Path) -> None:
    loaded = agent_r1.load_run(MadeRun(tmp_path / "new").folder)
    assert (len(loaded.metrics), len(loaded.evaluations), loaded.recorded_steps) == (0, 0, [])
    assert list(loaded.trajectories()) == []
    assert "new" in repr(loaded)
    assert "20" in loaded._repr_html_()


def test_trajectories_are_read_lazily_and_by_step(run: MadeRun) -> None:
    loaded = agent_r1.load_run(run.folder)
    assert loaded.recorded_steps == [1, 2]
    assert [(t.group_id, t.member) for t in loaded.trajectories(step=2)] == [(0, 0), (0, 1)]
    every = loaded.trajectories()
    assert next(every).task_id == "task-0"
    RunFolder(run.folder).trajectory_files()[-1].write_text("damaged\n")
    assert next(every).member == 1  # the second file is not read before it is needed
    with pytest.raises(ValueError, match="Expecting value"):
        next(every)
    write_trajectories(RunFolder(run.folder).eval_trajectories("after"), [run.group(1, 0, 1)], policy_step=2)
    assert len(list(loaded.trajectories(evaluation="after"))) == 1


def test_what_was_not_recorded_is_an_error_that_names_what_was(run: MadeRun) -> None:
    loaded = agent_r1.load_run(run.folder)
    with pytest.raises(DataError, match="has no step 7; recorded: 1, 2"):
        loaded.trajectories(step=7)
    with pytest.raises(DataError, match="has no evaluation 'after'; recorded: none"):
        loaded.trajectories(evaluation="after")
    with pytest.raises(DataError, match=r"tracking\.record_credit=true"):
        loaded.credit(1)
    write_credit(RunFolder(run.folder).step_credit(1), [TrajectoryCredit(group_id=0, member=1, steps=(TWO_TOKENS,))])
    assert loaded.credit(1) == {(0, 1): (TWO_TOKENS,)}


def test_the_configuration_has_keys_as_attributes(run: MadeRun) -> None:
    assert agent_r1.load_run(run.folder).config.trainer.steps == 20


def test_another_folder_is_refused_with_the_nearest_run(run: MadeRun) -> None:
    with pytest.raises(DataError, match=r"not the folder of a run.*Did you mean 'shop'"):
        agent_r1.load_run(run.folder.with_name("shp"))


# --- tables --------------------------------------------------------------------------------------------------------


def test_a_column_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(KeyError, match="no column 'b'; there are: step, a"):
        Table.of([{"step": 1, "a": 2.0}])["b"]


def test_columns_can_be_selected() -> None:
    table = Table.of([{"step": 1, "a": 2.0, "b": 3.0}, {"step": 2, "b": 4.0}]).select("b", "step")
    assert (table.columns, table.rows) == (("b", "step"), ((3.0, 1), (4.0, 2)))


def test_a_notebook_shows_the_last_rows_and_runs_no_markup(run: MadeRun) -> None:
    table = Table.of([{"step": step, "<script>": 1 / 3} for step in range(1, 31)])
    shown = table._repr_html_()
    assert "the last 10 of 30 rows" in shown
    assert shown.count("<tr>") == 11
    assert "<td>0.3333</td>" in shown
    assert "<script>" not in shown
    page = agent_r1.load_run(run.folder)._repr_html_()
    assert "<td>2 of 20</td>" in page
    assert "<b>" not in page


@pytest.mark.whole
def test_a_table_becomes_a_data_frame() -> None:
    pytest.importorskip("pandas", reason="needs agent-r1[pandas]")
    frame = Table.of([{"step": 1, "a": 2.0}, {"step": 3, "b": 4.0}]).to_pandas()
    assert list(frame.index) == [1, 3]
    assert frame["a"].tolist()[0] == 2.0
    assert frame["a"].isna().tolist() == [False, True]


@pytest.mark.whole
def test_a_run_is_loaded_without_torch(run: MadeRun) -> None:
    program = (
        "import sys, agent_r1\n"
        f"run = agent_r1.load_run({str(run.folder)!r})\n"
        "print(len(run.metrics), len(list(run.trajectories())), run.state)\n"
        "sys.exit('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.returncode, result.stdout.split()) == (0, ["2", "4", "failed"]), result.stderr
