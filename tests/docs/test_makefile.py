"""What `make` installs, and with what: the real Makefile, with programs that write down how they were called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_MAKE_VENV = "mkdir -p .venv/bin && cp bin/python bin/agent-r1 .venv/bin/"
PROGRAMS = {
    "python": (
        f'#!/bin/sh\nif [ "$3" = config ]; then test "$5" = global.find-links && echo $PIP_FILE_LINKS; exit; fi\n'
        'if [ "$3" = --version ]; then test ! -e .venv/without_pip; exit; fi\n'
        f'echo "python $*" >>calls\nif [ "$2" = venv ]; then rm -rf .venv; {_MAKE_VENV}; fi\n'
    ),
    "uv": (
        f'#!/bin/sh\necho "uv $*" >>calls\ncase $1 in '
        f'venv) {_MAKE_VENV}; if [ "$UV_FAILS" = venv ]; then touch .venv/without_pip; exit 1; fi;; '
        'pip) echo $UV_FIND_LINKS >>links; test -z "$UV_FAILS"; exit;; esac\n'
    ),
    "agent-r1": '#!/bin/sh\necho "agent-r1 $*" >>calls\n',
}

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def calls(folder: Path, *targets: str, uv: bool, uv_fails: str = "") -> list[str]:
    """The programs that `make TARGETS` calls, in a folder in which nothing is set up. `uv_fails`: from which command
    on uv fails, `venv` or `pip`."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    (folder / "bin").mkdir()
    for name, text in PROGRAMS.items():
        if name != "uv" or uv:
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:/usr/bin:/bin", "UV_FAILS": uv_fails}
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "UV_FIND_LINKS"):
        environment.pop(name, None)
    done = subprocess.run(
        ["make", *targets, "PYTHON=python"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "calls").read_text().splitlines()


def test_train_installs_the_core_alone_with_pip_where_there_is_no_uv(tmp_path: Path) -> None:
    if shutil.which("uv", path="/usr/bin:/bin"):
        pytest.skip("uv is installed for everyone here")
    made, installed, trained = calls(tmp_path, "train", "algorithm=ppo", uv=False)
    assert made == "python -m venv --clear .venv"
    assert installed == "python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ."
    assert trained == "agent-r1 train recipes/quickstart algorithm=ppo"


def test_train_uses_uv_where_it_is_installed(tmp_path: Path) -> None:
    made, installed, _ = calls(tmp_path, "train", uv=True)
    assert made.startswith("uv venv ")
    assert "--seed" in made  # pip may be needed
    assert installed == "uv pip install --quiet --python .venv/bin/python -c constraints.txt -e ."


def test_uv_is_told_where_pip_finds_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FILE_LINKS", "wheels more/wheels")
    calls(tmp_path, "train", uv=True)
    assert (tmp_path / "links").read_text() == "wheels,more/wheels\n"


def test_pip_follows_where_uv_fails(tmp_path: Path) -> None:
    made, tried, installed, _ = calls(tmp_path, "train", uv=True, uv_fails="pip")
    assert (made.split()[0], tried.split()[:2]) == ("uv", ["uv", "pip"])
    assert installed.startswith("python -m pip install ")


def test_an_environment_in_which_uv_could_not_put_pip_is_made_anew(tmp_path: Path) -> None:
    _, made, tried, installed, _ = calls(tmp_path, "train", uv=True, uv_fails="venv")
    assert made == "python -m venv --clear .venv"
    assert tried.startswith("uv pip install ")
    assert installed.startswith("python -m pip install ")


def test_what_developers_run_installs_the_tools_of_developers_once(tmp_path: Path) -> None:
    _, installed, tested, *trained = calls(tmp_path, "test-unit", "train", uv=True)
    assert installed.endswith("-e .[dev]")
    assert tested.startswith("python -m pytest")
    assert trained == ["agent-r1 train recipes/quickstart"]
