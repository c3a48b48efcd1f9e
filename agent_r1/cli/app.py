"""The `agent-r1` application: every command in the order of `agent-r1 --help`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from agent_r1.cli.chat import chat
from agent_r1.cli.environments import serve
from agent_r1.cli.export import export
from agent_r1.cli.help_text import help_text
from agent_r1.cli.indexes import index, search
from agent_r1.cli.recipes import check, demonstrate, evaluate, sft, train
from agent_r1.cli.reports import plot, replay, table
from agent_r1.cli.scaffold import copy, init, list_recipes
from agent_r1.cli.scaling.plan import plan
from agent_r1.cli.scaling.serve_engine import serve_engine
from agent_r1.cli.serving import serve as serve_model
from agent_r1.cli.view import view
from agent_r1.version import __version__

_HELP = """Train language-model agents with reinforcement learning over whole multi-turn interactions.

First steps:

  agent-r1 train quickstart     # a tiny model learns to use tools, on a CPU
  agent-r1 view                 # curves and trajectories in the browser
  agent-r1 init my_shop         # write a recipe of your own
  agent-r1 check my_shop        # find what will go wrong
  agent-r1 train my_shop        # train it; writes runs/my_shop
  agent-r1 table runs/my_shop   # held-out tasks before and after
"""


def _new_app(help_: str) -> typer.Typer:
    return typer.Typer(
        help=help_text(help_),
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode="rich",
    )


def _add(group: typer.Typer, name: str, command: Callable[..., Any], panel: str | None = None) -> None:
    group.command(name, help=help_text(command.__doc__ or ""), rich_help_panel=panel)(command)


def _print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"agent-r1 {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options before any command."""


app = _new_app(_HELP)
app.callback(help=help_text(_HELP))(_options)
env_app = _new_app("Serve environments over HTTP.")

recipes_app = typer.Typer(invoke_without_command=True, rich_markup_mode="rich", add_completion=False)
recipes_app.callback(help=help_text(list_recipes.__doc__ or ""))(list_recipes)

_add(app, "init", init, "Recipes")
_add(recipes_app, "copy", copy)
app.add_typer(recipes_app, name="recipes", rich_help_panel="Recipes")
_add(app, "check", check, "Recipes")
_add(app, "train", train, "Recipes")
_add(app, "demonstrate", demonstrate, "Recipes")
_add(app, "sft", sft, "Recipes")
_add(app, "eval", evaluate, "Recipes")
_add(app, "plan", plan, "Recipes")
_add(app, "chat", chat, "Trained agents")
_add(app, "serve", serve_model, "Trained agents")
_add(app, "export", export, "Trained agents")
_add(app, "serve-engine", serve_engine, "More than one process")
_add(app, "view", view, "Finished and running runs")
_add(app, "plot", plot, "Finished and running runs")
_add(app, "table", table, "Finished and running runs")
_add(app, "replay", replay, "Finished and running runs")
_add(app, "index", index, "Tools and environments")
_add(app, "search", search, "Tools and environments")
_add(env_app, "serve", serve)
app.add_typer(env_app, name="env", rich_help_panel="Tools and environments")


def main() -> None:
    """The console entry point."""
    for stream in (sys.stdout, sys.stderr):  # names and model output may have letters that the terminal lacks
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    app()
