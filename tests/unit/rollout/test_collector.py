"""Collecting a batch: refills of groups without spread, greedy rollouts beside them, and runs that go on with both."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

import agent_r1
from agent_r1.chat import ChatRenderer
from agent_r1.config import AlgorithmConfig, Config
from agent_r1.config.schema import RewardConfig, RolloutConfig, TrainerConfig
from agent_r1.data import TaskSampler
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import AgentEnv
from agent_r1.evaluation.metrics import rollout_metrics
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.rollout.collector import Collected, Collector
from agent_r1.runs import read_trajectories, write_trajectories
from agent_r1.training.components import make_shaping
from agent_r1.types import (
    Action,
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
from tests.helpers.hand_made import (
    credited,
    gather,
    make_learner,
    make_step,
    make_trajectory,
    same_weights,
    sharpened,
    token_variety,
    weights_of,
)
from tests.helpers.tiny_runs import tiny_overrides

REMAX = {"name": "greedy_baseline"}


def tasks_named(*names: str) -> list[Task]:
    return [Task(task_id=name, prompt=({"role": "user", "content": name},)) for name in names]


class OneStep(AgentEnv):
    """One step. Breaks on the tasks named `broken...`, on `flaky...` only after odd tokens; pays for what was said on
    those named `process...`."""

    async def reset(self, task: Task) -> Observation:
        self.name = task.task_id
        return Observation(messages=task.prompt)

    async def step(self, action: Action) -> StepResult:
        if self.name.startswith("broken") or (self.name.startswith("flaky") and action.token_ids[0] % 2):
            raise ConnectionError("the door is stuck")
        pays = self.name.startswith("process")
        return StepResult(observation=None, reward=float(pays * action.token_ids[0]), done=True)


def score(task: Task, episode: Episode) -> float:
    """What was said, on the tasks named `live...`; the same for all on the others."""
    return float(episode.steps[0].action_ids[0]) if task.task_id.startswith("live") else 1.0


def say_the_seed(prompt: TokenIds, sampling: SamplingParams) -> Sequence[int]:
    """One token that follows from the seed; greedily always the same one."""
    return (5 if sampling.temperature == 0 else 5 + sampling.seed % 40,)


def collector_of(
    renderer: ChatRenderer,
    tasks: Sequence[Task],
    *,
    groups: int = 3,
    engine: ScriptedEngine | None = None,
    process_weight: float = 1.0,
    seed: int = 0,
    **algorithm: Any,
) -> Collector:
    config = Config(
        rollout=RolloutConfig(groups_per_step=groups, group_size=4, max_tokens=4, top_p=0.9, top_k=7),
        reward=RewardConfig(process_weight=process_weight),
        trainer=TrainerConfig(seed=seed),
        algorithm=AlgorithmConfig(**algorithm),
    )
    rollout = Rollout(
        engine=engine or ScriptedEngine(say_the_seed),
        renderer=renderer,
        reward=score,
        make_env=lambda task: OneStep(),
        limits=RolloutLimits(retries=0),
    )
    return Collector(config, rollout, tasks, make_shaping(config))


def collect(collector: Collector, step: int = 0, finished: list[Trajectory] | None = None) -> Collected:
    async def bounded() -> Collected:
        async with asyncio.timeout(5):
            return await collector.collect(step, (finished if finished is not None else []).append)

    return asyncio.run(bounded())


def essence(groups: Sequence[Group]) -> list[Any]:
    """Everything but how long it took."""
    return [
        (
            group.group_id,
            group.task.task_id,
            [(t.member, t.outcome_reward, t.stop_reason, [step.action_ids for step in t.steps]) for t in group],
        )
        for group in groups
    ]


# --- groups without spread are made up for -------------------------------------------------------------------------

MIXED = tasks_named("live-0", "live-1", "dead-0", "dead-1", "dead-2", "dead-3")


@pytest.mark.parametrize("step", range(6))
def test_every_round_rolls_out_as_many_further_tasks_as_groups_are_missing(renderer: ChatRenderer, step: int) -> None:
    sampler = TaskSampler(MIXED, batch_size=3, seed=0)
    expected, rounds = [task.task_id for task in sampler.batch(step)], 0
    while rounds < 4 and (missing := 3 - sum(name.startswith("live") for name in expected)) > 0:
        rounds += 1
        expected += [task.task_id for task in sampler.extra(step, rounds, missing)]
    num_live = sum(name.startswith("live") for name in expected)
    collected = collect(collector_of(renderer, MIXED, refill_rounds=4), step)
    assert [group.task.task_id for group in collected.groups] == expected
    assert collected.metrics["perf/refill_rounds"] == rounds
    assert collected.metrics["perf/refilled_groups"] == len(expected) - 3
    assert collected.metrics["reward/groups_with_spread"] == pytest.approx(num_live / len(expected))


def test_the_rounds_are_bounded_and_what_is_missing_stays_missing(renderer: ChatRenderer) -> None:
    finished: list[Trajectory] = []
    collected = collect(collector_of(renderer, tasks_named("dead-0", "dead-1"), refill_rounds=2), finished=finished)
    assert len(collected.groups) == 9
    assert len(finished) == 36
    assert collected.metrics["perf/refill_rounds"] == 2
    assert collected.metrics["perf/refilled_groups"] == 6
    assert collected.metrics["reward/groups_with_spread"] == 0


@pytest.mark.parametrize("refill_rounds", [0, 3])
def test_a_batch_that_teaches_is_not_refilled(renderer: ChatRenderer, refill_rounds: int) -> None:
    tasks = tasks_named("live-0", "live-1", "live-2")
    collected = collect(collector_of(renderer, tasks, refill_rounds=refill_rounds))
    assert len(collected.groups) == 3
    assert collected.metrics["reward/groups_with_spread"] == 1
    assert collected.metrics.get("perf/refill_rounds", 0) == 0
    assert ("perf/refilled_groups" in collected.metrics) == (refill_rounds > 0)


def test_without_refills_a_dead_batch_stays_as_it_is(renderer: ChatRenderer) -> None:
    collected = collect(collector_of(renderer, tasks_named("dead-0")))
    assert len(collected.groups) == 3
    assert collected.metrics["reward/groups_with_spread"] == 0


def test_a_step_is_collected_the_same_way_again_and_another_one_differently(renderer: ChatRenderer) -> None:
    """A resumed run rolls its step out anew: with other tasks or seeds it would be another run."""
    used = collector_of(renderer, MIXED, refill_rounds=3)
    found = [essence(collect(used, step).groups) for step in (2, 3, 2)]
    fresh = essence(collect(collector_of(renderer, MIXED, refill_rounds=3), 2).groups)
    other = essence(collect(collector_of(renderer, MIXED, refill_rounds=3, seed=1), 2).groups)
    assert found[0] == found[2] == fresh
    assert found[0] != found[1]
    assert found[0] != other


def test_refilled_groups_have_ids_and_seeds_of_their_own(renderer: ChatRenderer) -> None:
    """One task only: every group is of the same row, and still a group of its own."""
    engine = ScriptedEngine(say_the_seed)
    collected = collect(collector_of(renderer, tasks_named("dead-0"), engine=engine, refill_rounds=2))
    assert [group.group_id for group in collected.groups] == list(range(9))
    assert [t.group_id for group in collected.groups for t in group] == [
        number for number in range(9) for _ in range(4)
    ]
    assert len({sampling.seed for _, sampling in engine.requests}) == 36


def test_members_that_failed_are_no_spread(renderer: ChatRenderer) -> None:
    """Those that did not all earned 1: a 0 among them would be the failures'."""
    collected = collect(collector_of(renderer, tasks_named("broken", "flaky"), groups=2))
    num_valid = {group.task.task_id: len(group.valid) for group in collected.groups}
    assert num_valid["broken"] == 0
    assert 0 < num_valid["flaky"] < 4
    assert collected.metrics["reward/groups_with_spread"] == 0


def test_a_group_that_failed_is_replaced(renderer: ChatRenderer) -> None:
    tasks = tasks_named("broken", "live-0", "live-1", "live-2")
    collector = collector_of(renderer, tasks, groups=4, refill_rounds=3)
    collected = collect(collector)
    names = [group.task.task_id for group in collected.groups]
    assert sorted(names[:4]) == ["broken", "live-0", "live-1", "live-2"]
    assert sum(collector.has_spread(group) for group in collected.groups) == 4
    assert names[-1].startswith("live")


def test_a_refill_that_fails_does_not_stop_a_run_whose_other_groups_did_not(renderer: ChatRenderer) -> None:
    tasks = tasks_named("broken-0", "broken-1", "broken-2", "broken-3", "live-0")
    step = next(
        n for n in range(9) if any(t.task_id == "live-0" for t in TaskSampler(tasks, batch_size=3, seed=0).batch(n))
    )
    collected = collect(collector_of(renderer, tasks, refill_rounds=3), step)
    assert collected.metrics["reward/groups_with_spread"] > 0


@pytest.mark.parametrize(("weight", "spread"), [(1.0, 1.0), (0.0, 0.0)])
def test_process_rewards_are_spread_when_they_count(renderer: ChatRenderer, weight: float, spread: float) -> None:
    collected = collect(collector_of(renderer, tasks_named("process"), process_weight=weight))
    assert collected.metrics["reward/groups_with_spread"] == spread


# --- the greedy rollout beside a group -----------------------------------------------------------------------------


def test_a_greedy_baseline_is_one_more_rollout_a_task_at_temperature_0(renderer: ChatRenderer) -> None:
    engine, finished = ScriptedEngine(say_the_seed), list[Trajectory]()
    collector = collector_of(renderer, MIXED, engine=engine, group_plan="with_greedy")
    collected = collect(collector, finished=finished)
    assert len(engine.requests) == len(finished) == collector.rollouts_per_batch == 15
    greedy = [sampling for _, sampling in engine.requests if sampling.temperature == 0]
    assert len(greedy) == 3
    assert all((sampling.top_p, sampling.top_k, sampling.max_tokens) == (1.0, 0, 4) for sampling in greedy)
    others = [sampling for _, sampling in engine.requests if sampling.temperature != 0]
    assert all((sampling.top_p, sampling.top_k) == (0.9, 7) for sampling in others)
    for group in collected.groups:
        assert [trajectory.member for trajectory in group] == [0, 1, 2, 3]
        assert group.greedy is not None
        assert (group.greedy.member, group.greedy.group_id) == (-1, group.group_id)
        assert group.greedy.task_id == group.task.task_id
        assert group.greedy.steps[0].action_ids == (5,)
        assert group.greedy not in group.trajectories


def test_a_greedy_rollout_changes_neither_its_group_nor_its_figures(renderer: ChatRenderer) -> None:
    plain = collect(collector_of(renderer, MIXED, refill_rounds=2))
    beside = collect(collector_of(renderer, MIXED, refill_rounds=2, group_plan="with_greedy"))
    assert essence(beside.groups) == essence(plain.groups)
    assert rollout_metrics(beside.groups) == rollout_metrics(plain.groups)
    names = ("reward/groups_with_spread", "perf/refill_rounds", "perf/refilled_groups")
    assert [beside.metrics[name] for name in names] == [plain.metrics[name] for name in names]
    assert all(group.greedy is not None for group in beside.groups)


def test_a_greedy_rollout_is_recorded_as_member_minus_1_and_read_back(renderer: ChatRenderer, tmp_path: Path) -> None:
    groups = collect(collector_of(renderer, MIXED, group_plan="with_greedy")).groups
    write_trajectories(tmp_path / "1.jsonl", groups, policy_step=0)
    read = list(read_trajectories(tmp_path / "1.jsonl"))
    assert [(t.group_id, t.member) for t in read] == [(n, member) for n in range(3) for member in (0, 1, 2, 3, -1)]
    for group, found in zip(groups, read[4::5], strict=True):
        assert group.greedy is not None
        assert (found.task_id, found.outcome_reward) == (group.greedy.task_id, group.greedy.outcome_reward)
        assert [step.action_ids for step in found.steps] == [step.action_ids for step in group.greedy.steps]


@pytest.fixture
def policy(tiny_model: LlamaForCausalLM) -> LlamaForCausalLM:
    return sharpened(tiny_model)


def compared_group(
    policy: LlamaForCausalLM,
    greedy_outcome: float,
    *,
    group_id: int = 0,
    greedy_stop: StopReason = StopReason.DONE,
) -> Group:
    """Members that earn 1.5 and 0 (and .5 on the way, in the first) beside a greedy rollout."""
    first = make_trajectory([make_step(policy, (5, 6), (7, 8), reward=0.5)], 1.0, group_id=group_id)
    second = make_trajectory([make_step(policy, (5, 6), (9, 10))], 0.0, group_id=group_id)
    greedy = make_trajectory([make_step(policy, (5, 6), (11, 12), reward=0.25)], greedy_outcome, group_id=group_id)
    return Group(
        task=Task(task_id=f"task-{group_id}", prompt=()),
        group_id=group_id,
        trajectories=(first, second),
        greedy=replace(greedy, member=-1, stop_reason=greedy_stop),
    )


def test_members_are_compared_with_all_that_the_greedy_rollout_earned(policy: LlamaForCausalLM) -> None:
    learner = make_learner(policy, estimator=REMAX, group_plan="with_greedy")
    batch = credited(learner, gather([compared_group(policy, 0.5), compared_group(policy, 2.0, group_id=1)]))
    # .25 + .5 and .25 + 2: the members' 1.5 and 0 less .75, and less 2.25.
    expected = [0.75, 0.75, -0.75, -0.75, -0.75, -0.75, -2.25, -2.25]
    assert batch.credit.advantages_N.tolist() == pytest.approx(expected)
    assert batch.credit.credited_N.all()


def test_what_the_greedy_rollout_said_is_not_learned(policy: LlamaForCausalLM) -> None:
    experience = gather([compared_group(policy, 0.5)])
    assert [sample.token_ids for sample in experience.samples] == [(5, 6, 7, 8), (5, 6, 9, 10)]
    assert len(experience.rollout_logprobs_N) == experience.table.num_tokens == 4


def test_a_group_whose_greedy_rollout_failed_has_no_credit_and_the_others_learn(policy: LlamaForCausalLM) -> None:
    good = compared_group(policy, 0.5)
    failed = compared_group(policy, 0.0, group_id=1, greedy_stop=StopReason.ENV_ERROR)
    learner = make_learner(policy, estimator=REMAX, group_plan="with_greedy")
    batch = credited(learner, gather([good, failed]))
    assert batch.credit.credited_N.tolist() == [True] * 4 + [False] * 4
    before = weights_of(policy)
    metrics = learner.learn_sync(gather([good, failed]), step=0)
    assert not same_weights(policy, before)
    assert all(math.isfinite(number) for number in metrics.values())
    assert metrics["policy/credited_trajectories"] == 0.5


def test_a_batch_whose_greedy_rollouts_all_failed_teaches_nothing_and_does_not_stop_the_run(
    policy: LlamaForCausalLM,
) -> None:
    groups = [compared_group(policy, 0.0, group_id=n, greedy_stop=StopReason.ENV_ERROR) for n in range(2)]
    before = weights_of(policy)
    learner = make_learner(policy, estimator=REMAX, group_plan="with_greedy")
    assert learner.learn_sync(gather(groups), step=0)["loss/updates"] == 0.0
    assert same_weights(policy, before)


def test_a_greedy_rollout_that_breaks_leaves_the_members_alone(renderer: ChatRenderer) -> None:
    def break_when_greedy(prompt: TokenIds, sampling: SamplingParams) -> Sequence[int]:
        if sampling.temperature == 0:
            raise ConnectionError("no greed here")
        return say_the_seed(prompt, sampling)

    tasks = tasks_named("live-0", "live-1", "live-2")
    collected = collect(
        collector_of(renderer, tasks, engine=ScriptedEngine(break_when_greedy), group_plan="with_greedy")
    )
    assert collected.metrics["reward/groups_with_spread"] == 1
    assert rollout_metrics(collected.groups)["error/failed_rollouts"] == 0
    for group in collected.groups:
        assert group.greedy is not None
        assert group.greedy.is_failure
        assert "no greed here" in str(group.greedy.error)
        assert len(group.valid) == 4


# --- whole runs ----------------------------------------------------------------------------------------------------


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def exported(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "hf" / "model.safetensors")


def state_of(folder: Path, step: int) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "checkpoints" / f"step_{step}" / "state.pt", weights_only=True)
    return state


@pytest.mark.whole
def test_a_run_with_a_greedy_baseline(tmp_path: Path, model_folder: Path) -> None:
    run = tiny_overrides(tmp_path, model_folder, "algorithm=remax", "trainer.steps=2", "rollout.group_size=3")
    commands.train(*run, quiet=True, reward=token_variety)
    folder = tmp_path / "tiny"
    episodes = list(read_trajectories(folder / "trajectories" / "1.jsonl"))
    assert [(t.group_id, t.member) for t in episodes] == [(g, member) for g in (0, 1) for member in (0, 1, 2, -1)]
    members = [t for t in episodes if t.member >= 0]
    line = lines_of(folder)[0]
    assert line["reward/outcome"] == pytest.approx(sum(t.outcome_reward for t in members) / 6, rel=1e-4)
    assert line["perf/generated_tokens"] == sum(t.num_action_tokens for t in members)
    before, after = load_file(model_folder / "model.safetensors"), exported(folder)
    assert any(not torch.equal(before[name], after[name]) for name in before)


class Paid(AgentEnv):
    """Two turns; a turn is paid for by how its first token came out."""

    async def reset(self, task: Task) -> Observation:
        self.messages: tuple[Any, ...] = task.prompt
        return Observation(messages=self.messages)

    async def step(self, action: Action) -> StepResult:
        self.messages = (*self.messages, action.as_message(), {"role": "user", "content": "and?"})
        return StepResult(observation=Observation(messages=self.messages), reward=0.1 * (action.token_ids[0] % 7))


def rarely_pays(task: Task, episode: Episode) -> float:
    """Many groups earn all the same."""
    return float(episode.steps[0].action_ids[0] % 4 == 0)


def resumed_equals_uninterrupted(folder: Path, stop_at: int, *run: str, **parts: Any) -> None:
    """Train to the end at once, and with a stop in between: weights, state and metrics are the same bit for bit."""
    agent_r1.train(overrides=[*run, "run.name=whole"], quiet=True, **parts)
    agent_r1.train(overrides=[*run, f"trainer.steps={stop_at}", "run.name=parts"], quiet=True, **parts)
    agent_r1.train(overrides=[*run, "run.name=parts"], quiet=True, **parts)
    whole, parted = exported(folder / "whole"), exported(folder / "parts")
    assert all(torch.equal(whole[name], parted[name]) for name in whole)
    states = [state_of(folder / name, 3) for name in ("whole", "parts")]
    assert flat(states[0]["learner"]) == flat(states[1]["learner"])
    assert states[0]["process_balance"] == states[1]["process_balance"]

    def timeless(line: dict[str, Any]) -> dict[str, Any]:
        return {name: number for name, number in line.items() if not name.startswith(("time/", "perf/tokens_per"))}

    assert [timeless(line) for line in lines_of(folder / "parts")] == [
        timeless(line) for line in lines_of(folder / "whole")
    ]


def flat(state: Any) -> Any:
    """A state whose tensors can be compared."""
    if isinstance(state, torch.Tensor):
        return state.tolist()
    if isinstance(state, dict):
        return {name: flat(entry) for name, entry in state.items()}
    return [flat(entry) for entry in state] if isinstance(state, list | tuple) else state


def small(folder: Path, model: Path, *extra: str) -> list[str]:
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"say {number}"}) + "\n" for number in range(5)))
    return [
        f"run.folder={folder}",
        f"model.path={model}",
        f"data.train=[{rows}]",
        "rollout.groups_per_step=2",
        "rollout.group_size=3",
        "rollout.max_steps=2",
        "rollout.max_tokens=4",
        "optimizer.learning_rate=0.01",
        "trainer.steps=3",
        "trainer.save_every=1",
        *extra,
    ]


@pytest.mark.whole
def test_a_resumed_run_with_a_shared_critic_an_adaptive_kl_and_a_running_balance_is_the_uninterrupted_one(
    tmp_path: Path, model_folder: Path
) -> None:
    run = small(
        tmp_path,
        model_folder,
        "algorithm=ppo",
        "algorithm.critic.kind=shared",
        "algorithm.critic.warmup_steps=1",
        "algorithm.process.normalisation=running",
        "algorithm.kl.coefficient=0.1",
        "algorithm.kl.target=0.001",
        "algorithm.kl.horizon=20",
        "algorithm.minibatches=2",
    )
    resumed_equals_uninterrupted(tmp_path, 2, *run, env=Paid, reward=token_variety)
    balances = [state_of(tmp_path / "whole", step)["process_balance"] for step in (2, 3)]
    assert [balance["count"] for balance in balances] == [24, 36]
    assert all(balance["squares"] > 0 for balance in balances)
    coefficients = [state_of(tmp_path / "whole", step)["learner"]["kl_coefficient"] for step in (2, 3)]
    assert len({0.1, *coefficients}) == 3
    assert set(state_of(tmp_path / "whole", 3)["learner"]["critic"]) == {"head.weight", "head.bias"}


@pytest.mark.whole
def test_a_resumed_run_with_refills_is_the_uninterrupted_one(tmp_path: Path, model_folder: Path) -> None:
    run = small(tmp_path, model_folder, "algorithm=dapo", "data.agent_name=single_step")
    resumed_equals_uninterrupted(tmp_path, 1, *run, reward=rarely_pays)
    lines = lines_of(tmp_path / "whole")
    assert sum(line["perf/refilled_groups"] for line in lines[1:]) > 0
    for step, line in enumerate(lines, start=1):
        episodes = list(read_trajectories(tmp_path / "whole" / "trajectories" / f"{step}.jsonl"))
        assert len(episodes) == 3 * (2 + line["perf/refilled_groups"])
        assert len({(t.group_id, t.member) for t in episodes}) == len(episodes)
