"""`agent-r1 train`, `sft`, `demonstrate`, `eval` and `check`: the commands that run a recipe."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from agent_r1.cli.errors import readable_errors
from agent_r1.cli.scaffold import say_which
from agent_r1.codec import write_json
from agent_r1.errors import no_exit

Recipe = Annotated[
    str,
    typer.Argument(
        help="A recipe folder (one with a base.yaml), or the name of a recipe that comes with Agent-R1 (`agent-r1 "
        "recipes`), for example quickstart. Without one, the first key=value: env=gym:FrozenLake-v1 brings its own "
        "tasks.",
        metavar="RECIPE",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Any number of key=value, for example algorithm=ppo trainer.steps=20. "
        "All keys with their values: agent-r1 train RECIPE --dry-run."
    ),
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the result to this file.", metavar="FILE")]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Check configuration, data and names, print the whole configuration, and stop."),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="The model to evaluate: a folder such as runs/quickstart/hf, or a Hugging Face id; with engine=openai, "
        "its name at the server."
    ),
]
Baseline = Annotated[
    str | None, typer.Option(help="react: the untrained model, without a warm start, in the ReAct text format.")
]
Split = Annotated[
    str | None,
    typer.Option(
        help="The rows: validation (on which settings are chosen; the default for a recipe), test (for published "
        "figures; the default for a run) or train.",
        metavar="NAME",
    ),
]
Show = Annotated[int, typer.Option(min=0, help="Print this many episodes, unsolved ones first.", metavar="NUMBER")]
Trajectories = Annotated[
    Path | None, typer.Option(help="Write all greedy episodes to this file, one per line (.jsonl).", metavar="FILE")
]


def train(recipe: Recipe, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Train an agent with reinforcement learning.

    The run's folder (runs/<name>) holds config.yaml, metrics.jsonl, trajectories/, checkpoints/, the trained model in
    hf/ and summary.json. Ctrl-C, SIGTERM and SIGHUP save a checkpoint of the last finished step; the same command
    resumes from it. With trainer.keep_checkpoints=0 no checkpoint is written and nothing can be resumed.

    Examples:

      agent-r1 train quickstart
      agent-r1 train quickstart algorithm=ppo trainer.steps=20 run.name=ppo
      agent-r1 train quickstart algorithm=grpo algorithm.loss.clip_high=0.28
      agent-r1 train quickstart model.path=Qwen/Qwen3-0.6B --dry-run

    An environment that you already have needs no recipe; docs/ready_environments.md has the keys of each kind:

      agent-r1 train env=gym:FrozenLake-v1 model=smollm2
      agent-r1 train env=reasoning_gym:leg_counting model=smollm2
      agent-r1 train env=verifiers:my_environment model=smollm2
      agent-r1 train 'env=mcp:python server.py' model=smollm2 data.train=[tasks.jsonl] reward.function=reward_fn:score
    """
    from agent_r1 import api

    folder, changes = split_arguments(recipe, overrides)
    with readable_errors():
        say_which(recipe)
        if not dry_run:
            api.train(folder, overrides=changes)
            return
        from agent_r1.console import RunConsole
        from agent_r1.registry import recipe_folder
        from agent_r1.training import dry_run as check_only

        config = api.resolve(folder, overrides=changes)
        with no_exit("the code of the recipe"), recipe_folder(api.folder_of(config)):
            check_only(config, RunConsole())


def sft(recipe: Recipe, overrides: Overrides = None) -> None:
    """Warm-start a model on demonstrations: rows with `messages` (whole conversations) and optional `tools`.

    Trains model.path on the rows of sft.data with sft.steps, sft.batch_size and sft.learning_rate, and writes
    runs/<run.name>/hf, from which a training run can start. `demonstrate` makes rows of a model's own episodes.

    Examples:

      agent-r1 sft quickstart model.path=MODEL sft.data=[demos.jsonl] run.name=warm
      agent-r1 train quickstart model.path=runs/warm/hf
    """
    from agent_r1 import api

    with readable_errors():
        named, changes = split_arguments(recipe, overrides)
        say_which(recipe)
        folder = api.sft(named, overrides=changes)
        typer.echo(f"model: {folder}")


def demonstrate(
    recipe: Recipe,
    out: Annotated[Path, typer.Option(help="The file to write, .jsonl or .parquet.", metavar="FILE")],
    overrides: Overrides = None,
    tasks: Annotated[int, typer.Option(min=1, help="Training tasks to sample, drawn with trainer.seed.")] = 512,
    samples: Annotated[int, typer.Option(min=1, help="Episodes per task.")] = 4,
    keep: Annotated[int, typer.Option(min=1, help="Maximum episodes kept per task, shortest first.")] = 2,
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 0.8,
) -> None:
    """Sample demonstrations from the model itself: its own solved episodes on training tasks (rejection sampling).

    Writes rows with `messages` and `tools`, as sft.data reads them: solved episodes without malformed turns, or what
    the recipe's sft.from_episode makes of an episode. The model is sampled as it is, without the recipe's warm start,
    unless sft.folder is given. Held-out rows are never sampled.

    Examples:

      agent-r1 demonstrate quickstart --out own.jsonl model.path=MODEL
      agent-r1 demonstrate quickstart --out own.jsonl --tasks 2000 --samples 8 --keep 1 model.path=MODEL
      agent-r1 sft quickstart model.path=MODEL sft.data=[own.jsonl] run.name=warm
      agent-r1 train quickstart model.path=runs/warm/hf
    """
    from agent_r1 import api

    with readable_errors():
        named, changes = split_arguments(recipe, overrides)
        say_which(recipe)
        api.demonstrate(
            named, out=out, tasks=tasks, samples=samples, keep=keep, temperature=temperature, overrides=changes
        )


def evaluate(
    recipe: Annotated[
        str, typer.Argument(help="A recipe, as for `train`, or the folder of a finished run.", metavar="RECIPE|RUN")
    ],
    overrides: Overrides = None,
    model: Model = None,
    baseline: Baseline = None,
    split: Split = None,
    json_file: JsonFile = None,
    show: Show = 0,
    trajectories: Trajectories = None,
) -> None:
    """Evaluate a model on a recipe's held-out rows: greedy, and with eval.samples=k also mean, best@k and maj@k.

    Every figure is printed per data source, with its 95 % confidence interval over tasks. A finished run is evaluated
    twice, with the model it started from and the one it trained, on its test rows; both are recorded in its folder and
    compared task by task. It takes settings of how episodes are made, which are recorded with the evaluation. All rows
    are evaluated, also where the run evaluated eval.max_tasks of them during training; eval.max_tasks=200 on this
    command takes fewer.

    Examples:

      agent-r1 eval quickstart --model runs/quickstart/hf --show 2
      agent-r1 eval quickstart --model runs/quickstart/hf eval.samples=4 --json figures.json
      agent-r1 eval quickstart --baseline react model=smollm2
      agent-r1 eval runs/quickstart
      agent-r1 eval runs/quickstart rollout.max_steps=8 eval.samples=4
      agent-r1 eval quickstart engine=openai engine.servers.urls=[http://127.0.0.1:8000/v1] --model NAME
    """
    from agent_r1 import api
    from agent_r1.console import RunConsole
    from agent_r1.runs import RunFolder, write_trajectories

    with readable_errors():
        if RunFolder(Path(recipe)).config.is_file():
            refused = {"model": model, "baseline": baseline, "show": show, "trajectories": trajectories}
            _evaluate_run(recipe, split or "test", overrides or [], json_file, **refused)
            return
        folder, changes = split_arguments(recipe, overrides)
        say_which(recipe)
        changes += [] if split is None else [f"eval.split={split}"]
        evaluation = api.evaluate(folder, overrides=changes, model=model, baseline=baseline)
        console = RunConsole()
        for trajectory in evaluation.worst_first()[:show]:
            console.trajectory(trajectory.task_id, trajectory)
        console.evaluation(evaluation.metrics, evaluation.intervals)
        if trajectories is not None:
            write_trajectories(trajectories, evaluation.greedy, policy_step=0)
        command = {"recipe": folder, "overrides": changes, "model": model, "baseline": baseline}
        command["split"] = api.resolve(folder, overrides=changes, model=model).eval.split
        _write_result(json_file, {**command, **evaluation.as_json()})


def check(
    recipe: Recipe,
    overrides: Overrides = None,
    groups: Annotated[int, typer.Option(min=1, help="Tasks to try.")] = 8,
    members: Annotated[int, typer.Option(min=1, help="Trial episodes per task.")] = 4,
    trials: Annotated[bool, typer.Option(help="Run trial episodes with the model.")] = True,
    json_file: JsonFile = None,
) -> None:
    """Find what will go wrong, before any training.

    Checks configuration, data, tools, gold answers, chat template and context; then runs a few trial episodes and
    checks rewards, tool use, the tokens that would be trained on, the log-probs of engine and trainer, and whether the
    environment leaks state from one episode into the next. Exits with 1 when there is a problem; warnings may be
    intended.

    Examples:

      agent-r1 check quickstart
      agent-r1 check quickstart --groups 16 --members 8
      agent-r1 check quickstart --no-trials
    """
    from agent_r1 import api

    with readable_errors():
        folder, changes = split_arguments(recipe, overrides)
        say_which(recipe)
        report = api.check(folder, overrides=changes, groups=groups, members=members, trials=trials)
        _write_result(json_file, report.as_json())
    counts = {"problem": len(report.problems), "warning": len(report.warnings)}
    typer.echo(", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items()))
    if report.problems:
        raise typer.Exit(1)


def _evaluate_run(run: str, split: str, overrides: list[str], json_file: Path | None, **refused: Any) -> None:
    """Evaluate a finished run before and after its training."""
    from agent_r1 import api
    from agent_r1.console import RunConsole
    from agent_r1.errors import ConfigError
    from agent_r1.runs import describe_gain, paired_gain

    named = [f"--{name}" for name, value in refused.items() if value]
    if named:
        raise ConfigError(
            f"{run} is a run, of which both models are evaluated task by task; leave {' and '.join(named)} out, or "
            "evaluate its recipe"
        )
    before, after = api.evaluations_of(run, split=split, overrides=overrides)
    gain = paired_gain([(before.by_task(), after.by_task())])
    RunConsole().before_after(before.metrics, after.metrics)
    for setting in after.settings:
        typer.echo(f"evaluated with {setting}")
    typer.echo(f"{split}, {gain.tasks} tasks: {gain.before:.3f} -> {gain.after:.3f}, {describe_gain(gain)}")
    result = {"run": run, "split": split, "settings": after.settings, "gain": {"gain": gain.gain, **asdict(gain)}}
    _write_result(json_file, {**result, "before": asdict(before), "after": asdict(after)})


def split_arguments(recipe: str, overrides: list[str] | None) -> tuple[str | None, list[str]]:
    """The recipe folder, if the first argument is one, and the overrides. Without a recipe, `module:attribute` names
    are looked up in the current folder.

    >>> split_arguments("env=gym:FrozenLake-v1", ["trainer.steps=2"])
    (None, ['recipe=.', 'env=gym:FrozenLake-v1', 'trainer.steps=2'])
    """
    changes = list(overrides or ())
    if "=" not in recipe or Path(recipe).is_dir():
        return recipe, changes
    return None, ["recipe=.", recipe, *changes]


def _write_result(file: Path | None, result: dict[str, Any]) -> None:
    """Write the result of a command as JSON, where a file is given."""
    from agent_r1.files import write_atomically

    if file is not None:
        write_atomically(file, write_json(result, indent=2) + "\n")
