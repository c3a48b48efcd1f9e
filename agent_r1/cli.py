"""`agent-r1`: begin, check, train, evaluate, compare and warm-start agents, and build search indexes, from the command
line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from agent_r1.codec import write_json
from agent_r1.errors import AgentR1Error, no_exit
from agent_r1.interrupts import RunInterrupted, ours_to_end
from agent_r1.scaffold import Kind, write_recipe

app = typer.Typer(
    help="Train language-model agents with reinforcement learning over whole multi-turn interactions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

env_app = typer.Typer(help="Environments as services.", no_args_is_help=True)
app.add_typer(env_app, name="env")

Recipe = Annotated[str, typer.Argument(help="A recipe folder: one with a base.yaml, for example recipes/quickstart.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Any number of key=value, for example algorithm=ppo trainer.steps=20. "
        "All keys with their values: agent-r1 train RECIPE --dry-run."
    ),
]


def _finite(number: float) -> float:
    """NaN and infinity are in every range that click checks."""
    if not math.isfinite(number):
        raise typer.BadParameter(f"{number} is not a finite number")
    return number


Runs = Annotated[list[Path], typer.Argument(help="Folders of runs, for example runs/quickstart.", metavar="RUN...")]


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
    hf/ and summary.json. Ctrl-C, SIGTERM and SIGHUP save a checkpoint of the last finished step; the same command
    started again resumes from it.

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
        with no_exit("the code of the recipe"), recipe_folder(folder):
            run.dry_run(config, RunConsole())


@app.command("eval")
def evaluate(
    recipe: Recipe,
    overrides: Overrides = None,
    model: Annotated[
        str | None, typer.Option(help="The model to evaluate: a folder such as runs/quickstart/hf, or an id.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="react: the model as it came, without a warm start, in the ReAct text format."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here.", metavar="FILE")] = None,
    show: Annotated[
        int, typer.Option(min=0, help="Print so many episodes, unsolved ones first.", metavar="NUMBER")
    ] = 0,
    trajectories: Annotated[
        Path | None, typer.Option(help="Write all greedy episodes here, one a line (.jsonl).", metavar="FILE")
    ] = None,
) -> None:
    """Evaluate a model on a recipe's held-out rows: greedy, and with eval.samples=k also mean, best@k and maj@k.

    Every figure is given per data source, with its 95 % confidence interval over tasks.

    Example: agent-r1 eval recipes/quickstart --model runs/quickstart/hf --show 2 eval.samples=4
    """
    from agent_r1 import api
    from agent_r1.console import RunConsole
    from agent_r1.files import write_atomically
    from agent_r1.runs import write_trajectories

    with _clear_errors():
        evaluation = api.evaluate(recipe, *(overrides or []), model=model, baseline=baseline)
        console = RunConsole()
        for trajectory in evaluation.worst_first()[:show]:
            console.trajectory(trajectory.task_id, trajectory)
        console.evaluation(evaluation.metrics, evaluation.intervals)
        if trajectories is not None:
            write_trajectories(trajectories, evaluation.greedy, policy_step=0)
        if json_file is not None:
            asked = {"recipe": recipe, "overrides": overrides or [], "model": model, "baseline": baseline}
            write_atomically(json_file, write_json({**asked, **evaluation.as_json()}, indent=2) + "\n")


@app.command()
def plot(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The figure: .png, .svg or .pdf.", metavar="FILE")],
    keys: Annotated[
        str | None, typer.Option(help="Metrics to draw, with commas between: reward/outcome,eval/all/greedy.")
    ] = None,
    by_minutes: Annotated[
        bool, typer.Option("--by-minutes", help="Against minutes of training instead of steps.")
    ] = False,
) -> None:
    """Draw the curves of runs from their metrics.jsonl: a panel for each metric, a line for each run (extra `plot`).

    Example: agent-r1 plot runs/grpo runs/ppo --out curves.png --keys reward/success,eval/all/greedy
    """
    from agent_r1.runs import draw_curves, read_runs, save_figure

    with _clear_errors():
        named = [key.strip() for key in (keys or "").split(",") if key.strip()]
        save_figure(draw_curves(read_runs(runs), named, by_minutes=by_minutes), out)
        typer.echo(f"wrote {out}")


@app.command()
def table(
    runs: Runs,
    md: Annotated[bool, typer.Option("--md", help="Markdown, for a document.")] = False,
) -> None:
    """Compare runs in a table: model, algorithm, seed, steps, minutes, memory, held-out tasks before and after.

    Example: agent-r1 table runs/grpo runs/ppo --md
    """
    from agent_r1.console import RunConsole
    from agent_r1.runs import markdown_table, read_runs, table_rows

    with _clear_errors():
        read = read_runs(runs)
        if md:
            typer.echo(markdown_table(read), nl=False)
        else:
            RunConsole().rows("runs", table_rows(read))


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
def check(
    recipe: Recipe,
    overrides: Overrides = None,
    groups: Annotated[int, typer.Option(min=1, help="Tasks for trial episodes.")] = 8,
    members: Annotated[int, typer.Option(min=1, help="Trial episodes of each task.")] = 4,
    trials: Annotated[bool, typer.Option(help="Try episodes with the model itself.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the findings here.", metavar="FILE")] = None,
) -> None:
    """Say what will go wrong, before any training.

    Looks at configuration, data, tools, gold answers, chat template and context; then runs a few trial episodes and
    looks at rewards, tool use, the tokens that would carry loss, the log-probs of engine and trainer, and whether the
    environment leaks from one episode into the next. Ends with 1 when there is a problem; warnings may be meant.

    Example: agent-r1 check recipes/quickstart --groups 8 --members 4
    """
    from agent_r1 import api
    from agent_r1.files import write_atomically

    with _clear_errors():
        report = api.check(recipe, *(overrides or []), groups=groups, members=members, trials=trials)
        if json_file is not None:
            write_atomically(json_file, write_json(report.as_json(), indent=2) + "\n")
    typer.echo(f"{len(report.problems)} problems, {len(report.warnings)} warnings")
    if report.problems:
        raise typer.Exit(1)


@app.command()
def index(
    passages: Annotated[
        list[Path],
        typer.Argument(help="Files of passages: .jsonl, .jsonl.gz, .jsonl.xz or .parquet.", metavar="PASSAGES"),
    ],
    out: Annotated[
        Path, typer.Option(help="The index's folder. An index that is there is replaced when this one is done.")
    ],
    dense: Annotated[
        str | None,
        typer.Option(
            help="Index by meaning with this sentence-transformers model (extra `dense`), not by words.",
            metavar="MODEL",
        ),
    ] = None,
    text_field: Annotated[str, typer.Option(help="The field of a row that holds the text.")] = "text",
    title_field: Annotated[str, typer.Option(help="The field with the title; rows may lack it.")] = "title",
    id_field: Annotated[str, typer.Option(help="The field with the id; rows may lack it.")] = "id",
) -> None:
    """Build a search index of passages, for the tool `search`.

    A row is {"id": 7, "title": "Tea", "text": "Tea is a drink made of leaves."}. Titles are searched too. The index is
    by words (BM25); with --dense it is by meaning.

    Example: agent-r1 index wiki.jsonl.xz --out indexes/wiki

    Then: agent-r1 search indexes/wiki "a drink made of leaves"

    In a run: agent-r1 train RECIPE 'env.tools=[{name: search, index: indexes/wiki, k: 3}]'
    """
    from agent_r1.console import counting
    from agent_r1.tools.builtin.search import BM25Index, DenseIndex, PassageFields, read_passages

    with _clear_errors(), counting("passages") as progress:
        rows = read_passages(passages, PassageFields(passage_id=id_field, title=title_field, text=text_field))
        built: BM25Index | DenseIndex
        if dense is None:
            built = BM25Index.build(rows, out, progress=progress)
        else:
            built = DenseIndex.build(rows, out, model=dense, progress=progress)
    typer.echo(f"{len(built)} passages in {out}")


@app.command()
def search(
    folder: Annotated[Path, typer.Argument(help="An index's folder, made by `agent-r1 index`.")],
    query: Annotated[str, typer.Argument(help="What to look for.")],
    k: Annotated[int, typer.Option("-k", help="How many passages.", min=1)] = 3,
    characters: Annotated[int, typer.Option(help="Longest text shown of a passage.", min=1)] = 400,
) -> None:
    """Try a search index: the best passages for a query, with their scores.

    Example: agent-r1 search indexes/wiki "a drink made of leaves"
    """
    from agent_r1.tools.builtin.search import open_index, shorten

    with _clear_errors():
        [found] = open_index(folder).search([query], k)
        for number, hit in enumerate(found, start=1):
            title = hit.passage.title or hit.passage.passage_id
            typer.echo(f"[{number}] {title} ({hit.score:.2f})\n{shorten(hit.passage.text, characters)}\n")
        if not found:
            typer.echo("No passage matches.")


@env_app.command("serve")
def serve_env(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="MODULE[:ATTRIBUTE]",
            help="The module that defines the environment, and when it defines several, which. The attribute may also "
            "be a function that makes one.",
        ),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is every network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 8700,
    max_episodes: Annotated[int, typer.Option(min=1, help="Episodes open at once; more have to wait.")] = 256,
    idle_seconds: Annotated[
        float,
        typer.Option(min=0.1, callback=_finite, help="An episode that was not used for this long is closed."),
    ] = 600.0,
    call_seconds: Annotated[
        float,
        typer.Option(
            min=0.1, callback=_finite, help="The deadline of one reset or step; after it the episode is closed."
        ),
    ] = 300.0,
    gone_seconds: Annotated[
        float, typer.Option(min=0.1, callback=_finite, help="A call whose client is gone is cancelled after this long.")
    ] = 30.0,
    body_mb: Annotated[
        float, typer.Option(min=0.001, callback=_finite, help="The largest request, in megabytes.")
    ] = 32.0,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="AGENT_R1_ENV_TOKEN",
            help="What clients must send. Without one a token is made and printed, unless only this machine can reach "
            "the address. Prefer the variable: others on this machine can read the options of a command.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name by which clients call this server, besides localhost, its own name and addresses."),
    ] = None,
) -> None:
    """Serve an environment over HTTP, for runs on other machines or in another Python.

    Whoever has the token can run the environment, and without TLS others on the network can read it: keep the address
    inside your network. Ctrl-C closes all episodes.

    Example: agent-r1 env serve my_envs:Maze --port 8700, and in the run: env=remote env.url=http://127.0.0.1:8700
    """
    import sys

    sys.path.insert(0, "")  # the console script does not look in the current folder by itself
    with _clear_errors():
        from agent_r1.envs.remote import server as service
        from agent_r1.registry import recipe_folder

        access = service.make_access(host, token=token, allowed=allow_host or ())
        limits = service.ServiceLimits(
            max_episodes=max_episodes,
            idle_seconds=idle_seconds,
            call_seconds=call_seconds,
            gone_seconds=gone_seconds,
            body_mb=body_mb,
        )

        def announce(address: str) -> None:
            typer.echo(f"serving {environment} at {address}")
            if access.token is not None and not token:
                typer.echo(f"clients need AGENT_R1_ENV_TOKEN={access.token} (or env.token)")

        with recipe_folder(Path.cwd()):  # its files may import each other, as in a run
            served = service.EnvService(service.find_factory(environment), name=environment, limits=limits)
            service.serve(served, host, port, announce, access=access)


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
        with ours_to_end():
            yield
    except AgentR1Error as error:
        Console(stderr=True, highlight=False).print(Text(f"error: {error}", style="red"), soft_wrap=True)
        raise typer.Exit(2) from None
    except RunInterrupted as interrupted:
        with suppress(OSError):  # the terminal may be gone
            Console(stderr=True, highlight=False).print(Text(str(interrupted)), soft_wrap=True)
        raise typer.Exit(interrupted.exit_code) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("Interrupted.")
        raise typer.Exit(130) from None


def main() -> None:
    """The console entry point."""
    app()


if __name__ == "__main__":
    main()
