"""Curves from metrics.jsonl: one small panel per metric, one line per run (extra `plot`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from agent_r1.errors import DataError, did_you_mean, require_installed
from agent_r1.files import atomic_write
from agent_r1.metric_names import (
    ACTION_TOKENS,
    ENTROPY,
    EVAL_GREEDY,
    OUTCOME,
    SFT_LOSS,
    STEP_SECONDS,
    SUCCESS,
    TOOL_CALLS,
)
from agent_r1.runs.read import RunRecord

DEFAULT_KEYS = (
    SUCCESS,
    OUTCOME,
    EVAL_GREEDY,
    TOOL_CALLS,
    ACTION_TOKENS,
    ENTROPY,
    STEP_SECONDS,
    SFT_LOSS,
)
"""Metrics that are drawn by default; those that no run has are left out."""

_TITLES = {
    SUCCESS: "solved in training",
    OUTCOME: "outcome reward",
    EVAL_GREEDY: "held-out tasks solved",
    TOOL_CALLS: "tool calls per episode",
    ACTION_TOKENS: "response tokens per episode",
    ENTROPY: "entropy",
    STEP_SECONDS: "seconds per step",
    SFT_LOSS: "loss of the warm start",
}
_STYLES = ("-", "--", ":", "-.")
_FEW_POINTS = 12


def curve(run: RunRecord, key: str, *, by_minutes: bool = False) -> tuple[list[float], list[float]]:
    """Where a metric was logged, in steps or in minutes of training steps, and its values.

    Lines `{step: 1, time/step: 30, x: 5}` and `{step: 2, time/step: 90, x: 7}` give ([1, 2], [5, 7]), and by minutes
    ([0.5, 2], [5, 7]). An evaluation stands at the end of the step it came after.
    """
    timed = [line for line in run.lines if STEP_SECONDS in line]
    totals = accumulate(line[STEP_SECONDS] / 60 for line in timed)
    minutes = {0: 0.0, **{line["step"]: total for line, total in zip(timed, totals, strict=True)}}
    lines = [line for line in run.lines if key in line and (not by_minutes or line["step"] in minutes)]
    return [minutes[line["step"]] if by_minutes else line["step"] for line in lines], [line[key] for line in lines]


def draw_curves(runs: Sequence[RunRecord], keys: Sequence[str] = (), *, by_minutes: bool = False) -> Any:
    """A matplotlib figure with one panel per key; without keys, the default ones that some run has."""
    require_installed("matplotlib", "matplotlib", "plot", "agent-r1 plot")
    from matplotlib.figure import Figure

    logged = {key for run in runs for key in run.metric_names}
    unknown = [key for key in keys if key not in logged]
    if unknown:
        raise DataError(f"no run logged '{unknown[0]}'. {did_you_mean(unknown[0], logged)}")
    shown_keys = list(keys) or [key for key in DEFAULT_KEYS if key in logged]
    if not shown_keys:
        raise DataError(f"nothing to draw: no run has logged {', '.join(DEFAULT_KEYS)}")
    rows = math.ceil(len(shown_keys) / 4)
    columns = math.ceil(len(shown_keys) / rows)
    figure: Any = Figure(figsize=(4.2 * columns, 2.9 * rows + 0.4), layout="constrained", facecolor="white")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, key in zip(panels, shown_keys, strict=False):
        _draw_panel(panel, runs, key, by_minutes=by_minutes)
    for panel in panels[len(shown_keys) :]:
        panel.remove()
    if len(runs) > 1:
        lines = {line.get_label(): line for panel in figure.axes for line in panel.get_lines()}
        columns = min(4, len(runs))
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _draw_panel(panel: Any, runs: Sequence[RunRecord], key: str, *, by_minutes: bool) -> None:
    """Draw one metric. A run has the same colour in every panel."""
    for number, run in enumerate(runs):
        across, up = curve(run, key, by_minutes=by_minutes)
        if across:
            marker = "o" if len(across) <= _FEW_POINTS else ""
            style = _STYLES[number // 10 % len(_STYLES)]
            panel.plot(
                across,
                up,
                color=f"C{number % 10}",
                label=run.label,
                linestyle=style,
                marker=marker,
                markersize=3.5,
                lw=1.5,
            )
    panel.set_title(_TITLES.get(key, key), fontsize=10)
    panel.set_xlabel("minutes of training" if by_minutes else "step", fontsize=8)
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.25, linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    values = [float(value) for line in panel.get_lines() for value in line.get_ydata()]
    if values and all(0.0 <= value <= 1.0 for value in values) and _is_share(key):
        top = _share_axis(max(values))
        panel.set_ylim(-0.03 * top, 1.03 * top)


def _share_axis(largest: float) -> float:
    """The upper end of an axis of shares: 1, or a round number above the largest share.

    >>> _share_axis(0.31), _share_axis(0.9)
    (0.4, 1.0)
    """
    return next(top for top in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0) if top >= min(1.0, 1.1 * largest))


def _is_share(key: str) -> bool:
    return key.startswith("eval/") or key == SUCCESS


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure in the format of the file's suffix (.png, .svg, .pdf ...)."""
    endings = sorted(figure.canvas.get_supported_filetypes())
    if path.suffix.lstrip(".") not in endings:
        raise DataError(f"{path} has no suffix of a figure; known: {', '.join(endings)}")
    with atomic_write(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
