"""The architecture, held by tests: who may import whom, through which face, where torch may be, how large things grow.

`PACKAGES` is the drawing: an entry imports only entries above it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "agent_r1"

PACKAGES: dict[str, str] = {
    # The foundation: records, errors, names, files. No torch.
    "types": "",
    "version": "",
    "seeds": "",
    "paths": "",
    "constraints": "",
    "findings": "",
    "metric_names": "",
    "interrupts": "",
    "event_loop": "interrupts",
    "errors": "types",
    "files": "errors",
    "images": "errors files types",
    "codec": "types errors images",
    "console": "findings metric_names types",
    "registry": "constraints errors",
    "shipped": "errors",
    "web": "codec errors",
    # What users extend: tools, environments, flows, rewards, formats, estimators.
    "config": "constraints errors paths registry shipped",
    "chat": "codec errors images registry types",
    "tools": "codec constraints errors event_loop files findings images registry seeds types",
    "rewards": "constraints errors metric_names registry types",
    "envs": "codec constraints errors event_loop findings images registry rewards tools types version web",
    "data": "chat codec console constraints errors event_loop files images paths seeds types",
    "algorithms": "config constraints errors images registry rewards types",
    # What runs them.
    "models": "chat config errors files images paths types",
    "engines": "chat codec config errors files images models registry seeds types web",
    "openai_api": "chat codec engines errors images seeds types web",
    "flows": "chat constraints engines envs errors event_loop images metric_names registry seeds tools types",
    "gateway": "chat codec config errors event_loop flows images openai_api registry tools types web",
    "runs": "codec config errors files images metric_names registry types",
    "rollout": "chat config data engines envs errors flows images metric_names registry rewards seeds tools types",
    "learner": "algorithms config data errors images interrupts models rewards seeds types",
    "evaluation": "errors metric_names rollout seeds types",
    "planning": "config console errors metric_names rollout runs types",
    "training": (
        "algorithms chat config console constraints data engines envs errors evaluation event_loop files flows gateway "
        "images interrupts learner metric_names models registry rewards rollout runs seeds tools types"
    ),
    # What people call.
    "inference": (
        "chat config data engines envs errors files flows images metric_names models paths registry rewards rollout "
        "runs seeds shipped tools training types version"
    ),
    "serving": "codec errors flows images inference openai_api types version web",
    "checks": (
        "chat codec config console engines envs errors event_loop findings flows images interrupts learner rewards "
        "rollout seeds tools training types"
    ),
    "scaffold": "errors shipped",
    "integrations": (
        "algorithms chat config console data engines errors files gateway images registry rewards seeds tools training "
        "types"
    ),
    "view": "codec errors files images metric_names runs types version web",
    "api": (
        "checks config console data engines envs errors evaluation event_loop registry rewards runs tools "
        "training types"
    ),
    "cli": (
        "api checks codec config console data engines envs errors evaluation files inference interrupts planning "
        "registry runs scaffold serving shipped tools training types version view web"
    ),
}
"""What each package may import of the others."""

MAY_IMPORT_TORCH = (
    *("algorithms/", "models/", "engines/local/", "learner/", "training/", "integrations/verl/"),
    "engines/http/policy_weights.py",  # the trainer's weights as files, and its log-probs to hold servers against
)
TEMPLATES = "scaffold/templates/"
"""Recipes in waiting: they import what recipes import, yet never torch."""

MAX_FILES, MAX_LINES, MAX_FUNCTION_LINES = 14, 350, 60
KERNELS = ("engines/local/cuda/attention_kernels.py", "engines/local/cuda/sampling_kernels.py")

ALL_FILES = sorted(path.relative_to(LIBRARY).as_posix() for path in LIBRARY.rglob("*.py"))
FILES = [file for file in ALL_FILES if not file.startswith(TEMPLATES)]


def statements_of(block: ast.AST) -> Iterator[ast.AST]:
    """The statements of a block and of all blocks inside it. Expressions, most of a program, hold none."""
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        nested = getattr(block, part, None)
        for statement in nested if isinstance(nested, list) else ():
            yield statement
            yield from statements_of(statement)


@cache
def imports_of(path: Path) -> list[tuple[str, str]]:
    """Every (module, name) that a file imports, at its top or inside a function."""
    found: list[tuple[str, str]] = []
    for node in statements_of(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.module, alias.name) for alias in node.names]
    return found


def package_of(name: str) -> str:
    return name.split("/")[0].removesuffix(".py")


def packages_used(name: str) -> set[str]:
    """The packages of the library that a file imports, other than its own."""
    modules = [
        f"{module}.{imported}" if module == "agent_r1" else module for module, imported in imports_of(LIBRARY / name)
    ]
    return {module.split(".")[1] for module in modules if module.startswith("agent_r1.")} - {package_of(name)}


def test_the_drawing_has_no_arrow_up_and_no_circle() -> None:
    above: set[str] = set()
    for package, imports in PACKAGES.items():
        assert set(imports.split()) <= above, f"{package} would import {set(imports.split()) - above} from below itself"
        above.add(package)


def test_the_drawing_has_every_package() -> None:
    assert {package_of(name) for name in FILES} - {"__init__"} == PACKAGES.keys()


@pytest.mark.whole
@pytest.mark.parametrize("name", [file for file in FILES if file != "__init__.py"])
def test_each_package_imports_only_what_it_may(name: str) -> None:
    forbidden = packages_used(name) - set(PACKAGES[package_of(name)].split())
    assert not forbidden, f"{name} imports {forbidden}"


@pytest.mark.parametrize("name", [file for file in FILES if file != "__init__.py"])
def test_packages_import_each_other_through_their_faces(name: str) -> None:
    """`from agent_r1.tools import ToolRunner`, never `from agent_r1.tools.runner import ToolRunner`; within a package
    the module is named."""
    deep = [
        module
        for module, _ in imports_of(LIBRARY / name)
        if module.count(".") > 1
        and module.startswith("agent_r1.")
        and module.split(".")[1] != package_of(name)
        and (ROOT / module.replace(".", "/")).with_suffix(".py").is_file()
    ]
    assert not deep, f"{name} imports past a package's face: {deep}"


@pytest.mark.whole
@pytest.mark.parametrize("name", ALL_FILES)
def test_only_the_torch_packages_import_torch(name: str) -> None:
    imports_torch = any(module.split(".")[0] == "torch" for module, _ in imports_of(LIBRARY / name))
    assert not imports_torch or name.startswith(MAY_IMPORT_TORCH), f"{name} imports torch"


@pytest.mark.parametrize("name", [file for file in FILES if not file.startswith("engines/local/")])
def test_only_the_local_engine_knows_the_local_engine(name: str) -> None:
    """Everything else has an `Engine`, from `make_engine`; the registry loads the local factory by its module."""
    local = [module for module, _ in imports_of(LIBRARY / name) if module.startswith("agent_r1.engines.local")]
    assert local == (["agent_r1.engines.local.factory"] if name == "engines/base.py" else [])


@pytest.mark.whole
def test_nothing_outside_the_library_is_imported_by_it() -> None:
    roots = {module.split(".")[0] for name in FILES for module, _ in imports_of(LIBRARY / name)}
    assert not roots & {"recipes", "tests", "benchmarks", "examples"}


def test_the_readme_tree_names_every_package() -> None:
    readme = (ROOT / "README.md").read_text()
    missing = sorted(package for package in PACKAGES if f"{package}/" not in readme and f"{package}.py" not in readme)
    assert not missing


def test_no_package_has_more_files_than_one_can_overlook() -> None:
    sizes: dict[str, int] = {}
    for name in FILES:
        folder = name.rpartition("/")[0]
        sizes[folder] = sizes.get(folder, 0) + 1
    assert not {folder: size for folder, size in sizes.items() if size > MAX_FILES}


def test_no_file_of_the_library_outgrows_one_idea() -> None:
    lengths = {name: len((LIBRARY / name).read_text().splitlines()) for name in FILES if name not in KERNELS}
    assert not {name: length for name, length in lengths.items() if length > MAX_LINES}


@pytest.mark.whole
def test_no_function_outgrows_a_screen() -> None:
    lengths = {
        f"{name}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for name in FILES
        if name not in KERNELS
        for node in statements_of(ast.parse((LIBRARY / name).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES}
