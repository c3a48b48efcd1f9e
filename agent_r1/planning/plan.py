"""`make_plan`: simulate a recorded run on other hardware and settings; name the bottleneck and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, quantiles

from agent_r1.planning.engine import EngineRates
from agent_r1.planning.record import RecordedRun
from agent_r1.planning.simulation import Setup, StepTimes, simulate
from agent_r1.planning.workload import UpdateCost, Workload

REPEATS = 3
STEPS = 6
_MAX_SPLITS = 12
_WORTH_SAYING = 0.03
"""The share of a step that a change must save to be named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a simulated setup is expected to take."""

    setup: Setup
    step_seconds: float
    """The expected time of a step."""
    interval: tuple[float, float]
    """Nine of ten steps take between these."""
    parts: dict[str, float]
    """The mean seconds of `rollout` (waiting for groups), `update`, `weight_sync` and `other`."""
    engine_share: float
    learner_share: float
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """A change, and the step time with it."""

    name: str
    step_seconds: float
    saves: float
    """The share of the step that it saves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a simulation says about a run."""

    run: str
    num_steps: int
    """Recorded steps that were read."""
    measured: float
    """The mean time of these steps."""
    simulated: float
    """What the simulation gives for the setup of the record: how far it can be trusted."""
    rates: EngineRates
    update: UpdateCost
    estimate: Estimate
    """The setup that was asked for; the best of the splits when none was."""
    splits: tuple[Estimate, ...]
    """Every way to divide the devices."""
    bottleneck: str
    """In one sentence."""
    without: tuple[WhatIf, ...]
    """The step time if one part took no time, the most important first."""
    changes: tuple[WhatIf, ...]
    """Settings that would save time, the best first."""

    @property
    def model_error(self) -> float:
        """By how much the simulation of the record differs from what was measured."""
        return self.simulated / self.measured - 1.0


def estimate_steps(workload: Workload, setup: Setup, *, repeats: int = REPEATS) -> Estimate:
    """The expected step of a setup, from several simulated runs. Steps in which a pipeline is still filling, or runs
    out of groups at the end, do not count."""
    margin = setup.max_staleness
    step_times: list[StepTimes] = []
    engine_shares, learner_shares = [], []
    for seed in range(repeats):
        run = simulate(workload, setup, steps=STEPS + 2 * margin, seed=seed)
        step_times += run.steps[margin : margin + STEPS]
        engine_shares.append(run.engine_share)
        learner_shares.append(run.learner_share)
    totals = [step.total for step in step_times]
    cuts = quantiles(totals, n=20, method="inclusive") if len(totals) > 1 else totals
    mean = fmean(totals)
    return Estimate(
        setup=setup,
        step_seconds=mean,
        interval=(cuts[0], cuts[-1]),
        parts={
            "rollout": fmean(step.collect for step in step_times),
            "update": fmean(step.update for step in step_times),
            "weight_sync": fmean(step.weight_sync for step in step_times),
            "other": fmean(step.other for step in step_times),
        },
        engine_share=fmean(engine_shares),
        learner_share=fmean(learner_shares),
        tokens_per_second=fmean(step.tokens for step in step_times) / mean if mean else 0.0,
    )


def splits_of(devices: int, setup: Setup) -> list[Setup]:
    """The ways to divide devices: all of them taking turns, or some for engines and the others for learners; with many
    devices, some of the ways, evenly spaced."""
    shared = replace(setup, engines=devices, learners=devices, shared=True)
    engines: Sequence[int] = range(1, devices)
    if len(engines) > _MAX_SPLITS:
        engines = sorted({round(1 + place * (devices - 2) / (_MAX_SPLITS - 1)) for place in range(_MAX_SPLITS)})
    return [shared, *(replace(setup, engines=number, learners=devices - number, shared=False) for number in engines)]


def make_plan(
    recorded: RecordedRun, setup: Setup, *, devices: int | None = None, tools: float = 1.0, repeats: int = REPEATS
) -> Plan:
    """Plan for a setup; with `devices`, for the best way to divide them. `tools` multiplies the time of tools."""
    workload = recorded.workload if tools == 1.0 else recorded.workload.with_tools(tools)
    candidates = [setup] if devices is None else splits_of(devices, setup)
    splits = tuple(estimate_steps(workload, candidate, repeats=repeats) for candidate in candidates)
    best = min(splits, key=lambda split: (split.step_seconds, not split.setup.shared))
    without = sorted(_without(workload, best, repeats), key=lambda change: -change.saves)
    changes = sorted(_changes(workload, best, repeats), key=lambda change: -change.saves)
    return Plan(
        run=str(recorded.path),
        num_steps=recorded.num_steps,
        measured=recorded.mean_step,
        simulated=estimate_steps(recorded.workload, recorded.setup, repeats=repeats).step_seconds,
        rates=workload.rates,
        update=workload.update,
        estimate=best,
        splits=splits,
        bottleneck=_sentence(best, without),
        without=tuple(without),
        changes=tuple(change for change in changes if change.saves >= _WORTH_SAYING),
    )


_PARTS = ("engines", "tools", "updates", "weight sync", "host", "slots", "stragglers")


def _without(workload: Workload, best: Estimate, repeats: int) -> Iterator[WhatIf]:
    """The step time if one part took no time."""
    free = EngineRates(per_prompt_token=0.0, base=0.0, per_request=0.0, per_call=workload.rates.per_call)
    unlimited = best.setup.groups_per_step * best.setup.group_size * (1 + best.setup.max_staleness)
    variants: list[tuple[Workload, Setup]] = [
        (replace(workload, rates=free), best.setup),
        (workload.with_tools(0.0), best.setup),
        (replace(workload, update=UpdateCost(base=0.0, per_token=0.0)), best.setup),
        (replace(workload, weight_sync=0.0), best.setup),
        (replace(workload.with_waits(0.0), other=0.0), best.setup),
        (workload, replace(best.setup, concurrency=max(unlimited, best.setup.concurrency))),
        (workload.without_stragglers(), best.setup),
    ]
    for name, (work, setup) in zip(_PARTS, variants, strict=True):
        yield _what_if(name, work, setup, best, repeats)


def _changes(workload: Workload, best: Estimate, repeats: int) -> Iterator[WhatIf]:
    """Settings of the run that may help."""
    setup = best.setup
    if setup.concurrency < setup.groups_per_step * setup.group_size:
        more = setup.concurrency * 2
        yield _what_if(f"rollout.concurrency={more}", workload, replace(setup, concurrency=more), best, repeats)
    staler = setup.max_staleness + 1
    yield _what_if(f"rollout.max_staleness={staler}", workload, replace(setup, max_staleness=staler), best, repeats)
    if setup.group_size % 2 == 0 and setup.group_size > 2:
        half, twice = setup.group_size // 2, setup.groups_per_step * 2
        smaller = replace(setup, group_size=half, groups_per_step=twice)
        name = f"rollout.group_size={half} rollout.groups_per_step={twice}"
        yield _what_if(name, workload, smaller, best, repeats)


def _what_if(name: str, workload: Workload, setup: Setup, best: Estimate, repeats: int) -> WhatIf:
    seconds = estimate_steps(workload, setup, repeats=repeats).step_seconds
    return WhatIf(name=name, step_seconds=seconds, saves=1.0 - seconds / best.step_seconds)


_SENTENCES = {
    "engines": "the engines: with infinitely fast ones",
    "tools": "tools, environment and reward: if they answered at once,",
    "updates": "the learner's updates: without them",
    "weight sync": "sending weights to the engines: without it",
    "host": "the host, which prepares and delivers calls: without that",
    "slots": "the number of episodes at once (rollout.concurrency): without that limit",
    "stragglers": "stragglers: if all episodes were alike,",
}


def _sentence(best: Estimate, without: Sequence[WhatIf]) -> str:
    worst = without[0]
    if worst.saves < _WORTH_SAYING:
        return "There is no single bottleneck: no part alone, if it took no time, would save a step 3 %."
    return (
        f"The bottleneck is {_SENTENCES[worst.name]} a step would take {worst.step_seconds:.3g} s instead of "
        f"{best.step_seconds:.3g} s."
    )
