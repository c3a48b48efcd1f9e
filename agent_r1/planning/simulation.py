"""`simulate`: a training run as discrete events, from the slots of episodes to the weights that engines receive.

Episodes, groups and steps follow the rules of `agent_r1.rollout`: at most `concurrency` episodes are alive, a group is
complete with its last member, and a step takes its groups as `Collector` does, or with `max_staleness` above 0 as
`OverlappingCollector` does. Engines on the learners' devices stand still during an update, others continue.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from agent_r1.planning.engine import Clock, SimulatedEngine
from agent_r1.planning.workload import RecordedEpisode, RecordedGroup, Workload
from agent_r1.rollout import can_wait


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Hardware and settings to simulate."""

    engines: int = 1
    learners: int = 1
    shared: bool = True
    """Engines and learners take turns on the same devices; otherwise each has devices of its own."""
    groups_per_step: int
    group_size: int
    concurrency: int = 256
    max_staleness: int = 0
    efficiency: float = 0.9
    """What each further learner adds, in learners."""

    @property
    def num_devices(self) -> int:
        """Devices that it needs."""
        return max(self.engines, self.learners) if self.shared else self.engines + self.learners


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Seconds of one simulated step."""

    collect: float
    """Until the groups of the step are complete."""
    update: float
    weight_sync: float
    other: float
    staleness: int
    """The oldest token of the step, in updates."""
    groups: tuple[int, ...]
    """The numbers of its groups, in the order in which they were started."""
    tokens: float
    """Sampled tokens of its groups."""

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return self.collect + self.update + self.weight_sync + self.other


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedRun:
    """What a simulated run took, step by step."""

    steps: tuple[StepTimes, ...]
    engine_share: float
    """How much of the time engines computed, on average."""
    learner_share: float
    """How much of the time learners computed."""
    sampled_tokens: float
    """Tokens that the engines sampled."""
    prompt_tokens: float
    """Tokens of prompts that the engines computed."""


@dataclass(slots=True, eq=False)
class _Group:
    number: int
    due: int
    """The last step that may train it."""
    version: int
    """Weight updates before it was started."""
    episodes: RecordedGroup
    unfinished: int
    prompts_at: set[tuple[int, int]] = field(default_factory=set)
    """(engine, version) whose prefix cache has the prompt of the group."""


class _World:
    """Engines, slots and the episodes in them."""

    def __init__(self, workload: Workload, setup: Setup, rng: random.Random) -> None:
        self.clock = Clock()
        self.workload, self.setup, self._rng = workload, setup, rng
        self.engines = [SimulatedEngine(self.clock, workload.rates) for _ in range(setup.engines)]
        self.size = max(1, round(setup.groups_per_step * workload.groups_factor))
        """Groups per step."""
        self.slots = setup.concurrency
        self._free = self.slots
        self._waiting: deque[Callable[[], None]] = deque()
        self.version = 0
        self.on_finished: Callable[[], None] = lambda: None
        self.num_finished = 0
        """Episodes that have ended."""
        self._num_groups = 0

    def start_group(self, due: int) -> _Group:
        """Draw a group; its members take slots as they become free."""
        drawn = self.workload.draw_group(self.setup.group_size, self._rng)
        group = _Group(self._num_groups, due, self.version, drawn, len(drawn))
        self._num_groups += 1
        for episode in drawn:
            self._waiting.append(partial(self._start_episode, group, episode))
        self._fill_slots()
        return group

    def _fill_slots(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._waiting.popleft()()

    def _start_episode(self, group: _Group, episode: RecordedEpisode) -> None:
        number = min(range(len(self.engines)), key=lambda index: (self.engines[index].episodes, index))
        self.engines[number].episodes += 1
        self._next_call(group, episode, number, 0, cached_at=-1)

    def _next_call(self, group: _Group, episode: RecordedEpisode, number: int, index: int, cached_at: int) -> None:
        call, engine = episode.calls[index], self.engines[number]

        def submit() -> None:
            version = engine.version
            is_cached = (number, version) in group.prompts_at if index == 0 else cached_at == version
            if index == 0:
                group.prompts_at.add((number, version))
            tokens = call.tokens_to_compute(is_first=index == 0, is_cached=is_cached)
            engine.submit(tokens, call.action_tokens, partial(answered, version))

        def answered(version: int) -> None:
            following = partial(self._next_call, group, episode, number, index + 1, version)
            is_last = index + 1 == len(episode.calls)
            self.clock.after(call.env, partial(self._finish, group, number) if is_last else following)

        self.clock.after(call.wait + self.workload.rates.per_call, submit)

    def _finish(self, group: _Group, number: int) -> None:
        self.engines[number].episodes -= 1
        group.unfinished -= 1
        self.num_finished += 1
        self._free += 1
        self._fill_slots()
        self.on_finished()

    def update(self, tokens: float) -> tuple[float, float]:
        """Learn and push the weights; gives the seconds of both."""
        work, setup = self.workload, self.setup
        seconds = work.update.seconds(tokens, setup.learners, setup.efficiency)
        if setup.shared:
            self._each(SimulatedEngine.pause)
        self._pass(seconds)
        self._each(SimulatedEngine.pause)
        self._pass(work.weight_sync)
        self.version += 1
        for engine in self.engines:
            engine.version = self.version
        self._each(SimulatedEngine.resume)
        return seconds, work.weight_sync

    def wait(self, seconds: float) -> None:
        """Advance the clock."""
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        reached: list[bool] = []
        self.clock.after(seconds, lambda: reached.append(True))
        self.clock.run_until(lambda: bool(reached))

    def _each(self, change: Callable[[SimulatedEngine], None]) -> None:
        for engine in self.engines:
            change(engine)


class _Batches:
    """Collects as `Collector`: a step waits for all groups of its batch."""

    def __init__(self, world: _World, num_steps: int) -> None:
        self.world = world
        self.num_steps = num_steps

    def collect(self, step: int) -> list[_Group]:
        """The groups of the step; time passes until they are complete."""
        groups = [self.world.start_group(step) for _ in range(self.world.size)]
        self.world.clock.run_until(lambda: all(not group.unfinished for group in groups))
        return groups


class _Overlapping(_Batches):
    """Collects as `OverlappingCollector`: a step takes complete groups and leaves the others running."""

    def __init__(self, world: _World, num_steps: int) -> None:
        super().__init__(world, num_steps)
        self._pending: list[_Group] = []
        self._slots = min(world.slots, world.size * world.setup.group_size)
        world._free = self._slots
        world.on_finished = self._start_ahead
        self._updating: int | None = None

    def collect(self, step: int) -> list[_Group]:
        """The groups of the step, those with the earliest due first."""
        batch: list[_Group] = []
        self._updating = None
        seen = -1

        def is_ready() -> bool:
            nonlocal seen
            if seen != self.world.num_finished:  # nothing else makes a group complete or a slot free
                if seen >= 0:
                    self._start(step)  # the slots are free a moment before the group is complete
                seen = self.world.num_finished
                batch[:] = self._take(step)
                if not batch:
                    self._start(step)
            return bool(batch)

        self.world.clock.run_until(is_ready)
        if not self.world.setup.shared:
            self._updating = step
            self._start_ahead()
        return batch

    def _start_ahead(self) -> None:
        if self._updating is not None:
            self._start(self._updating)

    def _start(self, step: int) -> None:
        size, staleness = self.world.size, self.world.setup.max_staleness
        max_pending = (min(1 + staleness, self.num_steps - step) - (self._updating is not None)) * size
        while len(self._pending) < max_pending:
            unfinished = sum(group.unfinished for group in self._pending)
            if len(self._pending) >= size and unfinished >= self._slots:
                break
            self._pending.append(self.world.start_group(step + staleness))

    def _take(self, step: int) -> list[_Group]:
        size = self.world.size
        complete = [group for group in self._pending if not group.unfinished]
        if len(complete) < size:
            return []
        chosen = sorted(complete, key=lambda group: (group.due, group.number))[:size]
        others = [group.due for group in self._pending if group not in chosen]
        if not can_wait(others, step=step, per_step=size):
            return []
        self._pending = [group for group in self._pending if group not in chosen]
        return chosen


def simulate(workload: Workload, setup: Setup, *, steps: int, seed: int = 0) -> SimulatedRun:
    """A run of so many steps. The same arguments give the same run."""
    world = _World(workload, setup, random.Random(seed))
    collector = (_Overlapping if setup.max_staleness else _Batches)(world, steps)
    done: list[StepTimes] = []
    learner_seconds = 0.0
    for step in range(steps):
        started = world.clock.now
        groups = collector.collect(step)
        collected = world.clock.now
        episodes = [episode for group in groups for episode in group.episodes]
        trained = sum(episode.num_tokens for episode in episodes) * workload.trained_share
        update, sync = world.update(trained)
        world.wait(workload.other)
        learner_seconds += update
        done.append(
            StepTimes(
                collect=collected - started,
                update=update,
                weight_sync=sync,
                other=workload.other,
                staleness=step - min(group.version for group in groups),
                groups=tuple(group.number for group in groups),
                tokens=float(sum(call.action_tokens for episode in episodes for call in episode.calls)),
            )
        )
    total = world.clock.now or 1.0
    return SimulatedRun(
        steps=tuple(done),
        engine_share=sum(engine.busy_seconds for engine in world.engines) / (total * len(world.engines)),
        learner_share=learner_seconds / total,
        sampled_tokens=sum(engine.action_tokens for engine in world.engines),
        prompt_tokens=sum(engine.prompt_tokens for engine in world.engines),
    )
