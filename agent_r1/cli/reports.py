"""`agent-r1 plot`, `agent-r1 table` and `agent-r1 replay`: compare runs, and what another reward makes of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agent_r1.cli.errors import readable_errors
from agent_r1.codec import write_json
from agent_r1.errors import ConfigError

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
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write one small JSON file per run into this folder, for publishing, instead of a table. Results of "
            "`agent-r1 eval --json` are taken too.",
            metavar="FOLDER",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="With --export: the model's name; by default that of its folder.", metavar="NAME")
    ] = None,
) -> None:
    """Compare runs in a table: model, algorithm, seed, steps, minutes, memory, held-out tasks before and after.

    The gain is over the model that a run started from, task by task, with its 95 % interval and p-value.

    Examples:

      agent-r1 table runs/quickstart
      agent-r1 table runs/grpo runs/ppo --md
      agent-r1 table runs/grpo_0 runs/grpo_1 runs/grpo_2 --pool
      agent-r1 table runs/grpo runs/ppo react.json --export docs/generate/published --model Qwen2.5-Coder-1.5B-Instruct
    """
    from agent_r1.console import RunConsole
    from agent_r1.runs import markdown_table, read_runs, table_rows

    with readable_errors():
        if export is not None:
            _export(runs, export, split=split or "test", model=model)
            return
        if model is not None:
            raise ConfigError("--model names the model of exported results; give --export FOLDER as well")
        records = read_runs(runs)
        if md:
            typer.echo(markdown_table(records, split=split, pool=pool), nl=False)
        else:
            RunConsole().rows("runs", table_rows(records, split=split, pool=pool))


def _export(paths: list[Path], folder: Path, *, split: str, model: str | None) -> None:
    """Write what is published of runs, and of the results of evaluations."""
    from agent_r1.runs import publish_evaluation, publish_run, read_runs, write_published

    folders = [path for path in paths if path.suffix != ".json"]
    published = [publish_run(run, split=split, model=model) for run in read_runs(folders)]
    published += [publish_evaluation(path, model=model) for path in paths if path.suffix == ".json"]
    for result in published:
        typer.echo(f"wrote {write_published(folder, result)}")


def replay(
    run: Annotated[Path, typer.Argument(help="A run folder, for example runs/quickstart.", metavar="RUN")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="What to change: any number of key=value of reward, algorithm, optimizer and trainer, for example "
            "reward.function=reward_fn:stricter, reward.process_weight=0.5 or algorithm=rloo."
        ),
    ] = None,
    step: Annotated[
        list[int] | None, typer.Option(min=1, help="Only this training step; may be given several times.")
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Also make one update from the last step, print its metrics, save nothing.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(help="With --train: weights to start from; by default those that sampled the step."),
    ] = None,
    show: Annotated[
        int, typer.Option(min=0, help="Print this many of the trajectories that change most.", metavar="NUMBER")
    ] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the result to this file.", metavar="FILE")
    ] = None,
) -> None:
    """Score the recorded rollouts of a run with a changed reward or estimator, without rolling out.

    Shows what would have changed: the mean of every part of the reward, the rank correlation of old and new rewards
    over all trajectories and within groups, the share of advantages that change their sign, and the trajectories that
    change most. Without key=value, the reward function of the recipe is called as it is now: edit it, and replay.

    With --train, one update is made from the recorded rollouts, with the weights that sampled them: the model that the
    run started from for step 1, a checkpoint of the step before for any other. The run's folder is only read.

    Examples:

      agent-r1 replay runs/quickstart                                      # after an edit of its reward_fn.py
      agent-r1 replay runs/quickstart reward.function=reward_fn:stricter --show 3
      agent-r1 replay runs/quickstart 'reward.functions=[{name: reward_fn:score}, {name: reward_fn:short, weight: 0.2}]'
      agent-r1 replay runs/quickstart algorithm=rloo --step 1 --step 20
      agent-r1 replay runs/quickstart --train --step 1 optimizer.learning_rate=1e-3 --json replay.json
    """
    from agent_r1 import api
    from agent_r1.files import write_atomically
    from agent_r1.training.replay import replay_as_json

    with readable_errors():
        result = api.replay(run, overrides=overrides or [], steps=step or [], train=train, model=model, show=show)
        if json_file is not None:
            write_atomically(json_file, write_json(replay_as_json(result), indent=2) + "\n")
