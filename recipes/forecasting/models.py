"""Classical forecasts of the next day, each from one week of hourly values.

A model is a function of an array of histories, one per row, that returns one forecast of 24 hours per row:

>>> import numpy as np
>>> MODELS["last"](np.arange(168.0)[None])[0, :3]
array([167., 167., 167.])

It is fitted to each row alone, so it knows nothing but the week before its forecast. Whole arrays of histories are
computed at once: a backtest is one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Model = Callable[[Array], Array]

DAY = 24
"""Hours per day, and of a forecast."""
WEEK = 7 * DAY
"""Hours that a model sees."""
MIX_DAYS = 4
_SMOOTHING = 0.3
"""Weight of the newest value."""
_FADING = 0.97
"""What is left per hour of the last error of the regression."""
_HARMONICS = 3
_RIDGE = 0.01
"""Added to the diagonal of the normal equations, as a share of the variance: keeps constant series solvable."""
_BOUND = 3.0
"""A recursion stays within this many standard deviations of the range of its history."""


def last(history: Array) -> Array:
    """The last value, repeated."""
    return np.repeat(history[:, -1:], DAY, axis=1)


def seasonal(history: Array) -> Array:
    """The values of the last day."""
    return history[:, -DAY:].copy()


def mix(history: Array) -> Array:
    """Half the last value, half the mean of the last four days by hour."""
    return 0.5 * last(history) + 0.5 * _mean_day(history, MIX_DAYS)


def drift(history: Array) -> Array:
    """The line through the first and the last value."""
    slope = (history[:, -1:] - history[:, :1]) / (history.shape[1] - 1)
    return history[:, -1:] + slope * np.arange(1, DAY + 1)


def profile(history: Array) -> Array:
    """The last value, and from there the usual course of the day."""
    shape = daily_profile(history)
    return history[:, -1:] + shape - shape[:, -1:]


def smoothing(history: Array) -> Array:
    """Exponential smoothing of what the daily profile leaves, plus the profile."""
    shape, rest = _split(history)
    ages = np.arange(rest.shape[1])[::-1]
    weights = _SMOOTHING * (1 - _SMOOTHING) ** ages
    weights[0] = (1 - _SMOOTHING) ** ages[0]
    return (rest @ weights)[:, None] + shape


def ar(history: Array) -> Array:
    """An autoregression of two hours on what the daily profile leaves, by least squares, plus the profile."""
    shape, rest = _split(history)
    return _autoregression(rest, (1, 2), _RIDGE / 10) + shape


def seasonal_ar(history: Array) -> Array:
    """An autoregression on the last three hours and on the same hours of the day before, by least squares."""
    return _autoregression(history, (1, 2, 3, DAY - 1, DAY, DAY + 1), _RIDGE)


def fourier(history: Array) -> Array:
    """A line and three daily harmonics by least squares, plus what is left of the last error."""
    return history @ _fourier_weights(history.shape[1])


MODELS: Mapping[str, Model] = {
    model.__name__: model for model in (last, seasonal, mix, drift, profile, smoothing, ar, seasonal_ar, fourier)
}
"""The models by name."""


def forecasts(history: Array) -> dict[str, Array]:
    """The forecast of every model for one history of at least a week."""
    week = np.ascontiguousarray(history[None, -WEEK:])
    return {name: model(week)[0] for name, model in MODELS.items()}


def daily_profile(history: Array) -> Array:
    """The mean of all days by hour, in the order of the next 24 hours, less its own mean."""
    day = _mean_day(history, history.shape[1] // DAY)
    return day - day.mean(axis=1, keepdims=True)


def _mean_day(history: Array, days: int) -> Array:
    mean: Array = history[:, -days * DAY :].reshape(len(history), days, DAY).mean(axis=1)
    return mean


def _split(history: Array) -> tuple[Array, Array]:
    """The daily profile, and what it leaves of whole days."""
    shape = daily_profile(history)
    days = history.shape[1] // DAY
    return shape, history[:, -days * DAY :] - np.tile(shape, days)


def _autoregression(history: Array, lags: tuple[int, ...], ridge: float) -> Array:
    """The recursion whose weights fit each history best."""
    centre = history.mean(axis=1, keepdims=True)
    values = history - centre
    longest, length = max(lags), history.shape[1]
    inputs = np.stack([values[:, longest - lag : length - lag] for lag in lags], axis=2)
    targets = values[:, longest:]
    variance = values.var(axis=1)
    square = np.swapaxes(inputs, 1, 2) @ inputs
    # The tiny number makes the equations of a constant history solvable; its values are all 0.
    square += (ridge * len(targets[0]) * variance + 1e-9)[:, None, None] * np.eye(len(lags))
    weights = np.linalg.solve(square, (np.swapaxes(inputs, 1, 2) @ targets[:, :, None]))[:, :, 0]
    low = values.min(axis=1) - _BOUND * np.sqrt(variance)
    high = values.max(axis=1) + _BOUND * np.sqrt(variance)
    known = np.concatenate([values[:, -longest:], np.zeros((len(values), DAY))], axis=1)
    back = np.array(lags)
    for hour in range(longest, longest + DAY):
        column = (weights * known[:, hour - back]).sum(axis=1)
        known[:, hour] = np.minimum(np.maximum(column, low), high)
    result: Array = known[:, longest:] + centre
    return result


@cache
def _fourier_weights(length: int) -> Array:
    """Regression and fading error are linear in the history: one matrix, hours of the history by hours ahead."""
    hours = np.arange(length + DAY)
    turns = [2 * np.pi * number * hours / DAY for number in range(1, _HARMONICS + 1)]
    waves = [wave for turn in turns for wave in (np.cos(turn), np.sin(turn))]
    design = np.stack([np.ones(length + DAY), hours / length, *waves], axis=1)
    fitted = design @ np.linalg.pinv(design[:length])
    last_error = -fitted[length - 1]
    last_error[length - 1] += 1.0
    fading = _FADING ** np.arange(1, DAY + 1)
    weights: Array = (fitted[length:] + fading[:, None] * last_error).T
    return weights
