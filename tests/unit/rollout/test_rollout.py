"""Groups of rollouts, their failures, their records, the numbers about them, and evaluation."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_r1.chat import ChatRenderer
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import AgentEnv, ToolEnv, make_env
from agent_r1.errors import RolloutsFailingError, UnknownNameError
from agent_r1.evaluation.evaluate import Evaluation, evaluate
from agent_r1.evaluation.metrics import best_of, majority, rollout_metrics
from agent_r1.files import write_atomically
from agent_r1.flows import AgentFlowBase
from agent_r1.rewards import RewardFunction, reward_functions, score_episode
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.runs import read_trajectories, write_trajectories
from agent_r1.tools import FunctionTool
from agent_r1.types import (
    Action,
    Episode,
    FailedAttempt,
    Group,
    Observation,
    SamplingParams,
    Step,
    StepResult,
    StopReason,
    Task,
    TokenIds,
    ToolCall,
    Trajectory,
)
from tests.helpers.fuzzing import cases
from tests.helpers.hand_made import gather


def task(name: str, **more: Any) -> Task:
    return Task(task_id=name, prompt=({"role": "user", "content": f"Task {name}."},), **more)


def ids_of(renderer: ChatRenderer, text: str) -> TokenIds:
    return (*renderer.tokenizer.encode(text, add_special_tokens=False), renderer.stop_ids[0])


def always(renderer: ChatRenderer, text: str = "21") -> ScriptedEngine:
    return ScriptedEngine(lambda prompt, sampling: ids_of(renderer, text))


class OneStep(AgentEnv):
    """Ends after one step."""

    async def reset(self, task: Task) -> Observation:
        self.task = task
        return Observation(messages=task.prompt)

    async def step(self, action: Action) -> StepResult:
        return StepResult(observation=None, reward=0.5, done=True)


class BreaksOn(OneStep):
    """Its step raises for the tasks named `broken...`."""

    async def step(self, action: Action) -> StepResult:
        if self.task.task_id.startswith("broken"):
            raise ConnectionError("the door is stuck")
        return await super().step(action)


def right(task: Task, episode: Episode) -> float:
    return float(episode.final_text == "21")


def rollout_with(
    renderer: ChatRenderer,
    *,
    engine: ScriptedEngine | None = None,
    reward: RewardFunction = right,
    make_env: Callable[[Task], AgentEnv] = lambda task: OneStep(),
    **limits: Any,
) -> Rollout:
    return Rollout(
        engine=engine or always(renderer),
        renderer=renderer,
        reward=reward,
        make_env=make_env,
        limits=RolloutLimits(**limits),
    )


def run(rollout: Rollout, *tasks: Task, group_size: int = 1, seed: int = 0, **more: Any) -> list[Group]:
    """The groups; a batch that takes many seconds has hung."""

    async def bounded() -> list[Group]:
        async with asyncio.timeout(5):
            return await rollout.run(tasks, group_size=group_size, sampling=SamplingParams(), seed=seed, **more)

    return asyncio.run(bounded())


class Spoils(OneStep):
    """Changes its task, as a careless environment may."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    async def reset(self, task: Task) -> Observation:
        self.seen.append((task.prompt[0]["content"], task.env_kwargs["walls"][:], task.ground_truth))
        first = await super().reset(task)
        task.prompt[0]["content"] = "spoilt"  # type: ignore[index]
        task.env_kwargs["walls"].pop()
        task.reward_model.clear()  # type: ignore[attr-defined]
        if len(self.seen) < 3:
            raise ConnectionError("the door is stuck")
        return first


def test_what_one_rollout_changes_in_its_task_no_other_attempt_or_member_sees(renderer: ChatRenderer) -> None:
    seen: list[Any] = []
    given = task("a", env_kwargs={"walls": [1, 2]}, reward_model={"ground_truth": "21"})
    rollout = rollout_with(renderer, make_env=lambda task: Spoils(seen), retries=2, concurrency=1)
    [group] = run(rollout, given, group_size=2)
    assert seen == [("Task a.", [1, 2], "21")] * 4
    assert group.task == given == task("a", env_kwargs={"walls": [1, 2]}, reward_model={"ground_truth": "21"})


# Groups


def test_every_task_becomes_a_group_of_numbered_members(renderer: ChatRenderer) -> None:
    finished: list[Trajectory] = []
    tasks = (task("a"), task("b", data_source="shop"))
    groups = run(rollout_with(renderer), *tasks, group_size=3, on_finished=finished.append)
    assert [(group.task.task_id, group.group_id) for group in groups] == [("a", 0), ("b", 1)]
    assert [[(t.task_id, t.group_id, t.member) for t in group] for group in groups] == [
        [("a", 0, 0), ("a", 0, 1), ("a", 0, 2)],
        [("b", 1, 0), ("b", 1, 1), ("b", 1, 2)],
    ]
    assert {t.data_source for t in groups[1]} == {"shop"}
    assert sorted((t.task_id, t.member) for t in finished) == [(name, i) for name in "ab" for i in range(3)]


def test_outcome_is_given_once_and_process_rewards_stay_on_their_steps(renderer: ChatRenderer) -> None:
    [[trajectory]] = run(rollout_with(renderer), task("a"))
    assert (trajectory.outcome_reward, trajectory.process_reward) == (1.0, 0.5)
    assert [step.reward for step in trajectory.steps] == [0.5]


def test_members_have_their_own_seeds_and_the_same_run_seed_gives_the_same_ones(renderer: ChatRenderer) -> None:
    def seeds(seed: int) -> list[int]:
        engine = always(renderer)
        run(rollout_with(renderer, engine=engine), task("a"), task("b"), group_size=2, seed=seed)
        return sorted(sampling.seed for _, sampling in engine.requests)

    assert len(set(seeds(3) + seeds(4))) == 8
    assert seeds(3) == seeds(3)


def test_no_more_than_the_allowed_number_of_episodes_is_alive(renderer: ChatRenderer) -> None:
    alive: list[int] = [0]

    class Counted(OneStep):
        async def reset(self, task: Task) -> Observation:
            alive.append(alive[-1] + 1)
            return await super().reset(task)

        async def step(self, action: Action) -> StepResult:
            await asyncio.sleep(0.001)
            return await super().step(action)

        async def close(self) -> None:
            alive.append(alive[-1] - 1)

    rollout = rollout_with(renderer, make_env=lambda task: Counted(), concurrency=3)
    run(rollout, task("a"), task("b"), group_size=5)
    assert (max(alive), alive[-1]) == (3, 0)


def test_fast_episode_does_not_wait_for_a_slow_one(renderer: ChatRenderer) -> None:
    fast_is_done = asyncio.Event()

    class Slow(OneStep):
        async def step(self, action: Action) -> StepResult:
            if self.task.task_id == "slow":
                await fast_is_done.wait()
            return await super().step(action)

    def note(trajectory: Trajectory) -> None:
        if trajectory.task_id == "fast":
            fast_is_done.set()

    rollout = rollout_with(renderer, make_env=lambda task: Slow(), concurrency=2)
    groups = run(rollout, task("slow"), task("fast"), on_finished=note)
    assert all(not trajectory.is_failure for group in groups for trajectory in group)


def test_agent_name_chooses_the_flow(renderer: ChatRenderer) -> None:
    [[trajectory]] = run(rollout_with(renderer), task("a", agent_name="single_step"))
    assert trajectory.process_reward == 0.0
    assert trajectory.stop_reason is StopReason.DONE


def test_truncated_rollout_keeps_its_next_prompt_and_is_no_failure(renderer: ChatRenderer) -> None:
    rollout = rollout_with(renderer, make_env=lambda task: ToolEnv(["calculate"]), max_steps=1)
    rollout.engine = always(renderer, '<tool_call>{"name": "calculate", "arguments": {"expression": "1"}}</tool_call>')
    [[trajectory]] = run(rollout, task("a"))
    last = trajectory.steps[-1]
    assert trajectory.stop_reason is StopReason.MAX_STEPS
    assert not trajectory.is_failure
    assert trajectory.next_prompt_ids is not None
    assert trajectory.next_prompt_ids[: len(last.prompt_ids + last.action_ids)] == last.prompt_ids + last.action_ids


# Failures


def test_failed_rollout_is_tried_again_with_a_fresh_environment(renderer: ChatRenderer) -> None:
    made: list[AgentEnv] = []
    closed: list[AgentEnv] = []

    class FailsTwice(OneStep):
        async def step(self, action: Action) -> StepResult:
            if len(made) < 3:
                raise ConnectionError("the door is stuck")
            return await super().step(action)

        async def close(self) -> None:
            closed.append(self)

    def make_env(task: Task) -> AgentEnv:
        made.append(FailsTwice())
        return made[-1]

    engine = always(renderer)
    [[trajectory]] = run(rollout_with(renderer, engine=engine, make_env=make_env, retries=2), task("a"))
    assert len({id(env) for env in made}) == 3
    assert closed == made
    assert (trajectory.num_retries, trajectory.stop_reason, trajectory.error) == (2, StopReason.DONE, None)
    assert len(trajectory.steps) == 1
    assert len({sampling.seed for _, sampling in engine.requests}) == 3


def failed_and_good(renderer: ChatRenderer) -> list[Group]:
    """A group with one failed rollout beside a group that went well."""
    rollout = rollout_with(renderer, make_env=lambda task: BreaksOn(), retries=1, group_refills=0)
    return run(rollout, task("broken"), task("good"))


def test_rollout_that_keeps_failing_is_kept_with_its_traceback(renderer: ChatRenderer) -> None:
    [[failed], [good]] = failed_and_good(renderer)
    assert failed.is_failure
    assert (failed.stop_reason, failed.num_retries, failed.outcome_reward) == (StopReason.ENV_ERROR, 1, 0.0)
    assert failed.error is not None
    assert "Traceback" in failed.error
    assert "ConnectionError: the door is stuck" in failed.error
    assert (good.is_failure, good.outcome_reward) == (False, 1.0)


def test_failed_rollout_is_counted_but_in_no_average(renderer: ChatRenderer) -> None:
    metrics = rollout_metrics(failed_and_good(renderer))
    assert metrics["reward/outcome"] == 1.0
    assert metrics["reward/success"] == 1.0
    assert metrics["reward/process"] == 0.5
    assert metrics["episode/steps"] == 1.0
    assert metrics["error/failed_rollouts"] == 1.0
    assert metrics["error/env_error"] == 1.0
    assert metrics["error/retries"] == 1.0


def test_failed_rollout_is_not_learnt_from(renderer: ChatRenderer) -> None:
    groups = failed_and_good(renderer)
    experience = gather(groups)
    [step] = groups[1].trajectories[0].steps
    assert [trajectory.task_id for trajectory in experience.trajectories] == ["good"]
    assert experience.table.rewards_S.tolist() == [1.5]
    assert experience.table.group_R.tolist() == [1]
    assert experience.table.lengths_S.tolist() == [len(step.action_ids)]
    assert [sample.token_ids for sample in experience.samples] == [step.prompt_ids + step.action_ids]
    assert experience.rollout_logprobs_N.tolist() == [-0.5] * len(step.action_ids)


def test_steps_taken_before_a_failure_are_kept_for_the_record_only(renderer: ChatRenderer) -> None:
    class BreaksOnItsSecondStep(OneStep):
        async def step(self, action: Action) -> StepResult:
            if action.text == "second":
                raise ConnectionError("gone")
            return StepResult(observation=Observation(messages=({"role": "user", "content": "again"},)))

    def say(prompt: TokenIds, sampling: SamplingParams) -> Sequence[int]:
        again = ids_of(renderer, "again")[:-1]
        return ids_of(renderer, "second" if any(token in prompt for token in again) else "first")

    def make_env(task: Task) -> AgentEnv:
        return BreaksOnItsSecondStep() if task.task_id == "broken" else OneStep()

    rollout = rollout_with(renderer, engine=ScriptedEngine(say), make_env=make_env, retries=0)
    groups = run(rollout, task("broken"), task("good"))
    [failed] = groups[0]
    assert [step.action.text for step in failed.steps] == ["first"]
    assert [t.task_id for t in gather(groups).trajectories] == ["good"]


class Hangs(OneStep):
    """Its step never ends for the tasks named `broken...`."""

    async def step(self, action: Action) -> StepResult:
        if self.task.task_id.startswith("broken"):
            await asyncio.Event().wait()
        return await super().step(action)


def test_episode_past_its_deadline_fails_and_the_others_do_not_wait(renderer: ChatRenderer) -> None:
    rollout = rollout_with(renderer, make_env=lambda task: Hangs(), deadline_seconds=0.05, retries=0)
    [[failed], [good]] = run(rollout, task("broken"), task("good"))
    assert failed.stop_reason is StopReason.TIMEOUT
    assert "no end in 0.05 s" in (failed.error or "")
    assert not good.is_failure


def test_environment_that_hangs_and_cannot_be_closed_does_not_hold_up_the_batch(renderer: ChatRenderer) -> None:
    class HangsInClose(Hangs):
        async def close(self) -> None:
            if self.task.task_id.startswith("broken"):
                await asyncio.Event().wait()

    rollout = rollout_with(renderer, make_env=lambda task: HangsInClose(), deadline_seconds=0.05, retries=0)
    [[failed], [good]] = run(rollout, task("broken"), task("good"))
    assert failed.is_failure
    assert not good.is_failure


def test_reward_function_that_hangs_fails_its_rollout(renderer: ChatRenderer) -> None:
    async def hang(task: Task, episode: Episode) -> float:
        if task.task_id == "broken":
            await asyncio.Event().wait()
        return 1.0

    rollout = rollout_with(renderer, reward=hang, deadline_seconds=0.05, retries=0)
    [[failed], [good]] = run(rollout, task("broken"), task("good"))
    assert failed.is_failure
    assert not good.is_failure


def test_timeout_error_of_a_flow_is_not_the_deadline(renderer: ChatRenderer) -> None:
    @AgentFlowBase.register("tests_times_out")
    class TimesOut(AgentFlowBase):
        async def run(self, task: Task) -> Episode:
            raise TimeoutError("the search server did not answer")

    rollout = rollout_with(renderer, deadline_seconds=500.0, retries=0)
    [[failed], _] = run(rollout, task("a", agent_name="tests_times_out"), task("good"))
    assert failed.stop_reason is StopReason.FLOW_ERROR
    assert "the search server did not answer" in (failed.error or "")


def test_error_in_a_flows_own_code_is_a_flow_error(renderer: ChatRenderer) -> None:
    @AgentFlowBase.register("tests_is_wrong")
    class IsWrong(AgentFlowBase):
        async def run(self, task: Task) -> Episode:
            raise IndexError("off by one")

    [[failed], _] = run(rollout_with(renderer, retries=0), task("a", agent_name="tests_is_wrong"), task("good"))
    assert failed.stop_reason is StopReason.FLOW_ERROR
    assert "off by one" in (failed.error or "")


def test_batch_in_which_everything_fails_stops_the_run(renderer: ChatRenderer) -> None:
    rollout = rollout_with(renderer, make_env=lambda task: BreaksOn(), retries=0)
    with pytest.raises(RolloutsFailingError, match=r"all 4 rollouts of a batch failed \(env_error\)") as caught:
        run(rollout, task("broken-1"), task("broken-2"), group_size=2)
    assert "the door is stuck" in str(caught.value)


# Groups with too few members


class FailsFirst(OneStep):
    """Raises in the first `failures` episodes of a test, however many ask."""

    failures = 0

    async def step(self, action: Action) -> StepResult:
        if FailsFirst.failures > 0:
            FailsFirst.failures -= 1
            raise ConnectionError("the door is stuck")
        return await super().step(action)


def one_group(renderer: ChatRenderer, failures: int, **limits: Any) -> Group:
    """A group of four, of whose episodes the first so many fail, beside one that never does."""
    FailsFirst.failures = failures

    def make_env(task: Task) -> AgentEnv:
        return FailsFirst() if task.task_id == "a" else OneStep()

    rollout = rollout_with(renderer, make_env=make_env, retries=0, **limits)
    return run(rollout, task("a"), task("good"), group_size=4)[0]


def test_half_of_a_group_is_enough(renderer: ChatRenderer) -> None:
    group = one_group(renderer, failures=2)
    assert len(group.learnable) == len(group.valid) == 2
    assert not group.dropped


def test_a_group_with_fewer_is_refilled_when_the_others_have_ended(renderer: ChatRenderer) -> None:
    group = one_group(renderer, failures=3)
    assert len(group.learnable) == 4
    assert [trajectory.member for trajectory in group] == [0, 1, 2, 3]
    assert sum(trajectory.num_retries for trajectory in group) == 3
    assert not group.dropped


def test_a_group_that_stays_below_its_share_is_dropped_and_its_failures_are_kept(renderer: ChatRenderer) -> None:
    group = one_group(renderer, failures=7)
    assert group.dropped
    assert group.learnable == ()
    assert len(group.valid) == 1
    assert sum("the door is stuck" in (trajectory.error or "") for trajectory in group) == 3
    assert rollout_metrics([group])["error/dropped_groups"] == 1.0


def test_the_share_and_the_refills_can_be_chosen(renderer: ChatRenderer) -> None:
    assert not one_group(renderer, failures=3, min_group_share=0.25, group_refills=0).dropped
    assert one_group(renderer, failures=3, group_refills=0).dropped
    assert not one_group(renderer, failures=7, group_refills=3).dropped


# The circuit breaker


def test_failures_in_a_row_stop_the_run_and_say_what_and_why(renderer: ChatRenderer) -> None:
    rollout = rollout_with(renderer, make_env=lambda task: BreaksOn(), retries=0, max_failures_in_a_row=3)
    with pytest.raises(RolloutsFailingError, match=r"3 rollouts in a row failed \(env_error 3\)") as caught:
        run(rollout, task("good"), *(task(f"broken-{number}") for number in range(8)))
    assert "Fix what is broken and run the same command again" in str(caught.value)
    assert "the door is stuck" in str(caught.value)


def test_a_rollout_that_succeeds_begins_the_count_anew(renderer: ChatRenderer) -> None:
    rollout = rollout_with(
        renderer, make_env=lambda task: BreaksOn(), retries=0, max_failures_in_a_row=3, concurrency=1, group_refills=0
    )
    tasks = [task(name) for _ in range(4) for name in ("broken-1", "broken-2", "good")]
    groups = run(rollout, *tasks)
    assert [bool(group.valid) for group in groups] == [False, False, True] * 4


def test_the_count_goes_on_over_batches(renderer: ChatRenderer) -> None:
    rollout = rollout_with(
        renderer, make_env=lambda task: BreaksOn(), retries=0, max_failures_in_a_row=3, group_refills=0
    )
    run(rollout, task("broken-1"), task("broken-2"), may_fail=True)
    with pytest.raises(RolloutsFailingError, match="3 rollouts in a row"):
        run(rollout, task("broken-3"), may_fail=True)


# Rewards


def score_of(renderer: ChatRenderer, reward: RewardFunction) -> Trajectory:
    """The trajectory of a task scored by `reward`, beside one that is always right."""

    def one_of_two(task: Task, episode: Episode) -> Any:
        return reward(task, episode) if task.task_id == "a" else 1.0

    [[trajectory], _] = run(rollout_with(renderer, reward=one_of_two, retries=0), task("a"), task("b"))
    return trajectory


def divide(task: Task, episode: Episode) -> float:
    return 1 / 0


@pytest.mark.parametrize(
    ("reward", "detail"),
    [
        (divide, "ZeroDivisionError"),
        (lambda task, episode: math.nan, "'score' is nan; rewards must be finite"),
        (lambda task, episode: -math.inf, "rewards must be finite"),
        (lambda task, episode: None, "'score' is None (NoneType); rewards must be numbers"),
        (lambda task, episode: {"format": 1.0}, "needs the key 'score', found ['format']"),
        (lambda task, episode: {"score": 1.0, "format": math.nan}, "'format' is nan"),
    ],
)
def test_reward_that_raises_or_is_not_finite_fails_the_rollout(
    renderer: ChatRenderer, reward: RewardFunction, detail: str
) -> None:
    failed = score_of(renderer, reward)
    assert failed.stop_reason is StopReason.REWARD_ERROR
    assert failed.is_failure
    assert detail in (failed.error or "")


def test_reward_mapping_gives_score_parts_answer_and_success(renderer: ChatRenderer) -> None:
    scored = score_of(renderer, lambda task, episode: {"score": 0.5, "answer": "12", "format": 1, "success": True})
    assert (scored.outcome_reward, scored.vote, scored.success) == (0.5, "12", 1.0)
    assert scored.reward_parts == {"format": 1.0, "success": 1.0}


def test_plain_reward_takes_the_final_text_as_answer_and_one_as_success(renderer: ChatRenderer) -> None:
    scored, half = (score_of(renderer, lambda task, episode, value=value: value) for value in (1, 0.5))
    assert (scored.vote, scored.success, half.success) == ("21", 1.0, 0.0)
    assert scored.reward_parts == {}


def test_async_reward_is_awaited(renderer: ChatRenderer) -> None:
    async def later(task: Task, episode: Episode) -> float:
        await asyncio.sleep(0)
        return 0.75

    assert score_of(renderer, later).outcome_reward == 0.75


def spoken(text: str) -> Episode:
    return Episode(steps=(step_of((1,), (2,), text=text),), stop_reason=StopReason.DONE)


@pytest.mark.parametrize(
    ("name", "truth", "text", "value"),
    [
        ("exact_match", "Eiffel tower", "The  Eiffel tower!", 1.0),
        ("exact_match", "Eiffel tower", "Eiffel", 0.0),
        ("last_number", 1250.5, "12 pears cost 1,250.50 in all.", 1.0),
        ("last_number", "-3", "from 3 to -3", 1.0),
        ("last_number", 3, "none", 0.0),
        ("none", 3, "3", 0.0),
    ],
)
def test_built_in_rewards(name: str, truth: Any, text: str, value: float) -> None:
    asked = task("a", reward_model={"style": "rule", "ground_truth": truth})
    assert asyncio.run(score_episode(reward_functions.get(name), asked, spoken(text))).value == value


def test_unknown_reward_function_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'exact_match'"):
        reward_functions.get("exactmatch")


# Choosing an environment


def test_environment_of_a_row_replaces_the_configured_one() -> None:
    AgentEnv.register("tests_one_step")(OneStep)
    section = {"name": "tool", "tools": ["calculate"]}
    configured = make_env(task("a"), section)
    own = make_env(task("b", env_kwargs={"env": "tests_one_step"}), section)
    assert (type(configured), type(own)) == (ToolEnv, OneStep)


# The recorder


def step_of(prompt_ids: TokenIds, action_ids: TokenIds, *, text: str = "", reward: float = 0.0, **more: Any) -> Step:
    return Step(
        observation=more.pop("observation", Observation(token_ids=prompt_ids)),
        prompt_ids=prompt_ids,
        action=more.pop("action", Action(text=text, content=text, token_ids=action_ids)),
        action_ids=action_ids,
        rollout_logprobs=(-0.25,) * len(action_ids),
        reward=reward,
        done=more.pop("done", False),
        policy_versions=more.pop("policy_versions", (0,) * len(action_ids)),
        **more,
    )


def trajectory_of(member: int = 0, *steps: Step, **more: Any) -> Trajectory:
    given: dict[str, Any] = {"outcome_reward": 0.0, "stop_reason": StopReason.DONE, **more}
    return Trajectory(task_id="a", group_id=0, member=member, steps=steps, **given)


def round_trip(folder: Path, *trajectories: Trajectory) -> list[Trajectory]:
    write_trajectories(
        folder / "0.jsonl", [Group(task=task("a"), group_id=0, trajectories=trajectories)], policy_step=3
    )
    return list(read_trajectories(folder / "0.jsonl"))


def test_real_rollouts_read_back_as_they_were_written(renderer: ChatRenderer, tmp_path: Path) -> None:
    def look(item: str) -> tuple[str, float]:
        """The price of one item."""
        return "7", 0.25

    texts = iter(['<tool_call>{"name": "look", "arguments": {"item": "ü"}}</tool_call>', "<tool_call>{", "21"])
    engine = ScriptedEngine(lambda prompt, sampling: ids_of(renderer, next(texts)))
    rollout = rollout_with(renderer, engine=engine, make_env=lambda task: ToolEnv([FunctionTool(look)]))
    groups = run(rollout, task("a", data_source="shop"))
    write_trajectories(tmp_path / "0.jsonl", groups, policy_step=0)
    [written], [read] = groups[0].trajectories, list(read_trajectories(tmp_path / "0.jsonl"))
    assert len(read.steps) == 3
    for before, after in zip(written.steps, read.steps, strict=True):
        assert (after.prompt_ids, after.action_ids) == (before.prompt_ids, before.action_ids)
        assert (after.action, after.observation) == (before.action, before.observation)
        assert (after.reward, after.done) == (before.reward, before.done)
        assert after.rollout_logprobs == (-0.5,) * len(before.action_ids)
    assert (read.outcome_reward, read.vote, read.data_source) == (1.0, "21", "shop")
    assert read.metrics == pytest.approx(written.metrics)


def test_every_field_of_a_trajectory_reads_back(tmp_path: Path) -> None:
    action = Action(
        text="t",
        content="c",
        token_ids=(4, 5),
        tool_calls=(ToolCall(name="price", arguments={"item": "ü"}, call_id="call_0"),),
        repairs=("call 1: trailing comma",),
    )
    observation = Observation(messages=({"role": "user", "content": "hi"},), tools=({"type": "function"},))
    step = step_of(
        (1, 2, 3),
        (4, 5),
        reward=0.1,
        done=True,
        policy_versions=(8, 9),
        action=action,
        observation=observation,
        info={"metrics": {"x": 1}},
        timings={"generate": 0.5},
    )
    trajectory = trajectory_of(
        2,
        step,
        outcome_reward=0.5,
        stop_reason=StopReason.MAX_STEPS,
        data_source="shop",
        reward_parts={"format": 1.0},
        vote="12",
        next_prompt_ids=(1, 2, 3, 4, 5, 6),
        num_retries=1,
        failed_attempts=(FailedAttempt(stop_reason=StopReason.TIMEOUT, error="late", num_steps=2, metrics={"y": 2.0}),),
        metrics={"x": 1.0},
    )
    failed = trajectory_of(3, stop_reason=StopReason.ENV_ERROR, error="Traceback ...\n  stuck")
    assert round_trip(tmp_path, trajectory, failed) == [trajectory, failed]


def test_trajectories_recorded_without_repairs_read_as_having_none(tmp_path: Path) -> None:
    trajectory = trajectory_of(0, step_of((1, 2), (3,)))
    round_trip(tmp_path, trajectory)
    line = json.loads((tmp_path / "0.jsonl").read_text())
    for entry in line["steps"]:
        del entry["repairs"]
    (tmp_path / "0.jsonl").write_text(json.dumps(line) + "\n")
    assert list(read_trajectories(tmp_path / "0.jsonl")) == [trajectory]


PIXEL = b"\x89PNG\x00\xff"
CHAT = ({"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]})
SEEN = [
    Observation(messages=CHAT),
    Observation(messages=(*CHAT, {"role": "tool", "content": "t"}), tools=({"type": "function"},)),
    Observation(messages=({"role": "tool", "content": [{"type": "image", "image": PIXEL}, {"text": "a map"}]},)),
    Observation(messages=CHAT, images=(PIXEL, "http://x/y.png"), anchor="a", privileged="p"),
    Observation(messages=(), images=(PIXEL,)),
    Observation(text="a raw prompt"),
    Observation(text="a raw prompt, and more", images=(PIXEL,), tools=({"type": "function"},)),
    Observation(text=""),
    Observation(token_ids=(1, 2)),
    Observation(token_ids=(), tools=({"type": "function"},), privileged="p"),
    Observation(token_ids=(7, 8, 9), images=(PIXEL,), anchor=""),
]


@given(st.lists(st.sampled_from(SEEN), min_size=1, max_size=5))
@settings(max_examples=cases(100), deadline=None)
def test_every_form_of_observation_reads_back_after_any_other(seen: list[Observation]) -> None:
    trajectory = trajectory_of(0, *(step_of((1, 2), (3,), observation=observation) for observation in seen))
    with tempfile.TemporaryDirectory() as folder:
        [read] = round_trip(Path(folder), trajectory)
    assert [step.observation for step in read.steps] == seen
    assert read == trajectory


def test_what_an_observation_repeats_is_written_once(tmp_path: Path) -> None:
    texts = ["x" * 5000, "x" * 5000 + "y"]
    picture = b"z" * 5000
    steps = [step_of((1,), (2,), observation=Observation(text=text, images=(picture,))) for text in texts]
    round_trip(tmp_path, trajectory_of(0, *steps))
    assert (tmp_path / "0.jsonl").stat().st_size < 14_000


def test_trajectories_recorded_without_the_form_of_observations_are_read(tmp_path: Path) -> None:
    seen = [Observation(messages=CHAT, tools=({"type": "function"},)), Observation(token_ids=(1, 2))]
    trajectory = trajectory_of(0, *(step_of((1, 2), (3,), observation=observation) for observation in seen))
    round_trip(tmp_path, trajectory)
    line = json.loads((tmp_path / "0.jsonl").read_text())
    for entry in line["steps"]:
        for name in ("form", "shared_text", "prompt_text", "token_ids", "shared_images", "images"):
            del entry[name]
    (tmp_path / "0.jsonl").write_text(json.dumps(line) + "\n")
    assert list(read_trajectories(tmp_path / "0.jsonl")) == [trajectory]


def test_members_of_a_group_are_not_merged(tmp_path: Path) -> None:
    same = step_of((1, 2), (3,))
    members = [trajectory_of(index, same, vote=str(index)) for index in range(3)]
    assert round_trip(tmp_path, *members) == members
    assert len((tmp_path / "0.jsonl").read_text().splitlines()) == 3


def test_tools_that_change_within_an_episode_read_back(tmp_path: Path) -> None:
    steps = [
        step_of((1, n), (3,), observation=Observation(messages=({"role": "user", "content": "hi"},), tools=tools))
        for n, tools in enumerate([({"name": "a"},), ({"name": "a"}, {"name": "b"}), (), ()])
    ]
    [read] = round_trip(tmp_path, trajectory_of(0, *steps))
    assert [step.observation.tools for step in read.steps] == [step.observation.tools for step in steps]


def test_shared_prefix_is_written_once(tmp_path: Path) -> None:
    long = tuple(range(1000, 3000))
    steps = [step_of(long, (1,)), step_of((*long, 1, 7), (2,)), step_of((*long, 1, 7, 2, 8), (3,))]
    assert round_trip(tmp_path, trajectory_of(0, *steps))[0].steps == tuple(steps)
    assert len(re.findall(r"\b2999\b", (tmp_path / "0.jsonl").read_text())) == 1


IDS = st.lists(st.integers(0, 3), max_size=6).map(tuple)


@settings(deadline=None, max_examples=cases(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.tuples(IDS, IDS), max_size=5))
def test_any_ids_read_back_exactly(turns: list[tuple[TokenIds, TokenIds]], tmp_path: Path) -> None:
    written = trajectory_of(0, *(step_of(prompt_ids, action_ids) for prompt_ids, action_ids in turns))
    [read] = round_trip(tmp_path, written)
    assert [(step.prompt_ids, step.action_ids) for step in read.steps] == turns


def test_atomic_write_leaves_only_the_whole_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "deep" / "file.txt", "old")
    write_atomically(tmp_path / "deep" / "file.txt", "new")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file.txt"]
    assert (tmp_path / "deep" / "file.txt").read_text() == "new"


# Metrics


def voted(*answers: tuple[str, float]) -> list[Trajectory]:
    return [trajectory_of(i, vote=answer, outcome_reward=reward) for i, (answer, reward) in enumerate(answers)]


def test_best_of_is_one_when_any_member_succeeded() -> None:
    assert best_of(voted(("4", 0.0), ("5", 1.0), ("4", 0.0))) == 1.0
    assert best_of(voted(("4", 0.0), ("4", 0.9))) == 0.0
    assert best_of([]) == 0.0


def test_majority_is_the_success_of_the_most_frequent_answer() -> None:
    assert majority(voted(("4", 1.0), ("5", 0.0), (" 4 ", 1.0))) == 1.0
    assert majority(voted(("5", 0.0), ("4", 1.0), ("5", 0.0))) == 0.0
    assert majority([]) == 0.0


def test_tied_vote_goes_to_the_answer_given_first() -> None:
    assert majority(voted(("5", 0.0), ("4", 1.0))) == 0.0
    assert majority(voted(("4", 1.0), ("5", 0.0))) == 1.0


def test_rollout_metrics_by_hand() -> None:
    malformed = Action(text="x", parse_error="bad")
    called = Action(text="y", tool_calls=(ToolCall(name="price", arguments={}),))
    trajectories = (
        trajectory_of(
            0,
            step_of((1,), (2, 3), reward=0.1, action=called),
            step_of((1,), (4,), reward=0.2),
            outcome_reward=1.0,
            reward_parts={"format": 1.0, "success": 1.0},
            metrics={"tool/price/calls": 1.0},
        ),
        trajectory_of(
            1,
            step_of((1,), (2,), action=malformed),
            stop_reason=StopReason.MAX_STEPS,
            outcome_reward=0.5,
            reward_parts={"format": 0.0},
            num_retries=2,
        ),
        trajectory_of(2, step_of((1,), (2, 3, 4), reward=9.0), stop_reason=StopReason.TIMEOUT, num_retries=1),
    )
    metrics = rollout_metrics([Group(task=task("a"), group_id=0, trajectories=trajectories)])
    assert metrics == pytest.approx(
        {
            "reward/outcome": 0.75,
            "reward/process": 0.15,
            "reward/success": 0.5,
            "reward/format": 0.5,
            "episode/steps": 1.5,
            "episode/action_tokens": 2.0,
            "episode/tool_calls": 0.5,
            "episode/truncated": 0.5,
            "episode/max_steps": 0.5,
            "step/parse_errors": 1 / 3,
            "tool/price/calls": 0.5,
            "error/failed_rollouts": 1.0,
            "error/retries": 3.0,
            "error/dropped_groups": 0.0,
            "error/timeout": 1.0,
            "perf/generated_tokens": 7.0,
        }
    )


# Evaluation


def evaluated(renderer: ChatRenderer, greedy: dict[str, str], sampled: dict[str, list[str]]) -> Evaluation:
    """An evaluation in which each task's greedy and sampled answers are given; "broken" is a reward that raises.

    Tasks of source `math` have names that begin with m, of `shop` with s; the right answer is always "right".
    """
    answers: dict[tuple[str, bool], Iterator[str]] = {(name, True): iter([text]) for name, text in greedy.items()}
    answers |= {(name, False): iter(texts) for name, texts in sampled.items()}

    def say(prompt: TokenIds, sampling: SamplingParams) -> TokenIds:
        question = str(renderer.tokenizer.decode(list(prompt), skip_special_tokens=False))
        [name] = [name for name in greedy if f"Task {name}." in question]
        return ids_of(renderer, next(answers[name, sampling.temperature == 0.0]))

    def reward(task: Task, episode: Episode) -> float:
        if episode.final_text == "broken":
            raise ValueError("cannot score this")
        return float(episode.final_text == "right")

    tasks = [
        task(name, agent_name="single_step", data_source="math" if name.startswith("m") else "shop") for name in greedy
    ]
    rollout = rollout_with(renderer, engine=ScriptedEngine(say), reward=reward, retries=0)
    num_samples = max((len(texts) for texts in sampled.values()), default=0)
    return asyncio.run(
        evaluate(rollout, tasks, sampling=SamplingParams(temperature=0.7), num_samples=num_samples, seed=1)
    )


def test_evaluation_gives_greedy_mean_best_and_majority_by_source(renderer: ChatRenderer) -> None:
    evaluation = evaluated(
        renderer,
        greedy={"m1": "right", "m2": "wrong", "s1": "right"},
        sampled={
            "m1": ["right", "wrong", "right"],
            "m2": ["wrong", "wrong", "right"],
            "s1": ["wrong", "bad", "worse"],
        },
    )
    wanted = {
        "eval/all/greedy": 2 / 3,
        "eval/math/greedy": 1 / 2,
        "eval/shop/greedy": 1.0,
        "eval/all/mean": 3 / 9,
        "eval/math/mean": 3 / 6,
        "eval/shop/mean": 0.0,
        "eval/all/best@3": 2 / 3,
        "eval/math/best@3": 1.0,
        "eval/shop/best@3": 0.0,
        "eval/all/maj@3": 1 / 3,
        "eval/math/maj@3": 1 / 2,
        "eval/shop/maj@3": 0.0,
    }
    assert {name: evaluation.metrics[name] for name in wanted} == pytest.approx(wanted)
    assert evaluation.success == pytest.approx(2 / 3)
    assert [len(group.trajectories) for group in evaluation.greedy] == [1, 1, 1]
    assert [len(group.trajectories) for group in evaluation.sampled] == [3, 3, 3]


def test_evaluation_without_samples_is_greedy_only(renderer: ChatRenderer) -> None:
    evaluation = evaluated(renderer, greedy={"m1": "right"}, sampled={})
    assert evaluation.sampled == ()
    assert sorted(evaluation.metrics) == [
        f"eval/{source}/{name}"
        for source in ("all", "math")
        for name in ("greedy", "response_tokens", "reward", "rows", "steps", "tool_calls")
    ]


def test_failed_rollout_counts_as_unsolved_in_an_evaluation(renderer: ChatRenderer) -> None:
    evaluation = evaluated(
        renderer,
        greedy={"m1": "right", "m2": "broken"},
        sampled={"m1": ["right", "broken"], "m2": ["broken", "broken"]},
    )
    assert evaluation.metrics["eval/all/greedy"] == 1 / 2
    assert evaluation.metrics["eval/all/mean"] == 1 / 4
    assert evaluation.metrics["eval/all/best@2"] == 1 / 2
    assert evaluation.metrics["eval/all/maj@2"] == 1 / 2


def test_failures_in_the_moment_in_which_the_run_ends_are_not_printed_by_asyncio(renderer: ChatRenderer) -> None:
    printed: list[str] = []

    async def fail_all() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: printed.append(context["message"]))
        rollout = rollout_with(renderer, make_env=lambda task: BreaksOn(), retries=0, max_failures_in_a_row=10)
        tasks = [task(f"broken{number}") for number in range(50)]
        with pytest.raises(RolloutsFailingError):
            await rollout.run(tasks, group_size=1, sampling=SamplingParams(), seed=0)
        gc.collect()

    asyncio.run(fail_all())
    assert printed == []
