"""Finding runs: in folders, under ids that are safe in addresses; and the command where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_r1.cli.app import app
from agent_r1.errors import DataError
from agent_r1.view import Catalog, check_folders
from tests.helpers.viewed_runs import WrittenRun, shop_run


def ids(*folders: Path) -> list[str]:
    return [run.id for run in Catalog(folders).runs()]


def test_runs_are_found_in_folders_below_and_not_inside_each_other(tmp_path: Path) -> None:
    for name in ("a", "sweep/b", "sweep/deep/c", "x/y/z/too_deep"):
        WrittenRun(tmp_path / name)
    (tmp_path / "a" / "trajectories" / "inner").mkdir(parents=True)
    (tmp_path / "a" / "trajectories" / "inner" / "config.yaml").write_text("x: 1")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "config.yaml").write_text("x: 1")
    assert ids(tmp_path) == ["a", "b", "c"]


def test_a_run_may_be_named_itself_and_twice(tmp_path: Path) -> None:
    WrittenRun(tmp_path / "a")
    assert ids(tmp_path / "a") == ["a"]
    assert ids(tmp_path / "a", tmp_path, tmp_path / "." / "a") == ["a"]


def test_equal_names_get_different_ids_that_stay(tmp_path: Path) -> None:
    for place in ("x", "y", "z"):
        WrittenRun(tmp_path / place / "run")
    found = ids(tmp_path)
    assert len(set(found)) == 3
    assert "run" in found
    assert ids(tmp_path) == found


def test_ids_are_safe_in_addresses(tmp_path: Path) -> None:
    for name in ("grpo seed=1", "grpo_seed_1", "run..", "ü%2f<script>", "a" * 150):
        WrittenRun(tmp_path / name)
    found = ids(tmp_path)
    assert len(set(found)) == 5
    assert all(set(run_id) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-~2f") for run_id in found)


def test_a_link_out_of_the_folder_is_reported_and_can_be_named(tmp_path: Path) -> None:
    outside = WrittenRun(tmp_path / "disk" / "big")
    WrittenRun(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "linked").symlink_to(outside.path)
    (tmp_path / "runs" / "broken").symlink_to(tmp_path / "nowhere")
    catalog = Catalog([tmp_path / "runs"])
    assert [run.id for run in catalog.runs()] == ["a"]
    [problem] = catalog.problems
    assert f"name it: agent-r1 view {tmp_path / 'runs' / 'linked'}" in problem
    assert ids(tmp_path / "runs" / "linked") == ["big"]


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    WrittenRun(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert ids(tmp_path) == ["a"]


def test_where_there_is_no_run_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no run in .*agent-r1 train quickstart"):
        check_folders([], tmp_path)
    with pytest.raises(DataError, match=r"there is no folder .*nowhere\. Train something first"):
        check_folders([], tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"not a folder: .*nowhere; name run folders"):
        check_folders([tmp_path / "nowhere"], tmp_path)


def test_the_command_on_an_empty_folder_exits_with_advice(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["view", "--folder", str(tmp_path), "--no-browser"])
    assert result.exit_code == 2
    assert "agent-r1 train quickstart" in result.output
    assert "Traceback" not in result.output


@pytest.mark.whole
def test_the_command_exports_without_torch(tmp_path: Path) -> None:
    run = shop_run(tmp_path / "run")
    program = (
        "import sys; from agent_r1.cli.app import app\n"
        f"app(['view', {str(run.path)!r}, '--export', {str(tmp_path / 'page.html')!r}], standalone_mode=False)\n"
        "import agent_r1.view.server\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    wrote, modules = done.stdout.splitlines()
    assert wrote.startswith(f"wrote {tmp_path / 'page.html'} (")
    assert modules == "[]"
