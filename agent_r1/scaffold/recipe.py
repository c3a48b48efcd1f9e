"""`agent-r1 init`: a recipe folder that trains at once, to be edited into one's own.

The folder is made of real files, `templates/common` and those of one kind, with three words replaced:

    my_task    the recipe's name, in texts and in file names
    my_agent   the flow that the rows name
    my_folder  the recipe's folder as it is typed on the command line
"""

from __future__ import annotations

import importlib.util
import keyword
import sys
import sysconfig
from enum import StrEnum
from pathlib import Path

from agent_r1.errors import ConfigError
from agent_r1.shipped import shipped_recipes

TEMPLATES = Path(__file__).parent / "templates"
_SUFFIXES = (".py", ".yaml", ".md")  # installers leave compiled files beside the templates

_TAKEN = {
    **dict.fromkeys(("agent_r1", "recipes", "tests", "benchmarks"), "is a package of this project"),
    **dict.fromkeys(("tool", "env_loop", "single_step"), "is a name that Agent-R1 gives to a part of its own"),
}


class Kind(StrEnum):
    """What a recipe brings of its own."""

    TOOL = "tool"
    """Tools that the model calls (`tools.py`)."""
    ENV = "env"
    """An environment (`env/`)."""
    FLOW = "flow"
    """A flow: every prompt and step is its own doing (`<name>_agent_flow.py`)."""


def write_recipe(name: str, *, kind: Kind = Kind.TOOL, into: Path | None = None) -> list[Path]:
    """Write the folder `into/name` and give the files written. Nothing that exists is overwritten.

    Without `into`, recipes go to the folder `recipes` where there is one, else to the working directory.
    """
    check_name(name)
    folder = (into if into is not None else usual_place()) / name
    check_folder(folder)
    words = {
        "my_task": name,
        "my_agent": name if kind is Kind.FLOW else "env_loop",
        "my_folder": folder.as_posix(),
    }
    texts = {folder / _fill(path, words): _fill(text, words) for path, text in _template(kind).items()}
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return sorted(texts)


def _template(kind: Kind) -> dict[str, str]:
    """The files of a kind, by their paths inside the recipe."""
    return {
        file.relative_to(part).as_posix(): file.read_text(encoding="utf-8")
        for part in (TEMPLATES / "common", TEMPLATES / kind)
        for file in sorted(part.rglob("*"))
        if file.suffix in _SUFFIXES
    }


def _fill(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def usual_place() -> Path:
    """Where recipes go: the folder `recipes` if it exists, else the working directory."""
    recipes = Path("recipes")
    return recipes if recipes.is_dir() else Path()


def check_name(name: str) -> None:
    """Refuse a name that a recipe cannot have."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name.startswith("_"):
        raise ConfigError(
            f"'{name}' cannot name a recipe, because it names Python files too: use letters, digits and '_', with a "
            "letter first and no word of Python, for example my_shop"
        )
    problem = "is a module of Python's own" if name in sys.stdlib_module_names else _TAKEN.get(name)
    if name in {recipe.name for recipe in shipped_recipes()}:
        problem = f"is a recipe that comes with Agent-R1, and both would write to runs/{name}"
    if problem is None and _is_installed(name):
        problem = "is an installed package, and Python would find the recipe in its place"
    if problem is not None:
        raise ConfigError(f"'{name}' {problem}; choose another name, for example my_{name}")


def _is_installed(name: str) -> bool:
    """Whether a package of this name is in the environment."""
    spec = importlib.util.find_spec(name)
    places = {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    return spec is not None and spec.origin is not None and bool(places & set(Path(spec.origin).parents))


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something already, or cannot be made."""
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"the folder {folder} exists and is not empty; nothing was written. Choose another place")
    blocking = next((part for part in (folder, *folder.parents) if part.exists() and not part.is_dir()), None)
    if blocking is not None:
        raise ConfigError(f"{folder} cannot be made: {blocking} is a file. Choose another place")
