"""The documentation as a site: its navigation, its references, its links, and that it needs no other server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import agent_r1
from agent_r1.config import known_keys
from agent_r1.shipped import shipped_recipes

pytest.importorskip("mkdocs", reason="the extra docs is not installed")

from docs.generate.commands import command_names, commands_page
from docs.generate.configuration import configuration_page
from docs.generate.docstrings import as_markdown
from docs.generate.hooks import generated_pages, inside_links
from docs.generate.nav import make_nav, written_pages
from docs.generate.pictures import FOLDER, PICTURES
from docs.generate.python_api import python_page

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in [
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "recipes").glob("*/README.md")),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ]
}


def without_code(text: str) -> str:
    """A page without its blocks of code, in which a bracket is no link and a # no heading."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?:^(?: {4}|\t).*\n?)+", "", text, flags=re.MULTILINE)


def anchors_of(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#{1,6} (.+?)\s*$", without_code(text), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "") for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def links_of(text: str) -> list[str]:
    return [
        link
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "code", without_code(text)))
        if not link.startswith(("http://", "https://", "mailto:"))
    ]


GENERATED = {f"docs/{path}": text for path, text in generated_pages().items()}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_and_anchor_leads_somewhere(page: str) -> None:
    """Links of pages in docs/ to generated pages lead to what the site has there."""
    dead = []
    for link in links_of(PAGES[page]):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent.joinpath(path).resolve() if path else ROOT / page
        name = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else ""
        text = GENERATED.get(name) or (target.read_text() if target.suffix == ".md" and target.is_file() else None)
        if (text is None and not target.exists()) or (anchor and (text is None or anchor not in anchors_of(text))):
            dead.append(link)
    assert not dead


def test_anchors_are_those_of_the_headings() -> None:
    text = "# A `b_c` of [d](e.md): f\n\n```sh\n# no heading\n```\n\n    # none either\n"
    assert anchors_of(text) == {"a-b_c-of-d-f"}
    assert links_of("[a](b.md#c) `[x](y)` https://z\n\n    [no](code.md)\n") == ["b.md#c"]


def placed(pages: list[str]) -> dict[str, list[str]]:
    """The pages of each section of the navigation; an entry with a title of its own is a mapping."""
    return {
        title: [page if isinstance(page, str) else next(iter(page.values())) for page in listed]
        for section in make_nav(pages)
        for title, listed in section.items()
    }


@pytest.mark.whole
def test_every_page_has_one_place_in_the_navigation() -> None:
    pages = [*written_pages(), *generated_pages()]
    assert sorted(page for listed in placed(pages).values() for page in listed) == sorted(pages)
    more = placed([*pages, "later.md", "tutorials/later.md"])
    assert "tutorials/later.md" in more["Tutorials"]
    assert [page for listed in more.values() for page in listed].count("later.md") == 1


def test_the_reference_of_the_configuration_has_every_key() -> None:
    page = configuration_page()
    rows = dict(re.findall(r"^\| `([\w.]+)` \|.*\| (.*) \|$", page, re.MULTILINE))
    assert sorted(rows) == sorted(known_keys())
    assert not [key for key, meaning in rows.items() if len(meaning) < 8]


def test_the_python_reference_has_every_public_name() -> None:
    sections = re.split(r"^### ", python_page(), flags=re.MULTILINE)[1:]
    texts = {section.partition("\n")[0]: section.partition("\n")[2].strip() for section in sections}
    assert sorted(texts) == sorted(set(agent_r1.__all__) - {"__version__"})
    assert not [name for name, text in texts.items() if len(re.sub(r"```.*?```", "", text, flags=re.DOTALL)) < 20]


def test_the_command_reference_has_every_command_with_its_options() -> None:
    page = commands_page()
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == command_names()
    train = page.partition("## agent-r1 train\n")[2].partition("\n## ")[0]
    assert "| `--dry-run` |" in train
    assert "agent-r1 train quickstart algorithm=ppo" in train
    assert {"agent-r1 recipes copy", "agent-r1 env serve", "agent-r1 view"} <= set(command_names())


def test_every_recipe_has_a_page_and_a_row() -> None:
    for recipe in shipped_recipes():
        assert f"docs/recipes/{recipe.name}.md" in GENERATED
        assert f"[{recipe.name}]({recipe.name}.md)" in GENERATED["docs/recipes/index.md"]
        assert re.search(rf"agent-r1 (train|eval) {recipe.name}\b", GENERATED[f"docs/recipes/{recipe.name}.md"])
        assert not re.search(r"agent-r1 \w+ recipes/", GENERATED[f"docs/recipes/{recipe.name}.md"])


def test_links_out_of_the_documentation_become_links_of_the_site_or_text() -> None:
    text = "[r](../recipes/gsm8k/README.md#x) [`a.py`](../agent_r1/errors.py) [b](../agent_r1/errors.py) [c](models.md)"
    assert inside_links(text, "tools.md") == "[r](recipes/gsm8k.md#x) `a.py` b (`agent_r1/errors.py`) [c](models.md)"


def test_arguments_of_a_docstring_become_a_list() -> None:
    text = "Train.\n\n    Args:\n        model: A folder\n            or an id.\n        data: Rows <x>.\n    "
    assert as_markdown(text) == "Train.\n\n- `model`: A folder or an id.\n- `data`: Rows <x>."
    assert as_markdown("runs/<name> and `<x>`") == "runs/&lt;name> and `<x>`"


def test_the_pictures_are_those_that_the_script_draws() -> None:
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(PICTURES)
    for name, draw in PICTURES.items():
        assert (FOLDER / f"{name}.svg").read_text() == draw().svg(), "run python -m docs.generate.pictures"


def test_every_key_on_the_page_for_people_who_come_from_elsewhere_exists() -> None:
    rows = re.findall(r"^\| .* \| (.*) \|$", PAGES["docs/coming_from.md"], re.MULTILINE)
    named = {key for cell in rows for key in re.findall(r"`([a-z_]+\.[\w.]+)(?:=[^`]*)?`", cell)}
    sections = {key.partition(".")[0] for key in known_keys()} - {"env", "tools"}
    keys = {key for key in named if key.partition(".")[0] in sections}
    assert len(keys) > 40
    known = (*known_keys(), "algorithm.loss.ratio")
    assert not sorted(key for key in keys if key not in known)


@pytest.mark.whole
def test_the_site_is_built_without_a_warning_and_needs_no_other_server(tmp_path: Path) -> None:
    """By the command of `make docs`, with another folder for the site."""
    made_by = re.search(r"^\t.*python (-m mkdocs .*) build/site$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert made_by is not None
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *made_by[1].split(), str(tmp_path / "site")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 30
    outside = r'<(?:script|img|link|iframe)[^>]*\s(?:src|href)="(?:https?:)?//[^"]*"'
    found = {page.name: re.findall(outside, page.read_text()) for page in pages}
    assert not {name: links for name, links in found.items() if [link for link in links if "canonical" not in link]}
    assert not [
        path.name for path in (tmp_path / "site").rglob("*.css") if re.search(r"url\(.?https?:", path.read_text())
    ]
    assert not list((tmp_path / "site").rglob("*.py"))
