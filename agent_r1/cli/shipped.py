"""`agent-r1 recipes`: the recipes that come with Agent-R1."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_r1.cli.errors import readable_errors
from agent_r1.scaffold import copy_recipe
from agent_r1.shipped import recipe_note, shipped_recipes


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
        typer.echo(f"\ntrain it:  agent-r1 train {target}\nread it:   {target}/README.md")


def say_which(recipe: str) -> None:
    """Say on stderr which recipe a name means, where it could mean two."""
    note = recipe_note(recipe)
    if note is not None:
        typer.echo(note, err=True)
