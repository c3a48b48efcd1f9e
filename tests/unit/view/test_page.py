"""The files of the viewer's page: small modules that load nothing from outside and never make markup of data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import agent_r1.view

STATIC = Path(agent_r1.view.__file__).parent / "static"
FILES = {path.relative_to(STATIC).as_posix(): path.read_text() for path in sorted(STATIC.rglob("*")) if path.is_file()}
MODULES = {name.removeprefix("js/"): text for name, text in FILES.items() if name.startswith("js/")}
START = "theme_start.js"
"""The one classic script: it runs before the first paint."""


def imports_of(text: str) -> set[str]:
    return set(re.findall(r'^import .*? from "\./([^"]+)";$', text, re.MULTILINE))


def reached(name: str) -> set[str]:
    """A module and all that it imports, directly or not."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += imports_of(MODULES[module])
    return found


def test_the_page_is_complete_and_has_nothing_else() -> None:
    named = set(re.findall(r'(?:src|href)="/static/([^"]+)"', FILES["index.html"]))
    assert named | {f"js/{name}" for name in reached("main.js")} | {"index.html"} == FILES.keys()


def test_modules_import_each_other_without_circles() -> None:
    for name in MODULES.keys() - {START}:
        for imported in imports_of(MODULES[name]):
            assert name not in reached(imported), f"{name} and {imported} import each other"


def test_what_a_module_imports_is_exported_there_and_used() -> None:
    for name, text in MODULES.items():
        for names, source in re.findall(r'^import \{([^}]*)\} from "\./([^"]+)";$', text, re.MULTILINE):
            exports = r"^export (?:async )?(?:function|const|class) (\w+)"
            exported = set(re.findall(exports, MODULES[source], re.MULTILINE))
            wanted = {entry.strip() for entry in names.split(",") if entry.strip()}
            assert wanted <= exported, f"{name} imports {wanted - exported} from {source}"
            unused = [entry for entry in wanted if len(re.findall(rf"\b{entry}\b", text)) < 2]
            assert not unused, f"{name} imports {unused} and does not use it"


@pytest.mark.parametrize("name", MODULES)
def test_data_never_becomes_markup_or_code(name: str) -> None:
    code = re.sub(r"//.*", "", MODULES[name])
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|setHTML"
    assert not re.search(rf"{markup}|\beval\(|new Function|\.srcdoc|\.cssText", code)
    assert not re.search(r"setAttribute\(\s*[\"'](on|style|srcdoc)", code)


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_loaded_from_outside(name: str) -> None:
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", FILES[name]))
    assert addresses <= {"http://www.w3.org"}  # the name of the SVG format
    assert "@import" not in FILES[name]
    assert "@font-face" not in FILES[name]


def test_the_page_has_no_inline_script_or_style() -> None:
    page = FILES["index.html"]
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", page) == []


@pytest.mark.parametrize("name", MODULES)
def test_no_module_outgrows_one_idea(name: str) -> None:
    assert len(MODULES[name].splitlines()) <= 250
