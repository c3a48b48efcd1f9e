"""Recipes by name: `quickstart` is the user's own folder of that name, else the recipe that comes with Agent-R1.

In an installed package the recipes are in `agent_r1/recipes`, which the build copies there; in a clone they are the
folder `recipes` beside `agent_r1`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent_r1.errors import ConfigError, did_you_mean

_LIBRARY = Path(__file__).parents[1]
_OWN_FOLDER = Path("recipes")
"""Where `agent-r1 init` writes recipes, if the folder exists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShippedRecipe:
    """A recipe that comes with Agent-R1."""

    name: str
    folder: Path
    summary: str
    """One line, from the title of its README."""
    needs: str
    """What it takes to run it, from the line `Needs:` of its README."""


def shipped_recipes() -> list[ShippedRecipe]:
    """Every recipe that comes with Agent-R1, by name."""
    return [_describe(file.parent) for file in sorted(_shipped_folder().glob("*/base.yaml"))]


def find_recipe(recipe: str | Path) -> Path:
    """The folder of a recipe: the path itself; for a plain name also `recipes/<name>`, else the one that comes with
    Agent-R1. Raises `ConfigError` when there is none."""
    folder = _own_folder(recipe)
    if folder is not None:
        return folder
    names = {shipped.name: shipped.folder for shipped in shipped_recipes()}
    name = str(recipe)
    if name in names and not _exists(Path(name)):
        return names[name]
    raise ConfigError(f"{_why_not(Path(recipe))}. {_advice(Path(recipe), names)}")


def recipe_note(recipe: str | Path) -> str | None:
    """What to tell the user of a recipe that was given by a name which a recipe of Agent-R1 has; None: nothing."""
    name, folder = str(recipe), _own_folder(recipe)
    shipped = next((entry for entry in shipped_recipes() if entry.name == name), None)
    if shipped is None or (folder is not None and folder.resolve() == shipped.folder.resolve()):
        return None
    if folder is not None:
        return f"recipe: your folder {folder}, not the recipe '{name}' that comes with Agent-R1"
    return f"recipe: '{name}' of Agent-R1; to edit it: agent-r1 recipes copy {name}"


def _shipped_folder() -> Path:
    installed = _LIBRARY / "recipes"
    return installed if installed.is_dir() else _LIBRARY.parent / "recipes"


def _describe(folder: Path) -> ShippedRecipe:
    readme = (folder / "README.md").read_text(encoding="utf-8")
    title = re.search(r"^# [^:\n]*: (.+)$", readme, re.MULTILINE)
    needs = re.search(r"^Needs: (.+?)$", readme, re.MULTILINE)
    return ShippedRecipe(
        name=folder.name,
        folder=folder,
        summary=title[1] if title else "",
        needs=needs[1].rstrip(".") if needs else "",
    )


def _own_folder(recipe: str | Path) -> Path | None:
    """The user's folder that is meant, if it is a recipe."""
    path = Path(recipe)
    is_name = len(path.parts) == 1
    places = [path] if not is_name or _exists(path) else [path, _OWN_FOLDER / path]
    return next((place for place in places if _is_file(place / "base.yaml")), None)


def _exists(path: Path) -> bool:
    return _is(Path.exists, path)


def _is_file(path: Path) -> bool:
    return _is(Path.is_file, path)


def _is(test: Callable[[Path], bool], path: Path) -> bool:
    try:
        return test(path)
    except (OSError, ValueError):  # a path that the file system does not take
        return False


def _why_not(folder: Path) -> str:
    return f"'{folder}' is not a recipe: there is no file {folder / 'base.yaml'}"


def _advice(path: Path, names: dict[str, Path]) -> str:
    if path.name in names and str(path) != path.name:
        return f"Did you mean the recipe '{path.name}' that comes with Agent-R1? Give its name alone"
    if path.name in names:
        return f"The recipe '{path.name}' of Agent-R1 is hidden by this folder; rename the folder, or run elsewhere"
    return f"Give a folder with a base.yaml, or a recipe that comes with Agent-R1. {did_you_mean(path.name, names)}"
