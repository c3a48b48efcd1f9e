"""A plan as text, JSON and a picture."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from agent_r1.console import RunConsole
from agent_r1.errors import require_installed
from agent_r1.planning.plan import Estimate, Plan

_LARGE_ERROR = 0.25
_COLORS = {"rollout": "#4c78a8", "update": "#f58518", "weight_sync": "#54a24b", "other": "#bab0ac"}


def print_plan(plan: Plan, console: RunConsole) -> None:
    """Print a plan."""
    console.info(
        f"from {plan.num_steps} steps of {plan.run}: measured {_seconds(plan.measured)} per step, simulated "
        f"{_seconds(plan.simulated)} ({plan.model_error:+.0%})"
    )
    if abs(plan.model_error) > _LARGE_ERROR:
        console.warn(
            "the simulation of the recorded setup is far from what was measured: trust differences only roughly"
        )
    if len(plan.splits) > 1:
        console.rows("seconds of a step, by the way to divide the devices", _table(plan))
    best = plan.estimate
    low, high = best.interval
    console.info(f"{describe(best)}:")
    console.info(f"  {_seconds(best.step_seconds)} per step (90 % of steps {_seconds(low)} to {_seconds(high)})")
    shares = ", ".join(
        f"{name.replace('_', ' ')} {_seconds(part)} ({part / best.step_seconds:.0%})"
        for name, part in best.parts.items()
    )
    console.info(f"  {shares}")
    console.info(
        f"  engines compute {best.engine_share:.0%} of the time, learners {best.learner_share:.0%}; "
        f"{best.tokens_per_second:,.0f} sampled tokens per second"
    )
    console.info(plan.bottleneck)
    for change in plan.changes:
        console.info(f"  {change.name}: {_seconds(change.step_seconds)} per step ({-change.saves:+.0%})")
    if not plan.changes:
        console.info("  no change of concurrency, staleness or group size saves 3 % of a step")


def describe(estimate: Estimate) -> str:
    """A setup in words: `3 engines + 1 learner, 16 groups of 8, 256 episodes at once, max_staleness 1`."""
    setup = estimate.setup
    if setup.shared:
        devices = f"{setup.num_devices} device{'s' * (setup.num_devices != 1)} shared by engines and learners"
    else:
        engines, learners = setup.engines, setup.learners
        devices = f"{engines} engine{'s' * (engines != 1)} + {learners} learner{'s' * (learners != 1)}"
    episodes = f"{setup.groups_per_step} groups of {setup.group_size}, {setup.concurrency} episodes at once"
    return f"{devices}, {episodes}, max_staleness {setup.max_staleness}"


def _table(plan: Plan) -> list[list[str]]:
    rows = [["engines", "learners", "step", "90 %", "rollout", "update", "busy"]]
    for split in plan.splits:
        setup = split.setup
        low, high = split.interval
        rows.append(
            [
                f"{setup.engines}",
                "same" if setup.shared else f"{setup.learners}",
                f"{split.step_seconds:.3g}{' best' if split is plan.estimate else ''}",
                f"{low:.3g} - {high:.3g}",
                f"{split.parts['rollout']:.3g}",
                f"{split.parts['update']:.3g}",
                f"{split.engine_share:.0%} / {split.learner_share:.0%}",
            ]
        )
    return rows


def _seconds(value: float) -> str:
    return f"{value:.3g} s"


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain values."""
    return {**asdict(plan), "model_error": plan.model_error}


def draw_plan(plan: Plan) -> Any:
    """A matplotlib figure: the step of each split as a bar of its parts, and the busy shares below."""
    require_installed("matplotlib", "matplotlib", "plot", "agent-r1 plan --plot")
    from matplotlib.figure import Figure

    splits = plan.splits
    figure: Any = Figure(figsize=(max(4.5, 1.1 * len(splits) + 2.5), 5.2), layout="constrained", facecolor="white")
    steps, busy = figure.subplots(2, 1, height_ratios=[2, 1], sharex=True)
    places = range(len(splits))
    bottom = [0.0] * len(splits)
    for name, color in _COLORS.items():
        values = [split.parts[name] for split in splits]
        steps.bar(places, values, bottom=bottom, color=color, label=name.replace("_", " "), width=0.6)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    means = [split.step_seconds for split in splits]
    errors = [
        [max(0.0, mean - split.interval[0]) for mean, split in zip(means, splits, strict=True)],
        [max(0.0, split.interval[1] - mean) for mean, split in zip(means, splits, strict=True)],
    ]
    steps.errorbar(places, means, yerr=errors, fmt="none", ecolor="black", lw=1, capsize=3)
    steps.set_ylabel("seconds per step")
    steps.legend(fontsize=8, frameon=False)
    steps.set_title(plan.bottleneck, fontsize=8, wrap=True)
    busy.plot(places, [split.engine_share for split in splits], "o-", color="#4c78a8", label="engines")
    busy.plot(places, [split.learner_share for split in splits], "s--", color="#f58518", label="learners")
    busy.set_ylim(0, 1.05)
    busy.set_ylabel("share of time")
    busy.legend(fontsize=8, frameon=False)
    busy.set_xticks(list(places), [_short(split) + ("\nbest" if split is plan.estimate else "") for split in splits])
    for panel in (steps, busy):
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25, linewidth=0.6, axis="y")
    return figure


def _short(split: Estimate) -> str:
    setup = split.setup
    return f"{setup.num_devices} shared" if setup.shared else f"{setup.engines}+{setup.learners}"
