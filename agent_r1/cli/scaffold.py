"""`agent-r1 init` and `agent-r1 recipes`: a recipe to start from, new or one that comes with Agent-R1."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_r1.cli.errors import readable_errors
from agent_r1.scaffold import Kind, copy_recipe, write_recipe
from agent_r1.shipped import recipe_note, shipped_recipes

_LEFTOVERS = ("data", "warm_start")
"""What an earlier recipe of the same name may have left: `runs/<name>_data` and the like."""


def init(
    name: Annotated[str, typer.Argument(help="The recipe's name, for example my_shop.")],
    into: Annotated[
        Path | None,
        typer.Option(help="Where to make the folder NAME. Default: recipes if it exists, else the current folder."),
    ] = None,
    kind: Annotated[
        Kind,
        typer.Option(help="tool: tools of your own. env: an environment. flow: full control over prompts and steps."),
    ] = Kind.TOOL,
) -> None:
    """Write a recipe folder that can be trained as it is, to be edited into your own.

    It holds a small task with its data, reward, prompts, test and README; a tiny model is made on the spot. No file is
    overwritten.

    Examples:

      agent-r1 init my_shop
      agent-r1 init my_maze --kind env --into .
    """
    with readable_errors():
        files = write_recipe(name, kind=kind, into=into)
        folder = next(file.parent for file in files if file.name == "base.yaml")
        typer.echo("\n".join(f"wrote {file}" for file in files))
        leftovers = [path for path in (Path("runs") / f"{name}_{part}" for part in _LEFTOVERS) if path.exists()]
        if leftovers:
            typer.echo(f"of an earlier recipe {name}; delete before training: {' '.join(map(str, leftovers))}")
        typer.echo(f"\ntrain it:  agent-r1 train {folder}\ntest it:   pytest {folder}\nedit it:   {folder}/README.md")


def list_recipes(context: typer.Context) -> None:
    """List the recipes that come with Agent-R1, or copy one to edit it.

    Each is trained by its name, and none needs a clone of the repository.

    Examples:

      agent-r1 recipes
      agent-r1 train quickstart
      agent-r1 recipes copy hotpotqa
    """
    if context.invoked_subcommand is not None:
        return
    table = Table("recipe", "task", "needs", box=None, padding=(0, 2, 1, 0), header_style="bold")
    for recipe in shipped_recipes():
        table.add_row(Text(recipe.name, style="bold"), Text(recipe.summary), Text(recipe.needs))
    with readable_errors():
        Console(highlight=False).print(table)
        typer.echo("train one:  agent-r1 train quickstart\nedit one:   agent-r1 recipes copy hotpotqa my_search")


def copy(
    name: Annotated[str, typer.Argument(help="The recipe to copy; `agent-r1 recipes` lists them.")],
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="The folder to make. Default: the recipe's name, in the folder recipes if there is one.",
            metavar="[FOLDER]",
        ),
    ] = None,
) -> None:
    """Copy a recipe into a folder of your own, to edit it. The copy trains as it is, with runs of its own name.

    No file is overwritten.

    Examples:

      agent-r1 recipes copy hotpotqa
      agent-r1 recipes copy hotpotqa my_search
    """
    with readable_errors():
        files = copy_recipe(name, folder)
        target = next(file.parent for file in files if file.name == "base.yaml")
        typer.echo("\n".join(f"wrote {file}" for file in files))
        from agent_r1.config import load_config  # Hydra takes a moment, which listing recipes does without

        is_trained = bool(load_config(target).data.train)
        use = f"train it:  agent-r1 train {target}" if is_trained else f"use it:    agent-r1 eval {target}"
        typer.echo(f"\n{use}\nread it:   {target}/README.md")


def say_which(recipe: str) -> None:
    """Say on stderr which recipe a name means, where it could mean two."""
    note = recipe_note(recipe)
    if note is not None:
        typer.echo(note, err=True)
