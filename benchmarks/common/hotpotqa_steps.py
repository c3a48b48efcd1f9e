"""Whole training steps and rollouts of the recipe `hotpotqa` on a real engine, and the engine's raw rate at the same
prompts and lengths."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from agent_r1.console import RunConsole
from agent_r1.engines import Engine
from agent_r1.interrupts import stop_signals
from agent_r1.registry import recipe_folder
from agent_r1.runs import locked_run, open_run, open_trackers
from agent_r1.training import RunComponents, RunPlan, check_model, ensure_model
from agent_r1.training.components import TrainingComponents, load_components, make_training_components
from agent_r1.training.trainer import Trainer
from agent_r1.types import Group, SamplingParams, Step, Trajectory
from benchmarks.common.host_profile import Clock, HostProfile, as_json
from benchmarks.common.hotpotqa import RECIPE
from benchmarks.common.updates import synchronise
from benchmarks.common.workloads import Request, complete_all

COMMON = ("trainer.compile=true", "trainer.micro_batch_tokens=8192", "trainer.save_every=1000", "eval.every=0")
SETTINGS = {
    "S": COMMON,
    "Q": (
        *COMMON,
        "trainer.gradient_checkpointing=true",
        "sft.learning_rate=1e-5",
        "sft.steps=60",
        "optimizer.learning_rate=4e-6",
    ),
}
"""Of the runs in docs/results.md, by the size of the model."""

WARMUP = 2
"""Steps that are not counted: compilation, graphs, the first growth of memory."""


def settings_for(model: str) -> str:
    """The settings for a model of this size: those of Q from a hidden size of 1,024 on."""
    from transformers import AutoConfig

    return "Q" if int(AutoConfig.from_pretrained(model).get_text_config().hidden_size) >= 1024 else "S"


class _Measured(BaseException):
    """Ends the run after its last step. A run that ends with an error would save."""


class _Meter(RunConsole):
    """Keeps the metrics of each step instead of printing them."""

    def __init__(self, num_steps: int) -> None:
        super().__init__(quiet=True)
        self.metrics: list[Mapping[str, float]] = []
        self._num_steps = num_steps

    def step_line(self, step: int, total: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Keep; after the last one there is nothing more to see."""
        self.metrics.append(dict(metrics))
        if len(self.metrics) == self._num_steps:
            raise _Measured


@dataclass(kw_only=True)
class StepFigures:
    """What was measured."""

    steps: list[Mapping[str, float]]
    """The metrics of the counted training steps."""
    rollouts: list[Mapping[str, float]] = field(default_factory=list)
    """Rollouts alone and the raw rate at their lengths, round by round."""
    profile: HostProfile = field(default_factory=HostProfile)
    """Of one further rollout."""
    profiled_seconds: float = 0.0
    """How long that rollout took."""
    episodes: int = 0
    """Episodes of a rollout."""

    def median(self, name: str) -> float:
        """The median of a metric over the steps, or of a figure over the rounds of rollouts."""
        rows = self.steps if self.steps and name in self.steps[0] else self.rollouts
        return statistics.median(row[name] for row in rows)

    @property
    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return {
            "steps": [dict(step) for step in self.steps],
            "rollouts": [dict(rollout) for rollout in self.rollouts],
            "profile": as_json(self.profile),
            "profiled_seconds": self.profiled_seconds,
            "episodes": self.episodes,
        }


def measure_steps(plan: RunPlan, *, rounds: int, with_rollouts: bool = True) -> StepFigures:
    """Training steps in a real run, then rollouts and raw rates with its engine. Nothing is saved."""
    meter = _Meter(WARMUP + rounds)
    with recipe_folder(RECIPE), stop_signals(quiet=True) as stop, locked_run(plan.config) as lock:
        plan = ensure_model(plan, RunConsole(quiet=True))
        model = check_model(plan)
        folder, _ = open_run(plan.config, say=lambda text: None, lock=lock)

        async def run() -> StepFigures:
            components = load_components(plan, model)
            async with components.opened():
                training = make_training_components(plan, components)
                tracker = open_trackers(plan.config, folder)
                try:
                    trainer = Trainer(
                        plan=plan,
                        components=components,
                        training=training,
                        folder=folder,
                        tracker=tracker,
                        console=meter,
                        stop=stop,
                    )
                    with contextlib.suppress(_Measured):
                        await trainer.run(resume=None)
                finally:
                    tracker.close()
                figures = StepFigures(steps=meter.metrics[WARMUP:])
                if with_rollouts:
                    await _measure_rollouts(components, training, figures, rounds)
                return figures

        return asyncio.run(run())


async def _measure_rollouts(
    components: RunComponents, training: TrainingComponents, figures: StepFigures, rounds: int
) -> None:
    """Rollouts alone, each followed by the raw rate at its lengths; the first round warms up."""
    engine, first = components.engine, len(figures.steps) + WARMUP
    for number in range(rounds + 1):
        clock, groups = await _collect(engine, training, first + number)
        steps = [step for group in groups for trajectory in group for step in trajectory.steps]
        tokens = sum(len(step.action_ids) for step in steps)
        at_once = await _seconds(engine, partial(_at_once, engine, steps))
        in_turns = await _seconds(engine, partial(_in_turns, engine, groups))
        figures.episodes = sum(len(group.trajectories) for group in groups)
        if number:
            figures.rollouts.append(
                {
                    "rollout_seconds": clock.wall,
                    "main_thread_seconds": clock.thread,
                    "process_seconds": clock.process,
                    "calls": len(steps) / figures.episodes,
                    "tokens": tokens / figures.episodes,
                    "prompt_tokens": statistics.mean(len(step.prompt_ids) for step in steps),
                    "rollout_rate": tokens / clock.wall,
                    "raw_rate": tokens / at_once,
                    "raw_rate_in_turns": tokens / in_turns,
                    "ratio": at_once / clock.wall,
                    "ratio_in_turns": in_turns / clock.wall,
                }
            )
    with figures.profile.sampling():
        clock, _ = await _collect(engine, training, first + rounds + 1)
    figures.profiled_seconds = clock.wall


async def _collect(engine: Engine, training: TrainingComponents, number: int) -> tuple[Clock, Sequence[Group]]:
    """One batch of rollouts with an empty prefix cache, as after an update."""
    await _empty_cache(engine)
    clock = Clock()
    with clock.running():
        collected = await training.collector.collect(number, on_finished=lambda trajectory: None)
        synchronise()
    return clock, collected.groups


async def _empty_cache(engine: Engine) -> None:
    await engine.update_weights((), engine.policy_version)
    synchronise()


async def _seconds(engine: Engine, work: Callable[[], Awaitable[Any]]) -> float:
    await _empty_cache(engine)
    started = time.perf_counter()
    await work()
    synchronise()
    return time.perf_counter() - started


async def _at_once(engine: Engine, steps: Sequence[Step]) -> None:
    """All recorded prompts together; each samples as many tokens as its action had."""
    await complete_all(engine, [Request(step.prompt_ids, len(step.action_ids)) for step in steps])


async def _in_turns(engine: Engine, groups: Sequence[Group]) -> None:
    """The recorded prompts of an episode one after the other, all episodes together."""

    async def replay(number: int, trajectory: Trajectory) -> None:
        for turn, step in enumerate(trajectory.steps):
            sampling = SamplingParams(max_tokens=len(step.action_ids), seed=number * 100 + turn)
            await engine.generate(step.prompt_ids, sampling)

    episodes = [trajectory for group in groups for trajectory in group]
    await asyncio.gather(*(replay(number, trajectory) for number, trajectory in enumerate(episodes)))


def device_name() -> str:
    """The GPU, or cpu."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
