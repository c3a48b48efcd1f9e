"""Make the runs of docs/results.md: train, evaluate on the test rows, publish; what is published is never repeated.

    python benchmarks/claims/results.py --model FOLDER --jobs 2 --only alfworld hotpotqa
    python benchmarks/claims/results.py --data-only --jobs 8      # needs no model: while it is downloaded, for example
    python benchmarks/claims/results.py --list
    python -m docs.generate.results                   # the page docs/results.md

Recipes, settings and order are in published/plan.py: GRPO and the untrained model on every recipe first, then the other
algorithms on two of them, then further seeds of GRPO. The runs of a recipe start from one warm start, which is made and
evaluated before the first of them. `--jobs` processes share the GPU, each with a log in WORK/NAME/RECIPE/logs; with
`--jobs 2 --trainings 1` one trains while another is evaluated. Under NVIDIA's MPS (`nvidia-cuda-mps-control -d`) they
compute at the same time instead of in turns: with `--jobs 3 --trainings 2 --fork` and an engine.kv_memory of 350,000
tokens, three took at most 90 GB. A published run is one file in --out; its weights are
deleted, and a run that was interrupted begins again. The settings are those of a model of 1.5 billion parameters;
`--set` changes them for all runs, for example where memory is short. `--smoke` is the whole path with a tiny model on
the recipes' samples.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

if str(Path(__file__).resolve().parents[2]) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when it is run as a script

from agent_r1.errors import AgentR1Error, DataError
from agent_r1.runs import (
    EvaluationRecord,
    Published,
    RunFolder,
    is_locked,
    publish_evaluation,
    publish_run,
    read_published,
    read_runs,
    write_evaluation,
    write_published,
)
from benchmarks.claims.published.plan import (
    ALGORITHMS,
    MODEL,
    OWN_EPISODES,
    OWN_MODELS,
    REACT,
    RECIPES,
    SEEDS,
    TEST_ROWS,
    OwnEpisodes,
    PlannedRun,
    make_plan,
)
from benchmarks.common.forks import ForkedProcess
from benchmarks.common.processes import ROOT, Job, Starter, run_jobs, start_process
from benchmarks.common.recipe_runs import TINY_MODEL, RecipeRuns, smoke_settings

PUBLISHED = ROOT / "docs" / "generate" / "published"
_RECIPES = ROOT / "recipes"
SAMPLES = {
    **{name: _RECIPES / name / "sample" for name in ("alfworld", "hotpotqa", "webshop", "forecasting")},
    **{name: _RECIPES / "tables" / "sample" / name for name in ("wikitablequestions", "tatqa")},
    "gsm8k": _RECIPES / "gsm8k" / "sample",
    "papers": _RECIPES / "paper_search" / "sample",
    "math": _RECIPES / "math_code" / "sample",
    "tau_bench": _RECIPES / "tau_retail" / "sample",
    "textcraft": _RECIPES / "games" / "sample",
}
"""A sample of each data set, by the name of its folder in AGENT_R1_DATA."""


def say(text: str) -> None:
    """Print a line at once, also into a file."""
    print(text, flush=True)


class Campaign:
    """The runs of a command line, where they are made and where they are published."""

    def __init__(
        self,
        plan: Sequence[PlannedRun],
        *,
        work: Path,
        out: Path,
        model: str | None,
        label: str,
        own_episodes: Mapping[str, OwnEpisodes] = OWN_EPISODES,
    ) -> None:
        self.plan, self.out, self.own_episodes = plan, out, own_episodes
        self.places = {
            run.recipe: RecipeRuns(work, run.recipe, None, OWN_MODELS[run.recipe], makes_model=True)
            if run.recipe in OWN_MODELS
            else RecipeRuns(work, run.recipe, model, label)
            for run in plan
        }
        self.published: dict[str, Published] = {found.name: found for found in read_published(out)}

    def name(self, run: PlannedRun) -> str:
        """The name of its folder and of its published file."""
        return run.name(self.places[run.recipe].label)

    @property
    def missing(self) -> list[PlannedRun]:
        """The runs that are not published."""
        return [run for run in self.plan if self.name(run) not in self.published]

    def show(self) -> None:
        """Print the plan, with the results that there are."""
        for run in self.plan:
            say(f"{self._state(run):8} {run.title:36} {self.places[run.recipe].label}")
        say(f"{len(self.plan)} runs, {len(self.missing)} missing in {self.out}")

    def _state(self, run: PlannedRun) -> str:
        found = self.published.get(self.name(run))
        if found is not None:
            return f"{_share(found, 'after'):6.1%}"
        return "running" if is_locked(self.places[run.recipe].folder / self.name(run)) else "missing"

    def jobs(self) -> list[Job]:
        """The processes that make what is missing, in the order of the plan. Before a recipe's first run comes its warm
        start, unless this machine has it."""
        jobs: list[Job] = []
        prepared: set[str] = set()
        trained = {run.recipe for run in self.missing if not run.is_untrained}
        for run in self.missing:
            if run.recipe in trained - prepared:
                prepared.add(run.recipe)
                jobs += self._start_jobs(run)
            jobs += [self._untrained_job(run)] if run.is_untrained else self._run_jobs(run)
        return jobs

    def data_jobs(self) -> list[Job]:
        """The processes that make the data of all recipes that have runs to make."""
        bases = {run.recipe: run.base for run in self.missing}
        return [
            self._job(
                f"{recipe}, data",
                self.places[recipe],
                "data",
                self.places[recipe].data_command(base),
                finish=lambda seconds: f"made, {seconds:.0f} s",
            )
            for recipe, base in bases.items()
        ]

    def _start_jobs(self, run: PlannedRun) -> list[Job]:
        place, settings, title = self.places[run.recipe], {**run.base, **TEST_ROWS}, _start_title(run)
        own = self.own_episodes.get(run.recipe)
        sampling = {} if own is None else {**run.base, **own.settings}
        episodes = None if own is None else place.own_episodes(sampling, *own.options)
        if episodes is not None:
            settings["sft.data"] = f"[{episodes}]"
        if place.read_evaluation(settings) is not None:
            return []

        def finish(seconds: float) -> str:
            found = place.read_evaluation(settings)
            if found is None:
                raise DataError(f"no model and no evaluation in {place.folder}")
            solved = found["solved"]
            return f"{sum(solved) / len(solved):.1%} of {len(solved)} test tasks solved, {seconds:.0f} s"

        command = place.prepare_command(settings)
        warm_start = partial(
            self._job, title, place, "warm_start", command, begin=place.forget_start, finish=finish, trains=True
        )
        if own is None or episodes is None or episodes.is_file():
            return [warm_start()]
        first = f"{run.recipe}, demonstrations of its own"

        def sampled(seconds: float) -> str:
            return f"{_last_line(place.log('own_episodes'))}, {seconds:.0f} s"

        samples = place.demonstrate_command(sampling, *own.options)
        return [self._job(first, place, "own_episodes", samples, finish=sampled), warm_start(needs=[first])]

    def _untrained_job(self, run: PlannedRun) -> Job:
        place = self.places[run.recipe]
        file = place.folder / f"{run.algorithm}.json"
        is_react = run.algorithm == REACT

        def finish(seconds: float) -> str:
            title = None if is_react else run.algorithm.replace("_", " ")
            result = publish_evaluation(file, model=place.label, title=title)
            return f"{self._publish(result)}, {seconds:.0f} s"

        options = ("--baseline", REACT) if is_react else ()
        command = place.eval_command(file, {**run.settings, **TEST_ROWS}, *options)
        # The job of the warm start makes the data, too, which one process has to do.
        return self._job(run.title, place, run.algorithm, command, finish=finish, needs=[_start_title(run)])

    def _run_jobs(self, run: PlannedRun) -> list[Job]:
        """Trains, then evaluates and publishes."""
        place, name = self.places[run.recipe], self.name(run)
        folder = RunFolder(place.folder / name)
        trains, evaluates = f"{run.title}, training", f"{run.title}, evaluation"

        train = self._job(
            trains,
            place,
            f"{name}_train",
            place.train_command(name, run.seed, run.settings),
            begin=partial(place.clear, name),
            finish=lambda seconds: f"ended, {seconds:.0f} s",
            needs=[_start_title(run)],
            trains=True,
        )

        def share_start() -> None:
            write_evaluation(folder.evaluation("test", "before"), start_record(place))

        def finish(seconds: float) -> str:
            [record] = read_runs([folder.path])
            text = self._publish(publish_run(record, split="test", model=place.label))
            shutil.rmtree(folder.model, ignore_errors=True)
            return f"{text}, {seconds:.0f} s"

        command = ["eval", str(folder.path), "--split", "test"]
        evaluate = self._job(
            evaluates, place, f"{name}_eval", command, begin=share_start, finish=finish, needs=[trains]
        )
        return [train, evaluate]

    def _job(
        self,
        title: str,
        place: RecipeRuns,
        log: str,
        command: Sequence[str],
        *,
        finish: Callable[[float], str],
        begin: Callable[[], None] = lambda: None,
        needs: Sequence[str] = (),
        trains: bool = False,
    ) -> Job:
        def begin_aloud() -> None:
            begin()
            say(f"{title}: started, log in {place.log(log)}")

        return Job(
            name=title,
            command=command,
            log=place.log(log),
            finish=finish,
            begin=begin_aloud,
            needs=needs,
            trains=trains,
        )

    def _publish(self, result: Published) -> str:
        """Write a result; returns what is reported of it."""
        write_published(self.out, result)
        self.published[result.name] = result
        before = f"{_share(result, 'before'):.1%} -> " if result.before else ""
        react = self.published.get(f"{result.recipe}_{REACT}_{result.model}")
        is_other = react is not None and set(react.solved("after")) != set(result.solved("after"))
        other = f"; {react.name} is of other tasks: delete it for a gain over it" if react and is_other else ""
        return f"{before}{_share(result, 'after'):.1%} of {len(result.tasks)} test tasks solved{other}"


def _last_line(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1]


def _start_title(run: PlannedRun) -> str:
    return f"{run.recipe}, warm start"


def _share(result: Published, stage: str) -> float:
    solved = list(result.solved(stage).values())
    return sum(solved) / len(solved)


def start_record(place: RecipeRuns) -> EvaluationRecord:
    """The evaluation of the warm start, as a run records that of the model that it started from."""
    found = place.read_evaluation({})
    if found is None:
        raise DataError(f"no warm start in {place.folder}")
    return EvaluationRecord(
        split=found["split"],
        model=str(RunFolder(place.warm_start).model),
        step=0,
        **{name: found[name] for name in ("tasks", "sources", "solved", "metrics", "intervals")},
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="the untrained model: a folder")
    parser.add_argument("--name", default=MODEL, help="its name in the results (default: %(default)s)")
    parser.add_argument("--only", nargs="+", default=RECIPES, choices=RECIPES, metavar="RECIPE", help="some recipes")
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS, choices=ALGORITHMS, metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, choices=SEEDS, metavar="SEED")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument("--trainings", type=int, help="processes of these that may train at a time (default: all)")
    parser.add_argument("--fork", action="store_true", help="import once, and fork every process from there")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings for all runs")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "results", help="data, warm starts and runs")
    parser.add_argument("--out", type=Path, help=f"the results (default: {PUBLISHED.relative_to(ROOT)})")
    parser.add_argument("--list", action="store_true", help="print the plan and what is published")
    parser.add_argument("--data-only", action="store_true", help="make the data of the recipes, and no run")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, few episodes, on a CPU")
    chosen = parser.parse_args(arguments)
    for option, number in (("--jobs", chosen.jobs), ("--trainings", chosen.trainings)):
        if number is not None and number < 1:
            parser.error(f"{option} {number}: at least 1 process at a time")
    wrong = [text for text in chosen.set if "=" not in text]
    if wrong:
        parser.error(f"--set {wrong[0]}: expected KEY=VALUE")
    if chosen.model and not Path(chosen.model).exists():
        parser.error(f"--model {chosen.model}: there is no such folder")
    needs_none = chosen.smoke or chosen.list or chosen.data_only or set(chosen.only) <= set(OWN_MODELS)
    if not (chosen.model or needs_none):
        parser.error("--model FOLDER: which model is to be trained?")
    return chosen


def make_campaign(chosen: argparse.Namespace) -> Campaign:
    """The runs that a command line means."""
    work: Path = chosen.work.resolve()
    recipes = [recipe for recipe in chosen.only if not (chosen.smoke and recipe in OWN_MODELS)]  # they have no sample
    settings = dict(text.split("=", 1) for text in chosen.set)
    if chosen.smoke and not chosen.list:
        settings = {**smoke_settings(work, SAMPLES), **settings}
    return Campaign(
        make_plan(recipes=recipes, algorithms=chosen.algorithms, seeds=chosen.seeds, settings=settings),
        work=work,
        out=(chosen.out or (work / "published" if chosen.smoke else PUBLISHED)).resolve(),
        model=TINY_MODEL if chosen.smoke else chosen.model and str(Path(chosen.model).resolve()),
        label="tiny" if chosen.smoke else chosen.name,
        own_episodes={} if chosen.smoke else OWN_EPISODES,  # a tiny model solves nothing
    )


def main(arguments: Sequence[str] | None = None, *, start: Starter = start_process) -> int:
    """Make what is missing, say what failed."""
    chosen = parse(arguments)
    try:
        campaign = make_campaign(chosen)
        if chosen.list:
            campaign.show()
            return 0
        say(f"{len(campaign.missing)} of {len(campaign.plan)} runs to make, {chosen.jobs} at a time")
        starter = ForkedProcess if chosen.fork else start
        jobs = campaign.data_jobs() if chosen.data_only else campaign.jobs()
        problems = run_jobs(jobs, at_once=chosen.jobs, trainings=chosen.trainings, say=say, start=starter)
    except AgentR1Error as error:
        raise SystemExit(str(error)) from error
    except KeyboardInterrupt:
        say("interrupted: the same command makes the runs that are not published")
        return 130
    for problem in problems:
        say(f"failed: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
