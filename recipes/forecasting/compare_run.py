"""Trained runs beside the best single model, window by window.

    agent-r1 eval runs/forecasting --split test
    python recipes/forecasting/compare_run.py runs/forecasting --split test

Several runs are seeds of one setting: their errors are averaged for each window. The model that is compared with is the
best one of the split, which is known only afterwards. Neighbouring windows overlap, so the 95 % interval of the
difference comes from resampling whole weeks of each series. Errors are mean squares on scaled data, and the mean over
series counts each alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agent_r1.errors import AgentR1Error, DataError
from agent_r1.registry import load_module, recipe_folder
from agent_r1.runs import RunFolder, read_evaluation

# A plain import would not find them when this file is run as a script.
with recipe_folder(Path(__file__).resolve().parent):
    baselines, series = load_module("baselines"), load_module("series")
    models, reward_fn = load_module("models"), load_module("reward_fn")

Array = Any
RESAMPLES = 2000


def rewards_of(run: Path, split: str) -> dict[str, dict[int, float]]:
    """The reward of each evaluated window of a run, by series and first row."""
    file = RunFolder(run).evaluation(split, "after")
    if not file.is_file():
        raise DataError(
            f"{run} was not evaluated on its {split} rows; do that first: agent-r1 eval {run} --split {split}"
        )
    found = read_evaluation(file)
    rewards: dict[str, dict[int, float]] = {}
    for task, reward in zip(found.tasks, found.solved, strict=True):
        name, start = task.removeprefix(f"{split}-").rsplit("-", 1)
        rewards.setdefault(name, {})[int(start)] = float(reward)
    return rewards


def errors_of(given: Any, rewards: dict[int, float]) -> Array:
    """The error of each window from its reward, `reference / (reference + error)`. A window without an answer has the
    error of the mean of the training rows."""
    reference = given.errors(given.forecasts["mix"]) + reward_fn.SOFTENING
    unanswered = given.errors(np.full_like(given.truth, given.data.mean))
    reward = np.array([rewards[start] for start in given.starts])
    with np.errstate(divide="ignore"):
        return np.where(reward > 0, reference * (1 / reward - 1), unanswered)


def weekly_blocks(starts: Sequence[int]) -> list[Array]:
    """The indices of windows by the week in which they begin.

    >>> [block.tolist() for block in weekly_blocks([0, 100, 167, 168, 400])]
    [[0, 1, 2], [3], [4]]
    """
    weeks = np.array(starts) // models.WEEK
    return [np.flatnonzero(weeks == week) for week in np.unique(weeks)]


def interval(differences: Sequence[Array], starts: Sequence[Sequence[int]], seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the mean over series of mean differences, from resampled weeks."""
    rng = np.random.default_rng(seed)
    means = np.zeros(RESAMPLES)
    for values, first_rows in zip(differences, starts, strict=True):
        blocks = weekly_blocks(first_rows)
        sums, sizes = np.array([values[block].sum() for block in blocks]), np.array([len(block) for block in blocks])
        drawn = rng.integers(len(blocks), size=(RESAMPLES, len(blocks)))
        means += sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1) / len(differences)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def compare(runs: Sequence[Path], split: str) -> list[str]:
    """The lines of the report."""
    rewards = [rewards_of(run, split) for run in runs]
    windows = [{(name, start) for name, starts in found.items() for start in starts} for found in rewards]
    if any(other != windows[0] for other in windows):
        raise DataError(
            f"the runs were evaluated on different windows of the {split} rows; evaluate all of them on all"
        )
    folder = RunFolder(runs[0]).read_config().env["series"]
    known = series.open_series(str(folder))
    given = [baselines.Windows(known[name], sorted(starts)) for name, starts in sorted(rewards[0].items())]
    names = [windows.data.name for windows in given]
    singles = {name: [windows.errors(windows.forecasts[name]) for windows in given] for name in models.MODELS}
    best = min(singles, key=lambda name: np.mean([errors.mean() for errors in singles[name]]))
    by_run = [[errors_of(windows, found[windows.data.name]) for windows in given] for found in rewards]
    mean = [np.mean([errors[place] for errors in by_run], axis=0) for place in range(len(given))]
    lines = [f"{'squared error':32}" + "".join(f"{name:>10}" for name in [*names, "mean"])]
    rows = [(str(run), errors) for run, errors in zip(runs, by_run, strict=True)]
    rows += [("mean of the runs", mean)] if len(runs) > 1 else []
    for title, errors in [*rows, (f"{best}, the best single model", singles[best])]:
        figures = [float(values.mean()) for values in errors]
        lines.append(f"{title:32}" + "".join(f"{figure:10.4f}" for figure in [*figures, float(np.mean(figures))]))
    differences = [ours - theirs for ours, theirs in zip(mean, singles[best], strict=True)]
    low, high = interval(differences, [windows.starts for windows in given])
    change = np.mean([values.mean() for values in differences])
    count = sum(len(windows.starts) for windows in given)
    lines.append(f"difference over {count} windows: {change:+.4f} ({low:+.4f} to {high:+.4f})")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="finished runs, evaluated on the split")
    parser.add_argument("--split", default="test", choices=("validation", "test"))
    chosen = parser.parse_args(arguments)
    try:
        print("\n".join(compare(chosen.runs, chosen.split)))
    except AgentR1Error as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
