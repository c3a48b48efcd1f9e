"""What works: GRPO and one change at a time, on ALFWorld and HotpotQA, with three seeds and equal numbers of episodes.

    python benchmarks/claims/what_works.py --jobs 3 --out docs/generate/study
    python benchmarks/claims/what_works.py --list
    python -m docs.generate.what_works                # the page docs/what_works.md

Each task has one warm start, which is made and evaluated first; all runs start there and are evaluated on the
validation rows at their end. `--jobs` runs share the GPU, each a process of its own with up to 25 GB. A run that has
ended is one line in --out, its weights are deleted, and it is never repeated; a run that was interrupted begins again.
Runs are ordered by seed, so that a study that is cut is balanced. Sizes are in study/plan.py; `--set` changes them for
another study, in another --out. `--smoke` is the whole path with a tiny model on the recipes' samples.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

if str(Path(__file__).resolve().parents[2]) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when it is run as a script

from agent_r1.errors import AgentR1Error
from benchmarks.claims.study.place import Place
from benchmarks.claims.study.plan import MODEL, SEEDS, TASKS, Run, make_plan
from benchmarks.claims.study.results import Start, Trained, append_result, results_of
from benchmarks.common.forks import ForkedProcess
from benchmarks.common.processes import ROOT, Job, Starter, current_commit, run_jobs, start_process
from benchmarks.common.recipe_runs import TINY_MODEL, Settings, smoke_settings


def say(text: str) -> None:
    """Print a line at once, also into a file."""
    print(text, flush=True)


class Study:
    """The runs of a command line, and where their results are."""

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        work: Path,
        out: Path,
        model: str | None,
        label: str,
        start: Starter = start_process,
    ) -> None:
        self.runs, self.out, self.label, self.start_process = runs, out, label, start
        self.places = {run.task: Place(work, run.task, model, label) for run in runs}
        self.bases: dict[str, Settings] = {run.task: run.base for run in runs}
        self.results = {task: results_of(out, task, label) for task in self.places}
        self.commit = current_commit()
        self._refuse_other_settings()

    def _refuse_other_settings(self) -> None:
        for run in self.runs:
            done = self.done(run)
            if done is not None and dict(done.settings) != run.settings:
                keys = [
                    key for key in {**run.settings, **done.settings} if done.settings.get(key) != run.settings.get(key)
                ]
                raise SystemExit(
                    f"{self.out} has a run of {run.task}, {run.name} with {keys[0]}={done.settings.get(keys[0])}, and "
                    f"this one has {run.settings.get(keys[0])}; results of other settings belong in another --out"
                )

    def done(self, run: Run) -> Trained | None:
        """The result of a run that has ended."""
        return self.results[run.task].runs.get(run.key)

    @property
    def missing(self) -> list[Run]:
        """The runs without a result."""
        return [run for run in self.runs if self.done(run) is None]

    def show(self) -> None:
        """Print the plan, with the results that there are."""
        for run in self.runs:
            done = self.done(run)
            changes = " ".join(f"{key}={value}" for key, value in run.variant.changes.items()) or "(the base)"
            state = "missing" if done is None else f"{done.success:6.1%}"
            say(f"{state:8} {run.task:9} seed {run.seed}  {run.variant.name:16} {changes}")
        say(f"{len(self.runs)} runs of {self.label}, {len(self.missing)} missing")

    def prepare(self, *, at_once: int) -> tuple[dict[str, Start], list[str]]:
        """The warm starts of all tasks that have runs to make, and what failed."""
        tasks = list(dict.fromkeys(run.task for run in self.missing))
        starts: dict[str, Start] = {}
        jobs = []
        for task in tasks:
            start = self.places[task].read_start(self.bases[task])
            if start is not None:
                self._note_start(starts, start)
                continue
            place = self.places[task]
            jobs.append(
                Job(
                    name=f"{task}, warm start",
                    command=place.prepare_command(self.bases[task]),
                    log=place.log("warm_start"),
                    begin=place.forget_start,
                    finish=partial(self._started, starts, task),
                )
            )
        return starts, run_jobs(jobs, at_once=at_once, say=say, start=self.start_process)

    def _started(self, starts: dict[str, Start], task: str, seconds: float) -> str:
        start = self.places[task].read_start(self.bases[task])
        if start is None:
            raise AgentR1Error(f"no model and no evaluation in {self.places[task].folder}")
        self._note_start(starts, start)
        solved = sum(start.solved) / len(start.solved)
        return f"{solved:.1%} of {len(start.solved)} validation tasks solved, {seconds:.0f} s"

    def _note_start(self, starts: dict[str, Start], start: Start) -> None:
        starts[start.task] = start
        known = self.results[start.task]
        if start.digest not in known.starts:
            if known.runs:
                say(f"{start.task}: the earlier runs in {self.out} started from another copy of the warm start")
            append_result(self.out, start)
        self.results[start.task] = results_of(self.out, start.task, self.label)

    def train(self, starts: dict[str, Start], *, at_once: int, deadline: float | None) -> list[str]:
        """Make the runs that are missing and have a warm start; returns what failed."""
        began, left = time.monotonic(), [run for run in self.missing if run.task in starts]
        total = len(left)
        say(f"{total} runs to make, {at_once} at a time")
        ended = 0

        def finish(run: Run, seconds: float) -> str:
            nonlocal ended
            start = starts[run.task]
            trained = self.places[run.task].collect(run, start, seconds, self.commit)
            append_result(self.out, trained)
            ended += 1
            rest = (time.monotonic() - began) / ended * (total - ended)
            before = sum(start.solved) / len(start.solved)
            return (
                f"{before:.1%} -> {trained.success:.1%}, {seconds:.0f} s ({60 * trained.minutes:.0f} s in steps); "
                f"{ended} of {total}, about {rest / 60:.0f} min left"
            )

        jobs = [
            Job(
                name=f"{run.task}, {run.variant.name}, seed {run.seed}",
                command=self.places[run.task].train_command(run.name, run.seed, run.settings),
                log=self.places[run.task].log(run.name),
                begin=partial(self.places[run.task].clear, run.name),
                finish=partial(finish, run),
            )
            for run in left
        ]
        return run_jobs(jobs, at_once=at_once, say=say, deadline=deadline, start=self.start_process)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="the model to warm-start: a folder (default: SmolLM2 of the extra gguf)")
    parser.add_argument("--name", default=MODEL, help="its name in the results (default: %(default)s)")
    parser.add_argument("--only", nargs="+", default=TASKS, choices=TASKS, metavar="TASK", help="some of the tasks")
    parser.add_argument("--variants", nargs="+", default=(), metavar="NAME", help="some of the variants; see --list")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--fork", action="store_true", help="import once, and fork every run from there")
    parser.add_argument("--minutes", type=float, help="start no run after this many minutes")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings for all runs")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "what_works", help="data and running runs")
    parser.add_argument("--out", type=Path, help="the results (default: WORK/results)")
    parser.add_argument("--list", action="store_true", help="print the plan and what is done")
    parser.add_argument("--start-only", action="store_true", help="make and evaluate the warm starts alone")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, few episodes, on a CPU")
    chosen = parser.parse_args(arguments)
    if chosen.jobs < 1:
        parser.error(f"--jobs {chosen.jobs}: at least 1 run at a time")
    wrong = [text for text in chosen.set if "=" not in text]
    if wrong:
        parser.error(f"--set {wrong[0]}: expected KEY=VALUE")
    return chosen


def make_study(chosen: argparse.Namespace, start: Starter = start_process) -> Study:
    """The study that a command line means."""
    work: Path = chosen.work.resolve()
    samples = {task: ROOT / "recipes" / task / "sample" for task in TASKS}
    smoke = smoke_settings(work, samples) if chosen.smoke else {}
    settings = {**smoke, **dict(text.split("=", 1) for text in chosen.set)}
    if chosen.model and not Path(chosen.model).exists():
        raise SystemExit(f"--model {chosen.model}: there is no such folder")
    return Study(
        make_plan(tasks=chosen.only, variants=chosen.variants, seeds=chosen.seeds, settings=settings),
        work=work,
        out=(chosen.out or work / "results").resolve(),
        model=TINY_MODEL if chosen.smoke else chosen.model,
        label="tiny" if chosen.smoke else chosen.name,
        start=start,
    )


def main(arguments: Sequence[str] | None = None, *, start: Starter = start_process) -> int:
    """Prepare, run what is missing, say what failed."""
    began, chosen = time.monotonic(), parse(arguments)
    try:
        study = make_study(chosen, ForkedProcess if chosen.fork else start)
        if chosen.list:
            study.show()
            return 0
        starts, problems = study.prepare(at_once=chosen.jobs)
        if not chosen.start_only:
            deadline = None if chosen.minutes is None else began + 60 * chosen.minutes
            problems += study.train(starts, at_once=chosen.jobs, deadline=deadline)
    except AgentR1Error as error:
        raise SystemExit(str(error)) from error
    except KeyboardInterrupt:
        say("interrupted: the same command makes the runs that have not ended")
        return 130
    for problem in problems:
        say(f"failed: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
