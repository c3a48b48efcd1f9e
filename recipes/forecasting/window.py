"""What the tools know of one task: two weeks of hours, the models' forecasts of the next day, their errors before."""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np

from .models import DAY, MODELS, WEEK, Array, daily_profile, forecasts
from .series import open_series

_BACKTEST_STEP = 6
"""Hours between the starts of the forecasts of a backtest."""


class Window:
    """The past of one forecast. Everything is computed when it is asked for, once."""

    def __init__(self, past: Array) -> None:
        self.past = past

    @cached_property
    def forecasts(self) -> dict[str, Array]:
        """The forecast of every model."""
        return forecasts(self.past)

    @cached_property
    def errors(self) -> dict[str, float]:
        """Root mean squared error of every model in forecasts of days of the last week, made as the real one is: from
        the week before the forecast day alone. Smallest first."""
        ends = len(self.past) - np.arange(DAY, WEEK + 1, _BACKTEST_STEP)
        histories = np.stack([self.past[end - WEEK : end] for end in ends])
        days = np.stack([self.past[end : end + DAY] for end in ends])
        errors = {name: float(np.sqrt(((model(histories) - days) ** 2).mean())) for name, model in MODELS.items()}
        return dict(sorted(errors.items(), key=lambda entry: entry[1]))

    def statistics(self) -> str:
        """The level and how it moves, in a few lines."""
        week = self.past[-WEEK:]
        days, before = week.reshape(7, DAY), self.past[-WEEK - DAY : -DAY]
        ago = [self.past[-1 - DAY * number] for number in (1, 2)]
        return (
            f"last value {self.past[-1]:.1f}; same hour one day before {ago[0]:.1f}, two days before {ago[1]:.1f}\n"
            f"means of the last 7 days: {_numbers(days.mean(axis=1))}\n"
            f"last day: lowest {days[-1].min():.1f}, highest {days[-1].max():.1f}\n"
            f"standard deviation: week {week.std():.2f}, change per hour {np.diff(week).std():.2f}, "
            f"change per day {(week - before).std():.2f}"
        )

    def decomposition(self) -> str:
        """The week as daily profile, levels of days and a rest."""
        week = self.past[-WEEK:]
        shape = daily_profile(week[None])[0]
        levels = week.reshape(7, DAY).mean(axis=1)
        rest = week - np.tile(shape, 7) - np.repeat(levels, DAY)
        total = float(week.var()) or 1.0
        return (
            f"share of the variance: daily profile {float(shape.var()) / total:.2f}, levels of days "
            f"{float(levels.var()) / total:.2f}, rest {float(rest.var()) / total:.2f}\n"
            f"profile of the next hours 1, 4, ... 22: {_numbers(shape[::3], signed=True)}\n"
            f"the last value is {rest[-1]:+.1f} from its level and profile"
        )

    def backtest(self) -> str:
        """The models' errors, smallest first."""
        return "error over the last week: " + ", ".join(f"{name} {error:.2f}" for name, error in self.errors.items())


def show_forecast(values: Array) -> str:
    """A forecast as the model reads it: every third hour, and the mean of all."""
    return f"hours 1, 4, ... 22: {_numbers(values[::3])}; mean {values.mean():.1f}"


def _numbers(values: Array, *, signed: bool = False) -> str:
    return " ".join(f"{value:+.1f}" if signed else f"{value:.1f}" for value in values)


@lru_cache(maxsize=4096)
def open_window(folder: str, series: str, start: int) -> Window:
    """The window of a task. Members of a group share it."""
    return Window(open_series(folder)[series].past(start))
