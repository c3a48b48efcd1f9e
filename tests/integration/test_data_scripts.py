"""The scripts that make the data of recipes, as people call them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.helpers.recipe_runs import ROOT

SCRIPTS = sorted((ROOT / "recipes").glob("*/data_preprocess/process_*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem.removeprefix("process_"))
def test_a_folder_without_the_files_is_one_line_and_no_traceback(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if script.stem == "process_math_code":
        pytest.importorskip("math_verify", reason="math_code grades with math-verify: pip install 'agent-r1[math]'")
    missing = tmp_path / "missing"
    arguments = ["--local_save_dir", str(tmp_path / "made"), "--local_dataset_path", str(missing)]
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("error: ")
    assert str(missing) in said
    assert said.count("\n") == 1
    assert not (tmp_path / "made").exists()
