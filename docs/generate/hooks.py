"""Hooks of mkdocs: the navigation, the generated pages, and links that lead out of docs/."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:  # mkdocs loads this file by its path
    sys.path.insert(0, str(ROOT))

from docs.generate.commands import commands_page  # noqa: E402
from docs.generate.configuration import configuration_page  # noqa: E402
from docs.generate.nav import make_nav, written_pages  # noqa: E402
from docs.generate.python_api import python_page  # noqa: E402
from docs.generate.recipes import recipe_pages  # noqa: E402

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")


def generated_pages() -> dict[str, str]:
    """The pages that no file in docs/ holds, by their paths in the site."""
    return {
        "reference/commands.md": commands_page(),
        "reference/configuration.md": configuration_page(),
        "reference/python.md": python_page(),
        **recipe_pages(),
    }


def on_config(config: Any) -> Any:
    """Set the navigation."""
    config["nav"] = make_nav([*written_pages(), *generated_pages()])
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the generated pages."""
    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Make links out of docs/ links of the site, or plain text."""
    return inside_links(markdown, page.file.src_uri)


def inside_links(markdown: str, page: str) -> str:
    """The text of a page with links that the site can follow. A recipe has a page; a source file has none."""

    def replaced(match: re.Match[str]) -> str:
        text, target = match["text"], match["target"]
        path, _, anchor = target.partition("#")
        if not path or ":" in path:
            return match[0]
        place = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), path))
        if place.startswith("docs/"):
            return match[0]
        recipe = re.match(r"recipes/(\w+)/README\.md$", place)
        if recipe is not None:
            there = posixpath.relpath(f"recipes/{recipe[1]}.md", posixpath.dirname(page) or ".")
            return f"[{text}]({there}{'#' + anchor if anchor else ''})"
        return text if text.startswith("`") else f"{text} (`{place}`)"

    return _LINK.sub(replaced, markdown)
