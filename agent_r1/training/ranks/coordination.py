"""Engines and workers elsewhere: the first rank rolls out for all of them.

An engine in this process is there once per rank, and every rank rolls out its share. Inference servers, and workers on
other machines, belong to one process: the first rank sends them their requests and their weights, and the others only
learn. Which groups a step takes is then its decision alone, so `rollout.max_staleness` works.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from agent_r1.config import Config
from agent_r1.engines import Engine, make_engine
from agent_r1.errors import EngineError
from agent_r1.learner.sharded import Ranks
from agent_r1.rewards import RewardShaping
from agent_r1.rollout import Collector, Rollout, make_collector
from agent_r1.training.ranks.rollout import SharedRollout
from agent_r1.types import Completion, SamplingParams, Task, Trajectory


def is_coordinated(config: Config) -> bool:
    """Whether the first of several ranks rolls out for all."""
    return config.engine.name != "local" or getattr(config.rollout, "workers", "local") != "local"


def engine_of_rank(config: Config, ranks: Ranks) -> Callable[[Config, Any, int], Engine]:
    """What makes the engine of this rank."""
    return make_engine if ranks.is_first or not is_coordinated(config) else _make_idle


def config_of_rank(config: Config, ranks: Ranks) -> Config:
    """The configuration that this rank builds its rollouts from: workers elsewhere are the first rank's."""
    if ranks.is_first or getattr(config.rollout, "workers", "local") == "local":
        return config
    changes: dict[str, Any] = {"workers": "local"}
    return replace(config, rollout=replace(config.rollout, **changes))


def _make_idle(config: Config, policy: Any, context_length: int) -> Engine:
    return IdleEngine(context_length)


class IdleEngine:
    """The engine of a rank that rolls nothing out."""

    adapters: Sequence[str] = ()
    pauses_during_update = False

    def __init__(self, context_length: int) -> None:
        self.context_length = context_length
        self.policy_version = 0

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Raises: a rank that plays no episodes samples nothing."""
        raise EngineError("this rank rolls nothing out")

    async def update_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Take part in gathering the weights, which the first rank's engine needs."""
        for _ in weights:
            pass
        self.policy_version = version

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Does nothing: nothing is computed here."""
        yield

    async def close(self) -> None:
        """There is nothing to free."""


def make_ranks_collector(
    config: Config, rollout: Rollout, tasks: Sequence[Task], shaping: RewardShaping, ranks: Ranks
) -> Collector:
    """The collector of a run on any number of ranks."""
    if isinstance(rollout, SharedRollout) and is_coordinated(config):
        return cast(Collector, FirstCollector(make_collector(config, rollout.own, tasks, shaping), ranks))
    return make_collector(config, rollout, tasks, shaping)


class FirstCollector:
    """In the place of a `Collector`: that of the first rank collects, and all get what it has collected."""

    def __init__(self, collector: Collector, ranks: Ranks) -> None:
        self._collector = collector
        self._ranks = ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collector, name)

    async def collect(self, step: int, on_finished: Callable[[Trajectory], None]) -> Any:
        """The rollouts of training step `step`; see `Collector.collect`."""

        async def work() -> Any:
            return await self._collector.collect(step, on_finished) if self._ranks.is_first else None

        return (await self._ranks.gather(work))[0]
