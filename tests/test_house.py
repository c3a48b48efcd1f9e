"""The house's walls: who may import whom, who may import torch, and that the README shows the tree that exists."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "agent_r1"

FOUNDATION = {"types", "errors", "constraints", "strict_json", "registry", "seeds", "cache", "findings", "storage"}
MIDDLE = {"health", "data", "downloads", "metrics", "evaluation", "demonstrations", "tracking", "console"}
MAY_IMPORT: dict[str, set[str]] = {
    "types": set(),
    "seeds": set(),
    "cache": set(),
    "findings": set(),
    "constraints": set(),
    "strict_json": set(),
    "errors": {"types"},
    "storage": {"errors"},
    "registry": {"errors", "constraints"},
    "chat": FOUNDATION,
    "tools": FOUNDATION,
    "envs": FOUNDATION | {"chat", "tools"},
    "engines": FOUNDATION,
    "flows": FOUNDATION | {"chat", "envs", "engines"},
    "rewards": FOUNDATION,
    "rollout": FOUNDATION | {"chat", "envs", "engines", "flows", "rewards"},
    "algorithms": FOUNDATION,
    "config": FOUNDATION,
    **{room: FOUNDATION | MIDDLE | {"chat", "rollout"} for room in MIDDLE},
    "training": FOUNDATION
    | MIDDLE
    | {"chat", "tools", "envs", "engines", "flows", "rewards", "rollout", "algorithms", "config"},
    "checks": {"everything"},
    "scaffold": FOUNDATION,
    "reports": FOUNDATION | MIDDLE | {"config"},
    "api": {"everything"},
    "cli": {"everything"},
}
MAY_IMPORT_TORCH = ("algorithms/", "training/", "engines/local/")

TEMPLATES = "scaffold/templates/"
"""Recipes in waiting: they import what recipes import, yet never torch."""

ALL_FILES = sorted(path.relative_to(LIBRARY).as_posix() for path in LIBRARY.rglob("*.py"))
FILES = [file for file in ALL_FILES if not file.startswith(TEMPLATES)]


def imported_modules(path: Path) -> set[str]:
    """Every module a file imports, at its top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def room_of(name: str) -> str:
    return name.split("/")[0].removesuffix(".py")


@pytest.mark.parametrize("name", [file for file in FILES if file != "__init__.py"])
def test_each_room_imports_only_what_it_may(name: str) -> None:
    room = room_of(name)
    allowed = MAY_IMPORT[room]
    used = {module.split(".")[1] for module in imported_modules(LIBRARY / name) if module.startswith("agent_r1.")}
    forbidden = used - allowed - {room} if "everything" not in allowed else set()
    assert not forbidden, f"{name} imports {forbidden}"


@pytest.mark.parametrize("name", ALL_FILES)
def test_only_the_torch_rooms_import_torch(name: str) -> None:
    imports_torch = any(module.split(".")[0] == "torch" for module in imported_modules(LIBRARY / name))
    assert not imports_torch or name.startswith(MAY_IMPORT_TORCH), f"{name} imports torch"


def test_nothing_outside_the_library_is_imported_by_it() -> None:
    roots = {module.split(".")[0] for name in FILES for module in imported_modules(LIBRARY / name)}
    assert not roots & {"recipes", "tests", "benchmarks", "examples"}


def test_the_readme_tree_names_every_room() -> None:
    readme = (ROOT / "README.md").read_text()
    rooms = {room_of(name) for name in FILES} - {"__init__"}
    missing = sorted(room for room in rooms if f"{room}/" not in readme and f"{room}.py" not in readme)
    assert not missing


def test_no_file_of_the_library_outgrows_one_idea() -> None:
    long = [name for name in FILES if len((LIBRARY / name).read_text().splitlines()) > 450]
    assert not long
