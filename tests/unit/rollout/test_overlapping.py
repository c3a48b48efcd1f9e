"""Rollouts that go on over the update: weights that change under an answer, the pool of groups and its bound on
staleness, the time that is saved, and runs that break off and go on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from transformers import LlamaForCausalLM

import agent_r1
from agent_r1.algorithms import LossInputs, TokenLosses, policy_losses
from agent_r1.algorithms.algorithm import Algorithm, bind_algorithm
from agent_r1.chat import ChatRenderer
from agent_r1.config import AlgorithmConfig, Config, load_config
from agent_r1.config.schema import RolloutConfig, TrainerConfig
from agent_r1.data import TaskSampler
from agent_r1.engines import ScriptedEngine
from agent_r1.engines.local import LocalEngine
from agent_r1.envs import AgentEnv
from agent_r1.errors import AgentR1Error, ConfigError, RolloutsFailingError
from agent_r1.evaluation.health import HealthMonitor
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.rollout.collector import Collected, Collector
from agent_r1.rollout.overlapping import can_wait, make_collector
from agent_r1.runs import read_trajectories
from agent_r1.runs.checkpoints import list_checkpoints
from agent_r1.seeds import mix_seed, unit_float
from agent_r1.training.components import make_shaping
from agent_r1.training.plan import RunPlan, make_plan
from agent_r1.types import (
    Action,
    Completion,
    Episode,
    Group,
    Observation,
    SamplingParams,
    StepResult,
    StopReason,
    Task,
    TokenIds,
    Trajectory,
)
from tests.helpers import commands
from tests.helpers.fuzzing import cases
from tests.helpers.hand_made import row_logprobs, sharpened, shifted_copy
from tests.helpers.tiny_runs import tiny_overrides
from tests.helpers.virtual_clock import VirtualLoop, in_virtual_time
from tests.integration.test_learning import PRESETS, likes_even_tokens

ROOT = Path(__file__).parents[3]


# --- weights change under an answer --------------------------------------------------------------------------------


@pytest.fixture
def policy(tiny_model: LlamaForCausalLM) -> LlamaForCausalLM:
    return sharpened(tiny_model).eval()


async def steps(engine: LocalEngine, count: int) -> None:
    """Wait until the engine has made so many more steps."""
    wanted = engine.stats.steps + count
    while engine.stats.steps < wanted:
        await asyncio.sleep(0)


def random_ids(seed: int, length: int) -> TokenIds:
    return tuple(random.Random(seed).choices(range(100), k=length))


def assert_each_token_is_from_its_weights(
    versions: Sequence[torch.nn.Module], prompt: TokenIds, completion: Completion
) -> None:
    """A plain forward pass of the model a token names gives its log-prob, after everything sampled before it."""
    with torch.no_grad():
        plain = [row_logprobs(model, prompt, completion.token_ids) for model in versions]
    expected = [float(plain[version][index]) for index, version in enumerate(completion.policy_versions)]
    assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_tokens_after_the_change_are_what_the_new_weights_say(policy: LlamaForCausalLM) -> None:
    shifted = shifted_copy(policy)
    prompt, sampling = random_ids(1, 37), SamplingParams(max_tokens=40, seed=5)

    async def change_in_the_middle() -> Completion:
        engine = LocalEngine(policy)
        running = asyncio.create_task(engine.generate(prompt, sampling))
        await steps(engine, 18)
        await engine.update_weights(shifted.state_dict().items(), 1)
        return await running

    completion = asyncio.run(change_in_the_middle())
    num_old = completion.policy_versions.count(0)
    assert completion.policy_versions == (0,) * num_old + (1,) * (40 - num_old)
    assert 10 < num_old < 30
    assert_each_token_is_from_its_weights([policy, shifted], prompt, completion)
    with torch.no_grad():
        moved = row_logprobs(policy, prompt, completion.token_ids) - torch.tensor(completion.logprobs)
    assert float(moved[num_old:].abs().mean()) > 0.01


@pytest.mark.whole
@pytest.mark.parametrize("prefill_tokens", [16, 512])
def test_a_whole_crowd_goes_on_whatever_each_was_at(policy: LlamaForCausalLM, prefill_tokens: int) -> None:
    """Some wait, some have half a prompt computed, some decode, some share a prefix with others of before the change;
    and the weights change twice."""
    models = [policy, shifted_copy(policy)]
    models.append(shifted_copy(models[1]))
    shared = random_ids(7, 33)
    prompts = [shared + random_ids(index, 1 + index % 3) for index in range(6)]
    prompts += [random_ids(index, 1 + 9 * index % 60) for index in range(10)]
    requests = [(prompt, SamplingParams(max_tokens=5 + 3 * n, seed=n)) for n, prompt in enumerate(prompts)]

    async def change_twice() -> list[Completion]:
        engine = LocalEngine(policy, max_requests=8, prefill_tokens=prefill_tokens, kv_memory=800)
        running = [asyncio.create_task(engine.generate(*request)) for request in requests]
        for version in (1, 2):
            await steps(engine, 12)
            await engine.update_weights(models[version].state_dict().items(), version)
        async with asyncio.timeout(20):
            return list(await asyncio.gather(*running))

    completions = asyncio.run(change_twice())
    for prompt, completion in zip(prompts, completions, strict=True):
        assert list(completion.policy_versions) == sorted(completion.policy_versions)
        assert_each_token_is_from_its_weights(models, prompt, completion)
    assert len({completion.policy_versions[0] for completion in completions}) > 1
    assert max(len(set(completion.policy_versions)) for completion in completions) > 1


def test_a_change_with_nobody_under_way_changes_no_answer(policy: LlamaForCausalLM) -> None:
    """The same weights again: an answer goes on as if nothing had happened, bit for bit."""
    prompt, sampling = random_ids(1, 20), SamplingParams(max_tokens=20, seed=5)

    async def answer(push_after: int | None) -> Completion:
        engine = LocalEngine(policy)
        running = asyncio.create_task(engine.generate(prompt, sampling))
        if push_after is not None:
            await steps(engine, push_after)
            await engine.update_weights(policy.state_dict().items(), 0)
        return await running

    assert asyncio.run(answer(9)) == asyncio.run(answer(None))


def test_a_request_given_up_before_the_change_leaves_no_trace(policy: LlamaForCausalLM) -> None:
    async def give_up() -> tuple[Completion, int]:
        engine = LocalEngine(policy, max_requests=2)
        sampling = SamplingParams(max_tokens=60, seed=1)
        running = [asyncio.create_task(engine.generate(random_ids(n, 9), sampling)) for n in range(4)]
        await steps(engine, 5)
        for task in running[:3]:
            task.cancel()
        await engine.update_weights(policy.state_dict().items(), 1)
        async with asyncio.timeout(20):
            return await running[3], len(engine._futures)

    completion, num_left = asyncio.run(give_up())
    assert (len(completion.token_ids), set(completion.policy_versions), num_left) == (60, {1}, 0)


# --- the pool: what is trained when --------------------------------------------------------------------------------

Latency = Callable[[str, int], float]
"""Seconds a turn takes: from the task's name and the number that the model said."""


class Waits(AgentEnv):
    """Two turns, each of which takes its time."""

    def __init__(self, latency: Latency) -> None:
        self.latency = latency

    async def reset(self, task: Task) -> Observation:
        self.name, self.turns = task.task_id, 0
        self.messages: tuple[Any, ...] = task.prompt
        return Observation(messages=self.messages)

    async def step(self, action: Action) -> StepResult:
        await asyncio.sleep(self.latency(self.name, action.token_ids[0]))
        if self.name.startswith("broken"):
            raise ConnectionError("the door is stuck")
        self.turns += 1
        self.messages = (*self.messages, action.as_message(), {"role": "user", "content": "and?"})
        return StepResult(observation=Observation(messages=self.messages), done=self.turns == 2)


def say_the_seed(prompt: TokenIds, sampling: SamplingParams) -> Sequence[int]:
    return (5 + sampling.seed % 40,)


def tasks_named(*names: str) -> list[Task]:
    return [Task(task_id=name, prompt=({"role": "user", "content": name},)) for name in names]


def earns_what_was_said(task: Task, episode: Episode) -> float:
    """The members of a group differ, except on the tasks named `dead...`."""
    return 0.0 if task.task_id.startswith("dead") else float(episode.steps[0].action_ids[0] + len(episode.steps))


class ElsewhereEngine(ScriptedEngine):
    """It stands for servers, which keep sampling during an update."""

    @property
    def pauses_during_update(self) -> bool:
        return False


class Pool:
    """A collector over a scripted engine, stepped as the trainer steps it."""

    def __init__(
        self,
        renderer: ChatRenderer,
        latency: Latency,
        *,
        max_staleness: int,
        tasks: Sequence[Task] = tuple(tasks_named(*map(str, range(7)))),
        groups: int = 3,
        group_size: int = 2,
        steps: int = 8,
        concurrency: int = 256,
        deadline: float = 600.0,
        seed: int = 0,
        update_seconds: float = 0.0,
        pauses: bool = True,
        **algorithm: Any,
    ) -> None:
        config = Config(
            rollout=RolloutConfig(
                groups_per_step=groups,
                group_size=group_size,
                max_tokens=4,
                max_staleness=max_staleness,
                concurrency=concurrency,
            ),
            trainer=TrainerConfig(seed=seed, steps=steps),
            algorithm=AlgorithmConfig(**algorithm),
        )
        self.engine = ScriptedEngine(say_the_seed) if pauses else ElsewhereEngine(say_the_seed)
        self.update_seconds = update_seconds
        self.rollout = Rollout(
            engine=self.engine,
            renderer=renderer,
            reward=earns_what_was_said,
            make_env=lambda task: Waits(latency),
            limits=RolloutLimits(retries=0, group_refills=0, deadline_seconds=deadline, concurrency=concurrency),
        )
        self.collector = make_collector(config, self.rollout, tasks, make_shaping(config))
        self.steps = steps

    async def step(self, step: int) -> Collected:
        async with asyncio.timeout(100_000):
            collected = await self.collector.collect(step, lambda trajectory: None)
        if self.update_seconds:
            await asyncio.sleep(self.update_seconds)
        await self.engine.update_weights([], step + 1)
        return collected

    async def run(self, first: int = 0) -> list[Collected]:
        await self.engine.update_weights([], first)
        try:
            return [await self.step(step) for step in range(first, self.steps)]
        finally:
            await self.collector.close()


def numbers(collected: Sequence[Collected]) -> list[list[int]]:
    return [[group.group_id for group in batch.groups] for batch in collected]


def ages(step: int, collected: Collected) -> list[int]:
    steps = [taken for group in collected.groups for trajectory in group for taken in trajectory.steps]
    return [step - version for taken in steps for version in taken.policy_versions]


def heavy_tailed(seed: int, longest: float = 30.0) -> Latency:
    """Mostly one second, now and then long."""
    calls = itertools.count()
    return lambda name, said: longest if unit_float(seed, next(calls)) < 0.05 else 1.0


def even(name: str, said: int) -> float:
    return 1.0


def pool_with_a_straggler(renderer: ChatRenderer, seconds: float, **more: Any) -> Pool:
    """Two groups a step; each turn of group 1 takes long."""
    tasks = tasks_named("a", "b", "c", "d", "e")
    slow = TaskSampler(tasks, batch_size=2, seed=0).at(1).task_id
    return Pool(
        renderer,
        lambda name, said: seconds if name == slow else 1.0,
        max_staleness=1,
        tasks=tasks,
        groups=2,
        steps=2,
        **more,
    )


def test_whoever_is_complete_is_trained_and_a_straggler_in_the_step_it_is_due(renderer: ChatRenderer) -> None:
    """The third group started takes the slow one's place in step 0, and step 1 waits for that one."""
    pool = pool_with_a_straggler(renderer, 40.0)
    first, second = in_virtual_time(pool.run())
    assert numbers([first, second]) == [[0, 2], [1, 3]]
    assert first.metrics["offpolicy/staleness_max"] == 0.0
    assert second.metrics["offpolicy/staleness_max"] == 1.0
    assert 0 < second.metrics["offpolicy/staleness_mean"] < 1
    assert (first.metrics["perf/groups_in_flight"], second.metrics["perf/groups_in_flight"]) == (2.0, 0.0)
    straggler = second.groups[0].trajectories[0]
    assert [set(step.policy_versions) for step in straggler.steps] == [{0}, {1}]


@pytest.mark.whole
@pytest.mark.parametrize("max_staleness", [1, 2])
def test_time_is_saved_where_latencies_have_a_heavy_tail(renderer: ChatRenderer, max_staleness: int) -> None:
    async def seconds(staleness: int) -> float:
        await Pool(renderer, heavy_tailed(3), max_staleness=staleness, group_size=4, steps=20).run()
        return asyncio.get_running_loop().time()

    waiting, overlapping = in_virtual_time(seconds(0)), in_virtual_time(seconds(max_staleness))
    assert overlapping < 0.7 * waiting


@pytest.mark.whole
def test_slots_that_become_free_during_an_update_are_used_where_the_engine_keeps_sampling(
    renderer: ChatRenderer,
) -> None:
    async def seconds(pauses: bool) -> float:
        pool = Pool(
            renderer, heavy_tailed(3), max_staleness=2, group_size=4, steps=20, update_seconds=10.0, pauses=pauses
        )
        await pool.run()
        return asyncio.get_running_loop().time()

    assert in_virtual_time(seconds(False)) < 0.9 * in_virtual_time(seconds(True))


@pytest.mark.whole
@settings(max_examples=cases(25), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    max_staleness=st.integers(1, 3),
    groups=st.integers(1, 4),
    group_size=st.integers(1, 3),
    concurrency=st.sampled_from([1, 3, 256]),
    greedy=st.booleans(),
    update_seconds=st.sampled_from([None, 0.5, 3.0]),
)
def test_the_bound_holds_and_every_group_is_trained_once_whatever_takes_how_long(
    renderer: ChatRenderer,
    seed: int,
    max_staleness: int,
    groups: int,
    group_size: int,
    concurrency: int,
    greedy: bool,
    update_seconds: float | None,
) -> None:
    """Also where the engine keeps sampling during updates (`update_seconds`)."""
    rng = random.Random(seed)

    def latency(name: str, said: int) -> float:
        return rng.choice([0.0, 1.0, rng.expovariate(1.0), min(1000.0, rng.paretovariate(0.7))])

    pool = Pool(
        renderer,
        latency,
        max_staleness=max_staleness,
        groups=groups,
        group_size=group_size,
        concurrency=concurrency,
        group_plan="with_greedy" if greedy else "sampled",
        deadline=1e9,
        seed=seed,
        update_seconds=update_seconds or 0.0,
        pauses=update_seconds is None,
    )
    batches = in_virtual_time(pool.run())
    for step, batch in enumerate(batches):
        assert len(batch.groups) == groups
        assert max(ages(step, batch)) <= max_staleness
        assert min(ages(step, batch)) >= 0
        assert batch.metrics["offpolicy/staleness_max"] <= max_staleness
        assert all(len(group.valid) == group_size for group in batch.groups)
        assert all((group.greedy is not None) == greedy for group in batch.groups)
    assert sorted(itertools.chain(*numbers(batches))) == list(range(pool.steps * groups))


def test_groups_that_wait_are_trained_in_time_exactly_when_the_rule_says_so() -> None:
    """Against all ways to hand them out."""
    for due in itertools.product(range(3, 7), repeat=4):
        in_time = any(
            all(when <= last for when, last in zip(plan, due, strict=True)) and max(Counter(plan).values()) <= 2
            for plan in itertools.product(range(4, 7), repeat=4)
        )
        assert can_wait(due, step=3, per_step=2) == in_time


@pytest.mark.whole
def test_as_many_episodes_are_alive_as_a_batch_has_and_hardly_ever_fewer(renderer: ChatRenderer) -> None:
    alive, most, busy_seconds = 0, 0, 0.0

    class Counted(Waits):
        async def step(self, action: Action) -> StepResult:
            nonlocal alive, most, busy_seconds
            alive += 1
            most = max(most, alive)
            started = asyncio.get_running_loop().time()
            result = await super().step(action)
            busy_seconds += asyncio.get_running_loop().time() - started
            alive -= 1
            return result

    async def busy_share(max_staleness: int) -> float:
        nonlocal busy_seconds
        busy_seconds = 0.0
        latency = heavy_tailed(1, longest=8.0)
        pool = Pool(renderer, latency, max_staleness=max_staleness, group_size=4, steps=20)
        pool.rollout.make_env = lambda task: Counted(latency)
        await pool.run()
        return busy_seconds / (12 * asyncio.get_running_loop().time())

    waiting, overlapping = in_virtual_time(busy_share(0)), in_virtual_time(busy_share(2))
    assert most == 12
    assert overlapping > 0.75
    assert waiting < 0.5


# --- switched off --------------------------------------------------------------------------------------------------


def essence(groups: Sequence[Group]) -> list[Any]:
    return [
        (group.group_id, group.task.task_id, t.member, t.outcome_reward, [step.action_ids for step in t.steps])
        for group in groups
        for t in group
    ]


def test_without_staleness_a_batch_is_what_its_step_and_seed_say(renderer: ChatRenderer) -> None:
    pool = Pool(renderer, heavy_tailed(3), max_staleness=0, seed=4)
    assert type(pool.collector) is Collector
    sampler = TaskSampler(tasks_named(*map(str, range(7))), batch_size=3, seed=4)
    for step, batch in enumerate(in_virtual_time(pool.run())):
        plain = in_virtual_time(
            pool.rollout.run(
                sampler.batch(step),
                group_size=2,
                sampling=SamplingParams(max_tokens=4),
                seed=mix_seed(4, 1, step),
            )
        )
        assert essence(batch.groups) == essence(plain)
        assert set(ages(step, batch)) == {0}
        assert not [name for name in batch.metrics if "stale" in name or "in_flight" in name]


def test_without_staleness_nothing_is_alive_between_steps(renderer: ChatRenderer) -> None:
    pool = Pool(renderer, heavy_tailed(3), max_staleness=0)

    async def one_step() -> set[asyncio.Task[Any]]:
        await pool.step(0)
        return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]

    assert not in_virtual_time(one_step())


# --- groups without spread -----------------------------------------------------------------------------------------


def test_groups_without_spread_are_made_up_for_and_counted(renderer: ChatRenderer) -> None:
    tasks = tasks_named("live-0", "live-1", "dead-0", "dead-1", "dead-2")
    pool = Pool(renderer, heavy_tailed(2), max_staleness=1, tasks=tasks, steps=6, refill_rounds=4)
    batches = in_virtual_time(pool.run())
    for step, batch in enumerate(batches):
        names = [group.task.task_id for group in batch.groups]
        assert sum(name.startswith("live") for name in names) == 3
        assert batch.metrics["perf/refilled_groups"] == len(names) - 3
        assert batch.metrics["reward/groups_with_spread"] == pytest.approx(3 / len(names))
        assert max(ages(step, batch)) <= 1
    trained = list(itertools.chain(*numbers(batches)))
    assert len(set(trained)) == len(trained)
    assert sum(batch.metrics["perf/refilled_groups"] for batch in batches) > 6


def test_refills_are_bounded_and_what_is_missing_stays_missing(renderer: ChatRenderer) -> None:
    pool = Pool(renderer, even, max_staleness=1, tasks=tasks_named("dead"), steps=3, refill_rounds=2)
    assert [len(batch.groups) for batch in in_virtual_time(pool.run())] == [9, 9, 9]


# --- going on from a checkpoint ------------------------------------------------------------------------------------


@pytest.mark.parametrize("refill_rounds", [0, 2])
@pytest.mark.parametrize("stop_after", [1, 2, 5])
def test_a_resumed_pool_loses_and_repeats_nothing(renderer: ChatRenderer, stop_after: int, refill_rounds: int) -> None:
    tasks = tasks_named("live-0", "live-1", "dead-0", "live-2", "live-3")

    def fresh() -> Pool:
        return Pool(renderer, heavy_tailed(5), max_staleness=2, tasks=tasks, group_size=3, refill_rounds=refill_rounds)

    async def first_part() -> tuple[list[Collected], dict[str, Any]]:
        pool = fresh()
        batches = [await pool.step(step) for step in range(stop_after)]
        state = pool.collector.state_dict(stop_after)
        await pool.collector.close()
        return batches, state

    before, state = in_virtual_time(first_part())
    assert state["pending"]
    resumed = fresh()
    resumed.collector.load_state_dict(json.loads(json.dumps(state)))
    after = in_virtual_time(resumed.run(first=stop_after))
    left = resumed.collector.state_dict(8)
    trained = list(itertools.chain(*numbers(before), *numbers(after)))
    assert len(set(trained)) == len(trained)
    if not refill_rounds:
        assert sorted(trained) == list(range(24))
        assert left == {"pending": [], "next": 24}
    else:
        assert set(state["pending"]) <= set(trained)
    for step, batch in enumerate(after, start=stop_after):
        assert max(ages(step, batch)) <= 2


def test_a_group_that_is_started_again_has_the_seeds_it_had(renderer: ChatRenderer) -> None:
    async def said_by_group_1(collector: Collector) -> list[TokenIds]:
        collected = await collector.collect(0, lambda trajectory: None)
        await collector.close()
        [group] = [group for group in collected.groups if group.group_id == 1]
        return [step.action_ids for trajectory in group for step in trajectory.steps]

    plain, resumed = (Pool(renderer, even, max_staleness=1, steps=1).collector for _ in range(2))
    resumed.load_state_dict({"pending": [1, 2], "next": 5})
    assert in_virtual_time(said_by_group_1(resumed)) == in_virtual_time(said_by_group_1(plain))


def test_a_pool_goes_on_from_a_run_without_overlap(renderer: ChatRenderer) -> None:
    state = Pool(renderer, even, max_staleness=0).collector.state_dict(5)
    pool = Pool(renderer, even, max_staleness=1, steps=7)
    pool.collector.load_state_dict(state)
    assert sorted(itertools.chain(*numbers(in_virtual_time(pool.run(first=5))))) == list(range(15, 21))


# --- when things go wrong ------------------------------------------------------------------------------------------


def test_failed_rollouts_stay_in_their_group(renderer: ChatRenderer) -> None:
    pool = Pool(renderer, even, max_staleness=1, tasks=tasks_named("a", "broken", "b"), steps=4)
    failures = [
        (trajectory.stop_reason, "the door is stuck" in str(trajectory.error))
        for batch in in_virtual_time(pool.run())
        for group in batch.groups
        if group.task.task_id == "broken"
        for trajectory in group
    ]
    assert failures == [(StopReason.ENV_ERROR, True)] * 8


def test_a_batch_in_which_everything_fails_stops_the_run(renderer: ChatRenderer) -> None:
    pool = Pool(renderer, even, max_staleness=1, tasks=tasks_named("broken-0", "broken-1"))
    with pytest.raises(RolloutsFailingError, match=r"(?s)all 6 rollouts.*the door is stuck"):
        in_virtual_time(pool.run())


def test_time_in_which_nobody_could_move_is_on_no_episodes_deadline(renderer: ChatRenderer) -> None:
    """Turns of 40 s, a deadline of 100 s and an update of an hour in between."""

    async def stop_reasons(stopped: bool) -> list[StopReason]:
        pool = pool_with_a_straggler(renderer, 40.0, deadline=100.0)
        await pool.step(0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        with pool.rollout.clock_stopped() if stopped else contextlib.nullcontext():
            loop.put_forward(3600)
        straggler = (await pool.step(1)).groups[0]
        assert straggler.group_id == 1
        return [trajectory.stop_reason for trajectory in straggler]

    assert in_virtual_time(stop_reasons(stopped=True)) == [StopReason.DONE] * 2
    with pytest.raises(RolloutsFailingError, match="timeout"):
        in_virtual_time(stop_reasons(stopped=False))


def test_an_exception_in_the_background_surfaces_at_the_next_collect(renderer: ChatRenderer) -> None:
    """Not a failed rollout but broken machinery, in a group that went on after the step, while nobody collected."""
    pool = pool_with_a_straggler(renderer, 40.0)
    run_member = pool.rollout.roll_out_member

    async def breaks_after_a_while(task: Task, *arguments: Any) -> Trajectory:
        trajectory = await run_member(task, *arguments)
        if asyncio.get_running_loop().time() > 20.0:
            raise MemoryError("out of slots")
        return trajectory

    pool.rollout.roll_out_member = breaks_after_a_while  # type: ignore[method-assign]

    async def broken_behind_the_back() -> int:
        await pool.step(0)
        await asyncio.sleep(100.0)
        with pytest.raises(ExceptionGroup) as caught:
            await pool.step(1)
        assert "out of slots" in repr(caught.value.exceptions)
        await pool.collector.close()
        return len(asyncio.all_tasks())

    assert in_virtual_time(broken_behind_the_back()) == 1


class Serves(ScriptedEngine):
    """An engine with hardware of its own."""

    pauses_during_update = False


def test_an_engine_that_serves_during_updates_hides_rollouts_behind_them(renderer: ChatRenderer) -> None:
    """Ten steps of groups that take 2 s and updates of 4 s: only the first step waits for its groups."""
    pool = Pool(renderer, even, max_staleness=1, groups=2, steps=10)
    pool.engine = pool.rollout.engine = Serves(say_the_seed)

    async def run() -> float:
        for step in range(10):
            await pool.step(step)
            await asyncio.sleep(4.0)
        await pool.collector.close()
        return asyncio.get_running_loop().time()

    assert in_virtual_time(run()) == pytest.approx(42.0)


def test_giving_up_leaves_no_task_and_no_environment_open(renderer: ChatRenderer) -> None:
    opened, closed = [], []

    class Noted(Waits):
        async def reset(self, task: Task) -> Observation:
            opened.append(task.task_id)
            return await super().reset(task)

        async def close(self) -> None:
            closed.append(self.name)

    pool = Pool(renderer, even, max_staleness=2)
    pool.rollout.make_env = lambda task: Noted(heavy_tailed(3))

    async def cancelled_in_the_middle() -> int:
        running = asyncio.create_task(pool.run())
        await asyncio.sleep(7.0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return len(asyncio.all_tasks())

    assert in_virtual_time(cancelled_in_the_middle()) == 1
    assert opened
    assert Counter(opened) == Counter(closed)


# --- whole runs ----------------------------------------------------------------------------------------------------


class Trainings:
    """Which update is next, for environments that wait for one: no test here depends on how fast a machine is."""

    def __init__(self) -> None:
        self.begin(steps=0)

    def begin(self, *, steps: int, done: int = 0, breaks_at: int | None = None) -> None:
        """A run of `steps` steps begins, `done` of which are trained; the update of `breaks_at` raises."""
        self.steps, self.breaks_at = steps, breaks_at
        self.done = done - 1  # the rehearsal of the loss before a run counts as one
        self.slow_until = 0

    def note_update(self) -> None:
        if self.done + 1 == self.breaks_at:
            raise AgentR1Error("the lights went out")
        self.done += 1


trainings = Trainings()


class SlowTurns(AgentEnv):
    """One turn. Of all episodes one at a time is slow: it ends after the next update; none in the last step."""

    MAX_SECONDS = 60.0

    async def reset(self, task: Task) -> Observation:
        self.until = 0
        is_trained = str(task.prompt[0]["content"]).startswith("say")  # an evaluation ends before the next update
        if is_trained and trainings.slow_until <= trainings.done < trainings.steps - 1:
            self.until = trainings.slow_until = trainings.done + 1
        return Observation(messages=task.prompt)

    async def step(self, action: Action) -> StepResult:
        async with asyncio.timeout(self.MAX_SECONDS):
            while trainings.done < self.until:
                await asyncio.sleep(0.01)
        return StepResult(observation=None, done=True)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def trained_in(folder: Path, step: int) -> list[Trajectory]:
    return list(read_trajectories(folder / "trajectories" / f"{step}.jsonl"))


def small(folder: Path, model: Path, *extra: str) -> list[str]:
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"say {number}"}) + "\n" for number in range(5)))
    return [
        f"run.folder={folder}",
        f"model.path={model}",
        f"data.train=[{rows}]",
        "rollout.groups_per_step=2",
        "rollout.group_size=4",
        "rollout.max_tokens=6",
        "optimizer.learning_rate=0.01",
        "trainer.steps=8",
        "trainer.save_every=2",
        *extra,
    ]


@pytest.mark.whole
def test_a_run_with_slow_tools_keeps_its_bound(tmp_path: Path, model_folder: Path) -> None:
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text(json.dumps({"prompt": "show 1"}) + "\n")
    run = small(tmp_path, model_folder, f"data.eval=[{held_out}]", "eval.every=4")
    overlapping = [*run, "run.name=overlapping", "rollout.max_staleness=2", "algorithm.loss=tests_may_break"]
    overlapping += ["algorithm.off_policy.name=token"]
    trainings.begin(steps=8)
    agent_r1.train(overrides=overlapping, quiet=True, env=SlowTurns, reward=always_differs)
    lines = [line for line in lines_of(tmp_path / "overlapping") if "reward/outcome" in line]
    assert max(line["offpolicy/staleness_max"] for line in lines) in (1.0, 2.0)
    assert max(line["perf/groups_in_flight"] for line in lines) >= 1
    groups: list[int] = []
    for step, line in enumerate(lines, start=1):
        episodes = trained_in(tmp_path / "overlapping", step)
        versions = [version for t in episodes for taken in t.steps for version in taken.policy_versions]
        assert line["offpolicy/staleness_max"] == step - 1 - min(versions)
        assert line["offpolicy/staleness_mean"] == pytest.approx(step - 1 - sum(versions) / len(versions), rel=1e-4)
        groups += sorted({t.group_id for t in episodes})
    assert sorted(groups) == list(range(16))


@pytest.mark.whole
def test_learning_happens_with_overlap(tmp_path: Path, model_folder: Path) -> None:
    run = tiny_overrides(
        tmp_path,
        model_folder,
        "data.agent_name=single_step",
        "rollout.group_size=8",
        "rollout.groups_per_step=4",
        "rollout.max_staleness=1",
        "optimizer.learning_rate=0.01",
        "trainer.steps=25",
        "trainer.save_every=90",
    )
    commands.train(*run, quiet=True, reward=likes_even_tokens)
    lines = lines_of(tmp_path / "tiny")
    rewards = [line["reward/outcome"] for line in lines]
    assert rewards[0] < 0.7
    assert sum(rewards[-3:]) / 3 > 0.9
    assert max(line["offpolicy/staleness_max"] for line in lines) == 1.0


@policy_losses.register("tests_may_break")
def may_break(inputs: LossInputs) -> TokenLosses:
    """The plain gradient, which `trainings` counts."""
    if inputs.policy_logprobs_N.requires_grad:
        trainings.note_update()
    return TokenLosses(loss_N=-inputs.advantages_N * inputs.policy_logprobs_N)


def always_differs(task: Task, episode: Episode) -> float:
    """A number of its own for every answer: each step has something to learn."""
    return unit_float(*episode.steps[0].action_ids)


@pytest.mark.whole
def test_a_run_that_broke_off_leaves_nothing_alive_and_goes_on_with_no_group_lost_or_trained_twice(
    tmp_path: Path, model_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It breaks in the update of step 6, with groups in flight; the checkpoint is that of step 5."""
    run = small(
        tmp_path,
        model_folder,
        "run.name=broken",
        "rollout.max_staleness=2",
        "algorithm.off_policy.name=token",
        "algorithm.loss=tests_may_break",
    )
    folder = tmp_path / "broken"
    trainings.begin(steps=8, breaks_at=6)
    with pytest.raises(AgentR1Error, match="the lights went out"):
        agent_r1.train(overrides=run, quiet=True, env=SlowTurns, reward=always_differs)
    gc.collect()
    assert not [record.message for record in caplog.records if record.name == "asyncio"]
    assert [line["step"] for line in lines_of(folder)] == [1, 2, 3, 4, 5]
    [*_, (step, newest)] = list_checkpoints(folder / "checkpoints")
    assert step == 5
    assert torch.load(newest / "state.pt", weights_only=True)["collector"]["pending"]
    trainings.begin(steps=8, done=5)
    agent_r1.train(overrides=run, quiet=True, env=SlowTurns, reward=always_differs)
    assert [line["step"] for line in lines_of(folder)] == list(range(1, 9))
    groups = [sorted({t.group_id for t in trained_in(folder, step)}) for step in range(1, 9)]
    assert sorted(itertools.chain(*groups)) == list(range(16))
    assert groups != [[2 * step, 2 * step + 1] for step in range(8)]


# --- what is refused and what is said ------------------------------------------------------------------------------


def planned(folder: Path, model: Path, *extra: str) -> RunPlan:
    return make_plan(load_config(None, small(folder, model, *extra)))


def preset(name: str, **more: Any) -> Algorithm:
    file = Path(agent_r1.__file__).parent / "config" / "algorithm" / f"{name}.yaml"
    given = {"model": {"path": "somewhere"}, "algorithm": OmegaConf.load(file)}
    config: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), given, {"algorithm": more}))
    return bind_algorithm(config.algorithm)


NO_RATIO_TO_WHAT_SAMPLED = ("rloo", "reinforce", "reinforce_pp", "gspo", "steppo", "pspo")


@pytest.mark.whole
@pytest.mark.parametrize("name", PRESETS)
def test_stale_tokens_are_accounted_for_by_a_ratio_to_what_sampled_them_or_by_a_correction(name: str) -> None:
    """The plain gradient has no ratio; with KL in the reward, a narrow clip or several updates it is the trainer's."""
    assert preset(name).accounts_for_stale_tokens == (name not in NO_RATIO_TO_WHAT_SAMPLED)
    assert not preset(name, epochs=2).accounts_for_stale_tokens
    assert preset(name, off_policy={"name": "token"}).accounts_for_stale_tokens


def test_an_algorithm_that_does_not_account_for_stale_tokens_is_refused(tmp_path: Path, model_folder: Path) -> None:
    overlapping = ("algorithm=reinforce", "rollout.max_staleness=1")
    with pytest.raises(ConfigError, match=r"(?s)max_staleness=1 trains on tokens.*algorithm\.off_policy\.name=token"):
        planned(tmp_path, model_folder, *overlapping)
    planned(tmp_path, model_folder, *overlapping, "algorithm.off_policy.name=token")


def test_a_negative_staleness_is_refused(tmp_path: Path, model_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.max_staleness=-1 must be at least 0"):
        planned(tmp_path, model_folder, "rollout.max_staleness=-1")


def test_log_probs_that_moved_since_sampling_are_no_trouble_of_the_engine() -> None:
    def warnings_of(difference: float, age: float) -> list[str]:
        monitor = HealthMonitor(has_tools=False)
        step = {"offpolicy/logprob_difference": difference, "offpolicy/staleness_mean": age}
        return [text for _ in range(4) for text in monitor.observe(step)]

    assert warnings_of(0.1, age=0.5) == []
    [moved] = warnings_of(0.3, age=0.5)
    assert "rollout.max_staleness" in moved
    [differs] = warnings_of(0.1, age=0.0)
    assert "engine and trainer disagree" in differs
