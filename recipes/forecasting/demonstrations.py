"""Demonstrations: programs that look, choose by the errors on the window's own past, and answer.

A program calls the real tools. Some take the model with the smallest error in the backtest; others combine the best two
or three, weigh them, take some of the best at random or add an offset, so that the policy has something to explore
from. A demonstration is kept when its forecast of the training window was no worse than the reference.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import prompts
from .answer import Combination
from .models import Array
from .window import Window, show_forecast

KINDS = {"best": 6, "two": 5, "three": 4, "weighted": 2, "random": 2, "offset": 1}
"""Kinds of programs, with their shares."""
_EXPLORED = 6
"""Random combinations are of so many of the best: the worst would make combining look worse than it is."""

LOOKS = ("statistics", "decompose", "backtest", "forecast")

Turn = Sequence[tuple[str, dict[str, Any], str]]
"""Calls of one turn: tool, arguments, what it answered."""


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """An episode of a program."""

    kind: str
    turns: Sequence[Turn]
    answer: Combination
    values: Array
    """The forecast it stands for."""


def choose(window: Window, kind: str, rng: random.Random) -> Combination:
    """The models that a program of this kind combines."""
    ranked = list(window.errors)
    if kind == "random":
        return Combination(weights=dict.fromkeys(rng.sample(ranked[:_EXPLORED], rng.choice((2, 2, 3))), 1.0))
    if kind == "weighted":
        share = rng.choice((0.6, 0.7, 0.8))
        return Combination(weights={ranked[0]: share, rng.choice(ranked[1:4]): round(1 - share, 1)})
    if kind == "offset":
        spread = float(np.diff(window.past).std())
        return Combination(weights={ranked[0]: 1.0}, offset=round(rng.choice((-0.5, 0.5)) * spread, 1))
    return Combination(weights=dict.fromkeys(ranked[: {"best": 1, "two": 2, "three": 3}[kind]], 1.0))


def demonstrate(window: Window, rng: random.Random, tools: Collection[str] = LOOKS) -> Demonstration:
    """Play a program. It backtests where that is a tool; what else it looks at is drawn."""
    [kind] = rng.choices(list(KINDS), list(KINDS.values()))
    chosen = choose(window, kind, rng)
    looks: dict[str, tuple[str, dict[str, Any], str]] = {
        "statistics": ("statistics", {}, window.statistics()),
        "decompose": ("decompose", {}, window.decomposition()),
        "backtest": ("backtest", {}, window.backtest()),
    }
    others = rng.choice(((), (), ("statistics",), ("decompose",)))
    turns: list[Turn] = [[looks[name] for name in (*others, "backtest") if name in tools]]
    values = chosen.forecast(window.forecasts)
    if rng.random() < 0.3 and "forecast" in tools:
        turns.append([("forecast", {"models": str(chosen)}, show_forecast(values))])
    return Demonstration(kind=kind, turns=[turn for turn in turns if turn], answer=chosen, values=values)


def conversation(question: Sequence[dict[str, Any]], shown: Demonstration) -> list[dict[str, Any]]:
    """A demonstration as messages."""
    messages = list(question)
    for turn in shown.turns:
        messages.append(prompts.call_message([(tool, arguments) for tool, arguments, _ in turn]))
        messages += [prompts.result_message(number, tool, text) for number, (tool, _, text) in enumerate(turn)]
    return [*messages, prompts.answer_message(str(shown.answer))]
