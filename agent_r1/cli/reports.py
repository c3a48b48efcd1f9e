"""`agent-r1 plot` and `agent-r1 table`: compare runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agent_r1.cli.errors import readable_errors

Runs = Annotated[list[Path], typer.Argument(help="Run folders, for example runs/quickstart.", metavar="RUN...")]


def plot(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The figure to write: .png, .svg or .pdf.", metavar="FILE")],
    keys: Annotated[
        str | None, typer.Option(help="Metrics to draw, separated by commas: reward/outcome,eval/all/greedy.")
    ] = None,
    by_minutes: Annotated[
        bool, typer.Option("--by-minutes", help="Draw against minutes of training instead of steps.")
    ] = False,
) -> None:
    """Draw the curves of runs from their metrics.jsonl: a panel per metric, a line per run (extra `plot`).

    Examples:

      agent-r1 plot runs/quickstart --out curves.png
      agent-r1 plot runs/grpo runs/ppo --out curves.svg --keys reward/success,eval/all/greedy --by-minutes
    """
    from agent_r1.runs import draw_curves, read_runs, save_figure

    with readable_errors():
        names = [key.strip() for key in (keys or "").split(",") if key.strip()]
        save_figure(draw_curves(read_runs(runs), names, by_minutes=by_minutes), out)
        typer.echo(f"wrote {out}")


def table(
    runs: Runs,
    md: Annotated[bool, typer.Option("--md", help="Print markdown, for a document.")] = False,
    split: Annotated[
        str | None,
        typer.Option(
            help="The rows of the figures: validation, test or train. Without it, test where all runs were evaluated "
            "on it (`agent-r1 eval RUN`), otherwise validation.",
            metavar="NAME",
        ),
    ] = None,
    pool: Annotated[bool, typer.Option("--pool", help="One row for runs that differ in their seed only.")] = False,
) -> None:
    """Compare runs in a table: model, algorithm, seed, steps, minutes, memory, held-out tasks before and after.

    The gain is over the model that a run started from, task by task, with its 95 % interval and p-value.

    Examples:

      agent-r1 table runs/quickstart
      agent-r1 table runs/grpo runs/ppo --md
      agent-r1 table runs/grpo_0 runs/grpo_1 runs/grpo_2 --pool
    """
    from agent_r1.console import RunConsole
    from agent_r1.runs import markdown_table, read_runs, table_rows

    with readable_errors():
        records = read_runs(runs)
        if md:
            typer.echo(markdown_table(records, split=split, pool=pool), nl=False)
        else:
            RunConsole().rows("runs", table_rows(records, split=split, pool=pool))
