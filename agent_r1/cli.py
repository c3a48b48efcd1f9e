"""`agent-r1`: begin a recipe; train, evaluate and warm-start agents from the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from agent_r1.errors import AgentR1Error
from agent_r1.scaffold import Kind, write_recipe

app = typer.Typer(
    help="Train language-model agents with reinforcement learning over whole multi-turn interactions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Recipe = Annotated[str, typer.Argument(help="A recipe folder: one with a base.yaml, for example recipes/quickstart.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Any number of key=value, for example algorithm=ppo trainer.steps=20. "
        "All keys with their values: agent-r1 train RECIPE --dry-run."
    ),
]


@app.command()
def train(
    recipe: Recipe,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check configuration, data and names, print the configuration, stop.")
    ] = False,
) -> None:
    """Train an agent with reinforcement learning.

    The run's folder (runs/<name>) holds config.yaml, metrics.jsonl, trajectories/, checkpoints/, the trained model in
    hf/ and summary.json. A run that was interrupted goes on from its last checkpoint when started again.

    Example: agent-r1 train recipes/quickstart algorithm=ppo trainer.steps=20
    """
    from agent_r1 import api

    with _clear_errors():
        if not dry_run:
            api.train(recipe, *(overrides or []))
            return
        from agent_r1.console import RunConsole
        from agent_r1.registry import recipe_folder
        from agent_r1.training import run

        folder, config = api.resolve([recipe, *(overrides or [])])
        with recipe_folder(folder):
            run.dry_run(config, RunConsole())


@app.command("eval")
def evaluate(
    recipe: Recipe,
    overrides: Overrides = None,
    model: Annotated[
        str | None, typer.Option(help="The model to evaluate: a folder such as runs/quickstart/hf, or an id.")
    ] = None,
) -> None:
    """Evaluate a model on a recipe's held-out rows: greedy, and with eval.samples=k also mean, best@k and maj@k.

    Example: agent-r1 eval recipes/quickstart --model runs/quickstart/hf eval.samples=4
    """
    from agent_r1 import api
    from agent_r1.console import RunConsole

    with _clear_errors():
        evaluation = api.evaluate(recipe, *(overrides or []), model=model)
        RunConsole().metrics_table("held-out tasks", evaluation.metrics)


@app.command()
def sft(recipe: Recipe, overrides: Overrides = None) -> None:
    """Warm-start a model on demonstrations: rows with `messages` (whole conversations) and optional `tools`.

    Example: agent-r1 sft recipes/quickstart model.path=MODEL sft.data=[demos.jsonl] run.name=warm
    """
    from agent_r1 import api

    with _clear_errors():
        folder = api.sft(recipe, *(overrides or []))
        typer.echo(f"model: {folder}")


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="The recipe's name, for example my_shop.")],
    into: Annotated[
        Path | None,
        typer.Option(help="Where to make the folder NAME. Default: recipes where there is one, else here."),
    ] = None,
    kind: Annotated[
        Kind,
        typer.Option(help="tool: tools of your own. env: an environment. flow: full control over prompts and steps."),
    ] = Kind.TOOL,
) -> None:
    """Write a recipe folder that trains at once, to be edited into your own.

    A small task with its data, reward, prompts, test and README; a model is made on the spot. Nothing is overwritten.

    Example: agent-r1 init my_shop, then agent-r1 train recipes/my_shop
    """
    with _clear_errors():
        files = write_recipe(name, kind=kind, into=into)
        folder = next(file.parent for file in files if file.name == "base.yaml")
        typer.echo("\n".join(f"wrote {file}" for file in files))
        left_over = [
            path for path in (Path("runs") / f"{name}_{part}" for part in ("data", "warm_start")) if path.exists()
        ]
        if left_over:
            typer.echo(f"of an earlier recipe {name}; delete before training: {' '.join(map(str, left_over))}")
        typer.echo(f"\ntrain it:  agent-r1 train {folder}\ntest it:   pytest {folder}\nedit it:   {folder}/README.md")


@contextmanager
def _clear_errors() -> Iterator[None]:
    """What a user can mend is told in one message, without a traceback."""
    try:
        yield
    except AgentR1Error as error:
        Console(stderr=True, highlight=False).print(Text(f"error: {error}", style="red"), soft_wrap=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted; the same command goes on from the last checkpoint")
        raise typer.Exit(130) from None


def main() -> None:
    """The console entry point."""
    app()


if __name__ == "__main__":
    main()
