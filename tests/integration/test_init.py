"""`agent-r1 init`: recipe folders that pass their own test, the linter, and train."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_r1.cli import app
from agent_r1.config import load_config
from agent_r1.errors import ConfigError
from agent_r1.scaffold import Kind, write_recipe
from tests.helpers import commands
from tests.helpers.forks import run_python

ROOT = Path(__file__).parents[2]
SHAPE = {
    "README.md",
    "__init__.py",
    "base.yaml",
    "data_preprocess/__init__.py",
    "data_preprocess/process_shop.py",
    "prompts.py",
    "reward_fn.py",
    "test_shop.py",
}
OWN = {
    Kind.TOOL: {"tools.py"},
    Kind.ENV: {"env/__init__.py", "env/shop_env.py"},
    Kind.FLOW: {"shop_agent_flow.py"},
}
every_kind = pytest.mark.parametrize("kind", Kind)


def files_under(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    done = run_python(*command, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@every_kind
def test_a_recipe_has_the_files_of_its_shape(tmp_path: Path, kind: Kind) -> None:
    written = write_recipe("shop", kind=kind, into=tmp_path)
    assert files_under(tmp_path / "shop") == SHAPE | OWN[kind]
    assert written == sorted(path for path in (tmp_path / "shop").rglob("*") if path.is_file())


@every_kind
def test_no_word_of_a_template_is_left(tmp_path: Path, kind: Kind) -> None:
    written = write_recipe("shop", kind=kind, into=tmp_path)
    assert not [path for path in written if re.search("my_(task|agent|folder)", f"{path.name} {path.read_text()}")]


@every_kind
def test_the_readme_names_every_file_and_commands_that_fit_the_folder(tmp_path: Path, kind: Kind) -> None:
    write_recipe("shop", kind=kind, into=tmp_path)
    readme = (tmp_path / "shop" / "README.md").read_text()
    assert not [name for name in SHAPE | OWN[kind] if "__init__" not in name and name not in readme + "README.md"]
    assert f"agent-r1 train {tmp_path}/shop\n" in readme
    [real_model] = re.findall(r"agent-r1 train \S+ (model\.path=.*\\\n.*)", readme)
    config = load_config(tmp_path / "shop", real_model.replace("\\\n", " ").split())
    assert config.model.prepare is None
    assert config.data.prepare is not None


@every_kind
@pytest.mark.parametrize("name", ["a", "shop", "the_longest_name_that_anybody_gives"])
def test_a_generated_recipe_passes_the_linter_whatever_its_name(tmp_path: Path, kind: Kind, name: str) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "agent_r1").symlink_to(ROOT / "agent_r1")  # what tells ruff that it is the project's own
    write_recipe(name, kind=kind, into=tmp_path / "recipes")
    for command in (["check"], ["format", "--check"]):  # a program of its own, which imports nothing
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "recipes"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.whole if kind is Kind.TOOL else pytest.mark.slow) for kind in Kind]
)
def test_the_generated_test_passes_as_it_is(tmp_path: Path, kind: Kind) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    write_recipe("shop", kind=kind, into=tmp_path / "recipes")
    # A process of its own: pytest warns of plugins that were imported before it.
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "recipes/shop"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.whole
@every_kind
def test_the_data_script_writes_what_the_recipe_reads(tmp_path: Path, kind: Kind) -> None:
    write_recipe("shop", kind=kind, into=tmp_path)
    run(tmp_path, "shop/data_preprocess/process_shop.py", "--local_save_dir", "runs/shop_data")
    config = load_config(tmp_path / "shop", [])
    named = {*config.data.train, *config.data.eval, *config.sft.data}
    assert {f"runs/shop_data/{name}" for name in files_under(tmp_path / "runs" / "shop_data")} == named


@every_kind
@pytest.mark.slow
def test_a_generated_recipe_learns(tmp_path: Path, kind: Kind) -> None:
    write_recipe("shop", kind=kind, into=tmp_path)
    summary = commands.train(str(tmp_path / "shop"), f"run.folder={tmp_path / 'runs'}", quiet=True)
    assert summary.success_before is not None
    assert summary.success_after is not None
    assert summary.success_before <= 0.3
    assert summary.success_after >= 0.9


@pytest.mark.slow
def test_two_recipes_train_in_one_process(tmp_path: Path) -> None:
    small = ("sft.steps=1", "trainer.steps=1", "rollout.groups_per_step=1", "rollout.group_size=2", "eval.max_tasks=1")
    for name in ("first_shop", "second_shop"):
        write_recipe(name, into=tmp_path)
        commands.train(str(tmp_path / name), f"run.folder={tmp_path / 'runs'}", *small, quiet=True)
    assert (tmp_path / "runs" / "second_shop" / "summary.json").is_file()


@pytest.mark.parametrize("name", ["my-shop", "2shops", "my shop", "", "class", "_shop", "läden", "a/b", ".."])
def test_a_name_that_python_cannot_import_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a recipe"):
        write_recipe(name, into=tmp_path)
    assert not files_under(tmp_path)


@pytest.mark.parametrize("name", ["quickstart", "agent_r1", "recipes", "json", "tool", "env_loop", "single_step"])
def test_a_name_that_is_taken_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is .*for example my_{name}"):
        write_recipe(name, into=tmp_path)
    assert not files_under(tmp_path)


def test_nothing_that_exists_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "base.yaml").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is not empty; nothing was written"):
        write_recipe("shop", into=tmp_path)
    assert files_under(tmp_path) == {"shop/base.yaml"}
    assert (tmp_path / "shop" / "base.yaml").read_text() == "mine"


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    assert write_recipe("shop", into=tmp_path)


@pytest.mark.parametrize("blocking", ["into", "into/shop"])
def test_a_file_in_the_way_is_named(tmp_path: Path, blocking: str) -> None:
    (tmp_path / blocking).parent.mkdir(exist_ok=True)
    (tmp_path / blocking).write_text("")
    with pytest.raises(ConfigError, match=f"{blocking} is a file"):
        write_recipe("shop", into=tmp_path / "into")


def test_recipes_go_to_the_folder_of_recipes_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_recipe("first_shop")
    (tmp_path / "recipes").mkdir()
    write_recipe("second_shop")
    assert (tmp_path / "first_shop" / "base.yaml").is_file()
    assert (tmp_path / "recipes" / "second_shop" / "base.yaml").is_file()


def test_the_command_tells_what_it_wrote_and_what_to_type_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "shop_data").mkdir(parents=True)
    result = CliRunner().invoke(app, ["init", "shop", "--into", "mine", "--kind", "env"])
    assert result.exit_code == 0
    assert "wrote mine/shop/env/shop_env.py\n" in result.output
    assert "agent-r1 train mine/shop\n" in result.output
    assert "delete before training: runs/shop_data\n" in result.output


def test_a_wrong_name_is_one_line_and_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["init", "my-shop"])
    assert result.exit_code == 2
    assert result.output.startswith("error: 'my-shop' cannot name a recipe")
    assert len(result.output.splitlines()) == 1


@pytest.mark.slow
def test_the_wheel_ships_the_templates(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "agent_r1", source / "agent_r1", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(source, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"))
    [wheel] = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    templates = "agent_r1/scaffold/templates"
    assert files_under(tmp_path / "installed" / templates) == files_under(source / templates)
