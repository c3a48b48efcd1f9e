"""`agent-r1 recipes copy`: a folder of one's own, which trains as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_r1.cli import app
from agent_r1.config import load_config
from agent_r1.errors import AgentR1Error
from agent_r1.scaffold import copy_recipe
from agent_r1.shipped import shipped_recipes

NAMES = [recipe.name for recipe in shipped_recipes()]
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name", [name if name == "quickstart" else pytest.param(name, marks=pytest.mark.whole) for name in NAMES]
)
def test_a_copy_has_every_file_and_runs_of_its_own(name: str) -> None:
    [source] = [recipe.folder for recipe in shipped_recipes() if recipe.name == name]
    copy_recipe(name, Path("places/mine"))
    there = {path.relative_to(source) for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert {path.relative_to("places/mine") for path in Path("places/mine").rglob("*") if path.is_file()} == there
    config = load_config("places/mine")
    assert config.run.name == "mine"
    made = [*config.data.train, *config.data.eval, *config.sft.data, config.sft.folder or "runs/mine"]
    assert {Path(path).parts[1].split("_")[0] for path in made} == {"mine"}
    readme = Path("places/mine/README.md").read_text()
    assert f"agent-r1 {'train' if config.data.train else 'eval'} places/mine" in readme
    assert f"recipes/{name} " not in readme
    assert "](../" not in readme


@pytest.mark.whole
def test_a_copy_in_another_folder_than_its_sibling_still_finds_what_it_shares(
    tmp_path: Path,
) -> None:
    """gsm8k_tool reads GSM8K through the recipe gsm8k. The command is that of the copy's own docstring."""
    copy_recipe("gsm8k_tool", Path("calc"))
    script = Path("calc/data_preprocess/process_gsm8k_tool.py")
    [command] = re.findall(r"^    python (.*)$", script.read_text(), re.MULTILINE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *command.split(), "--local_dataset_path", str(ROOT / "recipes" / "gsm8k" / "sample")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    config = load_config("calc")
    assert len(Path(config.sft.data[0]).read_text().splitlines()) > 20
    assert Path(config.data.train[0]).is_file()


def test_without_a_folder_a_copy_has_the_recipes_name() -> None:
    files = copy_recipe("quickstart")
    assert Path("quickstart/base.yaml") in files
    Path("recipes").mkdir()
    assert Path("recipes/quickstart/base.yaml") in copy_recipe("quickstart")


def test_nothing_is_overwritten() -> None:
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("keep")
    Path("file").write_text("keep")
    for folder in ("mine", "file", "file/below"):
        with pytest.raises(AgentR1Error, match=r"exists and is not empty|is a file"):
            copy_recipe("quickstart", Path(folder))
    assert sorted(path.name for path in Path().iterdir()) == ["file", "mine"]
    assert [path.name for path in Path("mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["quikstart"], "Did you mean 'quickstart'"),
        (["../quickstart"], "Known: alfworld"),
        (["quickstart", "gsm8k"], "is a recipe that comes with Agent-R1"),
        (["quickstart", "my-shop"], "cannot name a recipe"),
    ],
)
def test_a_wrong_name_is_one_error_and_writes_nothing(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["recipes", "copy", *arguments])
    assert (result.exit_code, says in result.output.replace("\n", " ")) == (2, True), result.output
    assert list(Path().iterdir()) == []


def test_the_commands_list_and_copy() -> None:
    listed = CliRunner().invoke(app, ["recipes"], env={"COLUMNS": "200"}).output
    assert all(recipe.name in listed and recipe.summary in listed for recipe in shipped_recipes())
    copied = CliRunner().invoke(app, ["recipes", "copy", "quickstart", "shop"])
    assert "train it:  agent-r1 train shop" in copied.output
    assert "use it:    agent-r1 eval calls" in CliRunner().invoke(app, ["recipes", "copy", "bfcl", "calls"]).output
    chosen = CliRunner().invoke(app, ["train", "shop", "algorithm=none"])
    assert (chosen.exit_code, "unknown algorithm 'none'" in chosen.output) == (2, True)


def test_a_command_says_which_recipe_it_takes() -> None:
    wrong = ["quickstart", "trainer.stepps=1"]
    assert "recipe: 'quickstart' of Agent-R1" in CliRunner().invoke(app, ["train", *wrong]).output
    copy_recipe("quickstart")
    for command in ("train", "sft", "eval", "check"):
        assert "recipe: your folder quickstart, not" in CliRunner().invoke(app, [command, *wrong]).output
