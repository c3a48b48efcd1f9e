"""The reward of forecasting: how small the squared error is beside that of a simple mix of forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agent_r1.rewards import needs_ground_truth
from agent_r1.types import Episode, Task

from .answer import AnswerError, Combination, read_answer
from .models import Array

SOFTENING = 0.01
"""Added to the error of the mix: where that is tiny, tiny differences are no reason for large rewards."""


@needs_ground_truth("exact")
def score(task: Task, episode: Episode) -> dict[str, float | str]:
    """`reference / (reference + error)` with the error of the mix as the reference: 1 for the true values, about 0.5
    for the mix itself, nearer to 0 the worse. Nothing for an answer without the right form.

    Errors are mean squares in units of the standard deviation of the rows to train on. An answer that is none has the
    error of the mean of these rows.
    """
    row = task.reward_model
    steps = episode.steps
    forecasts = steps[-1].info.get("forecasts", {}) if steps else {}
    values, answer = forecast_of(episode.answer, forecasts)
    answered = values is not None
    error = squared_error(np.full(1, row["mean"]) if values is None else values, task)
    absolute = float(np.abs((row["mean"] if values is None else values) - np.array(task.ground_truth)).mean())
    reference = row["errors"]["mix"] + SOFTENING
    value = reference / (reference + error) if answered else 0.0
    return {
        "score": value,
        "success": value,
        "mse": error,
        "mae": absolute / row["scale"],
        **{f"{name}_mse": float(other) for name, other in row["errors"].items()},
        "beats_mix": float(answered and error < row["errors"]["mix"]),
        "answered": float(answered),
        "models": float(len(answer.weights)) if isinstance(answer, Combination) else 0.0,
        "answer": str(answer) if isinstance(answer, Combination) else "",
    }


def forecast_of(text: str, forecasts: Mapping[str, Any]) -> tuple[Array | None, Combination | Array | None]:
    """The 24 numbers that an answer stands for, and the answer; None for both where it has not the form of one."""
    try:
        answer = read_answer(text)
        return (answer.forecast(forecasts) if isinstance(answer, Combination) else answer), answer
    except (AnswerError, KeyError):  # KeyError: a combination outside an episode
        return None, None


def squared_error(values: Array, task: Task) -> float:
    """The mean squared error on scaled data."""
    difference = (values - np.array(task.ground_truth)) / task.reward_model["scale"]
    return float((difference**2).mean())


def gold_answer(task: Task) -> str:
    """The text of a perfect last action: the true values."""
    return f"<answer>{', '.join(f'{value:.12f}' for value in task.ground_truth)}</answer>"
