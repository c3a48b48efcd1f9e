"""Forecasts without a language model on the windows of a split, their errors on scaled data.

    python recipes/forecasting/baselines.py --data runs/forecasting_data --split test

`backtest_*` choose by the errors on each window's own past, as the programs of the warm start do. `fixed` is the one
combination per series that was best on the training rows, `linear` a ridge regression that was fitted to them. `oracle`
knows which model will be best.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from agent_r1.registry import load_module, recipe_folder

# A plain import would not find them when this file is run as a script.
with recipe_folder(Path(__file__).resolve().parent):
    models, series, window = load_module("models"), load_module("series"), load_module("window")
    reward_fn, process = load_module("reward_fn"), load_module("data_preprocess.process_forecasting")

Array = Any
"""Forecasts: windows by 24 hours."""
_FITTING_STRIDE = 5
_RIDGE = 100.0


class Windows:
    """All windows of a series from some rows on."""

    def __init__(self, data: Any, starts: Sequence[int]) -> None:
        self.data = data
        self.starts = list(starts)
        self.pasts = np.stack([data.past(start) for start in starts])
        self.truth = np.stack([data.future(start) for start in starts])
        self.forecasts: dict[str, Array] = {
            name: model(self.pasts[:, -models.WEEK :]) for name, model in models.MODELS.items()
        }

    def errors(self, values: Array) -> Array:
        """Mean squared error per window, on scaled data."""
        return (((values - self.truth) / self.data.scale) ** 2).mean(axis=1)

    def ranked(self, count: int) -> Array:
        """The mean of the forecasts of the best models of each window's backtest."""
        everything = np.stack(list(self.forecasts.values()), axis=1)
        return everything[np.arange(len(everything))[:, None], self._order[:, :count]].mean(axis=1)

    @cached_property
    def _order(self) -> Array:
        names = list(self.forecasts)
        return np.array([[names.index(name) for name in window.Window(past).errors] for past in self.pasts])


def best_combination(train: Windows) -> tuple[str, ...]:
    """The one, two or three models whose mean was best."""
    chosen = [names for count in (1, 2, 3) for names in combinations(models.MODELS, count)]
    return min(chosen, key=lambda names: float(train.errors(_mean(train, names)).mean()))


def _mean(given: Windows, names: Sequence[str]) -> Array:
    return np.mean([given.forecasts[name] for name in names], axis=0)


def linear_forecast(train: Windows, given: Windows) -> Array:
    """A ridge regression of the day on the week before, both less the last value."""
    inputs, last = train.pasts[:, -models.WEEK :], train.pasts[:, -1:]
    square = (inputs - last).T @ (inputs - last) / train.data.scale**2
    products = (inputs - last).T @ (train.truth - last) / train.data.scale**2
    weights = np.linalg.solve(square + _RIDGE * np.eye(len(square)), products)
    return (given.pasts[:, -models.WEEK :] - given.pasts[:, -1:]) @ weights + given.pasts[:, -1:]


def forecasts_of(train: Windows, given: Windows) -> dict[str, Array]:
    """The forecasts of every policy."""
    found = {**given.forecasts, "mean_of_all": _mean(given, list(models.MODELS))}
    for name, count in {"backtest_best": 1, "backtest_two": 2, "backtest_three": 3}.items():
        found[name] = given.ranked(count)
    found["fixed"] = _mean(given, best_combination(train))
    found["linear"] = linear_forecast(train, given)
    everything = np.stack(list(given.forecasts.values()))
    best = np.stack([given.errors(values) for values in everything]).argmin(axis=0)
    found["oracle"] = everything[best, np.arange(len(best))]
    return found


def compare(known: Mapping[str, Any], split: str, stride: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Mean squared error and mean reward of every policy, by series."""
    table: dict[str, dict[str, tuple[float, float]]] = {}
    for name, data in known.items():
        train = Windows(data, data.starts("train", _FITTING_STRIDE))
        given = Windows(data, data.starts(split, stride))
        reference = given.errors(given.forecasts["mix"]) + reward_fn.SOFTENING
        for policy, values in forecasts_of(train, given).items():
            errors = given.errors(values)
            score = float((reference / (reference + errors)).mean())
            table.setdefault(policy, {})[name] = (float(errors.mean()), score)
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="what process_forecasting.py wrote")
    parser.add_argument("--split", default="test", choices=series.SPLITS)
    parser.add_argument("--stride", type=int, help="hours between windows; those of the rows unless given")
    chosen = parser.parse_args(arguments)
    stride = process.STRIDES[chosen.split] if chosen.stride is None else chosen.stride
    if stride < 1:
        parser.error(f"--stride {stride}: hours between windows are at least 1")
    table = compare(series.open_series(str(chosen.data / "series")), chosen.split, stride)
    names = list(next(iter(table.values())))
    print(f"{'squared error (reward)':24}" + "".join(f"{name:>16}" for name in [*names, "mean"]))
    for policy, figures in table.items():
        columns = [*figures.values(), tuple(np.mean(list(figures.values()), axis=0))]
        print(f"{policy:24}" + "".join(f"{error:8.4f} ({score:.3f})" for error, score in columns))


if __name__ == "__main__":
    main()
