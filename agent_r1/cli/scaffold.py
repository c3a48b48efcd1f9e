"""`agent-r1 init`: write a recipe to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agent_r1.cli.errors import readable_errors
from agent_r1.scaffold import Kind, write_recipe

_LEFTOVERS = ("data", "warm_start")
"""Of an earlier recipe of the same name: `runs/<name>_data` and the like."""


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
