"""`agent-r1 recipes copy`: a recipe that comes with Agent-R1 as a folder of one's own, which trains as it is.

The copy has runs of its own: `runs/hotpotqa` and the recipe's folder in commands become those of the copy.
"""

from __future__ import annotations

import re
from pathlib import Path

from agent_r1.errors import UnknownNameError, did_you_mean
from agent_r1.scaffold.recipe import check_folder, check_name, usual_place
from agent_r1.shipped import ShippedRecipe, shipped_recipes

_TEXTS = (".py", ".yaml", ".md")
_LEFT_OUT = ("__pycache__",)
_REPOSITORY_LINK = re.compile(r"\[([^\]]+)\]\(\.\./\.\./[^)]+\)")
_REPOSITORY_ROW = re.compile(r"^\|[^\n]*\.\./\.\./[^\n]*\n", re.MULTILINE)


def copy_recipe(name: str, folder: Path | None = None) -> list[Path]:
    """Copy the recipe of that name and give the files written. Nothing that exists is overwritten.

    Without `folder` the copy has the recipe's name, in the folder `recipes` where there is one.
    """
    recipes = {recipe.name: recipe for recipe in shipped_recipes()}
    if name not in recipes:
        raise UnknownNameError(f"there is no recipe '{name}'. {did_you_mean(name, recipes)}")
    target = folder if folder is not None else usual_place() / name
    if target.name != name:
        check_name(target.name)
    check_folder(target)
    contents = {target / path: content for path, content in _contents(recipes[name], target).items()}
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return sorted(contents)


def _contents(recipe: ShippedRecipe, target: Path) -> dict[Path, bytes]:
    """The files of the copy, by their paths inside it."""
    files = [file for file in sorted(recipe.folder.rglob("*")) if file.is_file()]
    return {
        file.relative_to(recipe.folder): _adapt(file, recipe.name, target)
        for file in files
        if not set(file.parts) & set(_LEFT_OUT)
    }


def _adapt(file: Path, name: str, target: Path) -> bytes:
    if file.suffix not in _TEXTS:
        return file.read_bytes()
    text = file.read_text(encoding="utf-8")
    text = re.sub(rf"\brecipes/{name}\b", lambda match: target.as_posix(), text)
    text = re.sub(
        rf"(\bruns/|\$\{{run\.folder\}}/|\brun\.name=|^  name: ){name}", rf"\g<1>{target.name}", text, flags=re.M
    )
    if file.suffix == ".md":  # links into the repository
        text = _REPOSITORY_LINK.sub(r"\1", _REPOSITORY_ROW.sub("", text))
    return text.encode()
