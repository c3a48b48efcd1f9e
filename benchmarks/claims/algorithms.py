"""Every preset on the quickstart task, several seeds each: held-out success after the same number of episodes.

    python benchmarks/claims/algorithms.py --seeds 0 1 2 --docs docs/algorithms.md

Runs what is missing (runs live in --folder, finished ones are read, killed ones resumed), writes `results.json`
beside them, prints the table and, with --docs, puts it between the markers of that file. `--jobs` runs go side by side,
one thread each. Success is read at the last evaluation within each budget of episodes. A preset whose training steps
cost more episodes (refilled groups) is evaluated after every step; ReMax pays for its greedy rollouts with one member
of each group.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "quickstart"
PRESETS = (
    *("ppo", "steppo", "pspo", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "step_grpo", "gigpo"),
    *("rloo", "reinforce", "reinforce_pp", "reinforce_pp_baseline", "remax"),
)
EXTRA = {"dapo": ["eval.every=1"], "remax": ["eval.every=5", "rollout.group_size=7"]}
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run."""

    preset: str
    """The algorithm."""
    seed: int
    """The run's seed."""
    before: float
    """Held-out success of the warm start."""
    after: dict[int, float]
    """Held-out success at the last evaluation within each budget of training episodes."""
    steps: int
    """Training steps within the largest budget."""
    tool_calls: float
    """Tool calls per episode in the last of these evaluations."""


def prepare(folder: Path) -> None:
    """Make the data and the warm start that all runs use."""
    if not (folder / "quickstart_warm_start" / "hf").is_dir():
        _agent_r1("eval", str(RECIPE), f"run.folder={folder}", "eval.max_tasks=1")


def train(preset: str, seed: int, folder: Path, overrides: Sequence[str]) -> Path:
    """Run one training, unless it is finished; gives its folder."""
    place = folder / f"{preset}_{seed}"
    if not (place / "summary.json").is_file():
        names = [f"algorithm={preset}", f"trainer.seed={seed}", f"run.folder={folder}", f"run.name={place.name}"]
        _agent_r1(
            "train", str(RECIPE), *names, "tracking.record_every=0", *EXTRA.get(preset, ["eval.every=5"]), *overrides
        )
    return place


def _agent_r1(*arguments: str) -> None:
    command = [sys.executable, "-m", "agent_r1.cli", *arguments]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nfailed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def read(place: Path, preset: str, seed: int, budgets: Sequence[int]) -> Result:
    """What a finished run came to at its last evaluation within each budget of episodes."""
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    episodes_at, total = {0: 0}, 0
    for line in lines:
        if "perf/episodes" in line:
            total += int(line["perf/episodes"])
            episodes_at[line["step"]] = total
    evaluations = [line for line in lines if "eval/all/greedy" in line]
    within = {budget: [line for line in evaluations if episodes_at[line["step"]] <= budget][-1] for budget in budgets}
    last = within[max(budgets)]
    return Result(
        preset=preset,
        seed=seed,
        before=evaluations[0]["eval/all/greedy"],
        after={budget: line["eval/all/greedy"] for budget, line in within.items()},
        steps=last["step"],
        tool_calls=last["eval/all/tool_calls"],
    )


def table(results: Sequence[Result], budgets: Sequence[int]) -> str:
    """A Markdown table: one row a preset, one column a budget with the mean and every seed."""
    rows = [
        f"| preset | {' | '.join(f'{budget} episodes' for budget in budgets)} | steps | tool calls |",
        "|---" * (len(budgets) + 3) + "|",
    ]
    for preset in PRESETS:
        runs = sorted((result for result in results if result.preset == preset), key=lambda result: result.seed)
        if runs:
            cells = [
                f"**{statistics.fmean(result.after[budget] for result in runs):.3f}** "
                f"({', '.join(f'{result.after[budget]:.2f}' for result in runs)})"
                for budget in budgets
            ]
            calls = statistics.fmean(result.tool_calls for result in runs)
            rows.append(
                f"| `{preset}` | {' | '.join(cells)} | {_span([result.steps for result in runs])} | {calls:.2f} |"
            )
    return "\n".join(rows)


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}-{high}"


def write_docs(path: Path, text: str) -> None:
    """Put the table between the markers of a Markdown file."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{path} has no lines '{BEGIN}' and '{END}' to put the table between")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> None:
    """Run, read, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value for every run, for example trainer.steps=10")
    parser.add_argument("--presets", nargs="+", default=PRESETS, choices=PRESETS, metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="runs side by side")
    parser.add_argument("--folder", type=Path, default=Path("runs/algorithms"))
    parser.add_argument(
        "--budgets", nargs="+", type=int, default=[640, 1280, 2560], help="training episodes at which success is read"
    )
    parser.add_argument("--docs", type=Path, help="a Markdown file to put the table into")
    chosen = parser.parse_args()
    folder: Path = chosen.folder.resolve()
    pairs = [(preset, seed) for preset in chosen.presets for seed in chosen.seeds]
    prepare(folder)
    with Progress(console=Console(stderr=True)) as bars, ThreadPoolExecutor(chosen.jobs) as pool:
        bar = bars.add_task("training", total=len(pairs))

        def one(pair: tuple[str, int]) -> Result:
            place = train(*pair, folder, chosen.overrides)
            bars.advance(bar)
            return read(place, *pair, chosen.budgets)

        results = list(pool.map(one, pairs))
    (folder / "results.json").write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    text = table(results, chosen.budgets)
    print(text)
    if chosen.docs is not None:
        write_docs(chosen.docs, text)


if __name__ == "__main__":
    main()
