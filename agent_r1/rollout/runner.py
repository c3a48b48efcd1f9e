"""`Rollout`: runs groups of episodes.

All members of all groups run concurrently on one event loop, at most `limits.concurrency` at once. A finished episode
frees its slot immediately. A rollout that fails is retried with a new environment; if it still fails, it stays in its
group as a failed trajectory with its traceback, and is left out of every average and of training.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

from agent_r1.chat import ChatRenderer
from agent_r1.engines import Engine
from agent_r1.envs import AgentEnv
from agent_r1.errors import EngineLostError, EpisodeError, RolloutsFailingError, WorkersError, boundary
from agent_r1.flows import AgentFlowBase, FlowContext, FlowObserver, Turn, checked_episode
from agent_r1.rewards import RewardFunction, Score, score_episode
from agent_r1.rollout.breaker import CircuitBreaker
from agent_r1.rollout.group_plans import GroupPlan, Member, members_of, sampled_members
from agent_r1.rollout.limits import RolloutLimits
from agent_r1.seeds import mix_seed
from agent_r1.tools import ToolRunner
from agent_r1.types import Episode, FailedAttempt, Group, SamplingParams, StopReason, Task, Trajectory

_MemberKey = tuple[int, int]
"""A group's id, and the member's number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _PlannedGroup:
    """A group before its rollouts are made."""

    task: Task
    group_id: int
    members: tuple[Member, ...]

    def result(self, finished: Mapping[_MemberKey, Trajectory]) -> Group:
        """The group, when the rollouts of all its members have finished."""
        by_role: dict[str, list[Trajectory]] = {"sampled": [], "greedy": []}
        for member in self.members:
            by_role[member.role].append(finished[self.group_id, member.number])
        return Group(
            task=self.task,
            group_id=self.group_id,
            trajectories=tuple(by_role["sampled"]),
            greedy=next(iter(by_role["greedy"]), None),
        )


class Rollout:
    """Runs tasks in groups with one engine, one renderer and one reward function."""

    def __init__(
        self,
        *,
        engine: Engine,
        renderer: ChatRenderer,
        reward: RewardFunction,
        make_env: Callable[[Task], AgentEnv],
        limits: RolloutLimits,
        tool_runner: ToolRunner | None = None,
        services: Mapping[str, Any] | None = None,
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.reward = reward
        self.make_env = make_env
        self.limits = limits
        self.tool_runner = tool_runner
        self.services = services or {}
        self._stopped_seconds = 0.0
        self._stopped_at: float | None = None
        self._breaker = CircuitBreaker(limits.max_failures_in_a_row)

    async def run(
        self,
        tasks: Sequence[Task],
        *,
        group_size: int,
        sampling: SamplingParams,
        seed: int,
        plan: GroupPlan = sampled_members,
        first_group_id: int = 0,
        may_fail: bool = False,
        slots: asyncio.Semaphore | None = None,
        on_finished: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> list[Group]:
        """Roll out each task once per member of its group. The same seed, group ids and weights give the same rollouts.

        `plan` says which members a task's group has: by default `group_size` alike. `may_fail` accepts a batch in which
        every rollout failed, when it only adds to others. `slots` bounds the episodes alive at once over several calls;
        without it this call has `limits.concurrency` slots of its own.

        Failed members of a group with too few valid ones are rolled out again (`limits.group_refills`) after all other
        rollouts have ended: what was unavailable may be back by then. A group that still has too few is `dropped`.

        Raises `RolloutsFailingError` when every rollout failed, or too many in a row: there is nothing to learn from,
        and no retry fixes it. Raises `EngineLostError` or `WorkersError` when the engine or all workers are lost.
        """
        slots = slots or asyncio.Semaphore(self.limits.concurrency)
        planned = [
            _PlannedGroup(task=task, group_id=group_id, members=members_of(plan, task, group_size, sampling))
            for group_id, task in enumerate(tasks, start=first_group_id)
        ]
        members = {
            (group.group_id, member.number): (group.task, member) for group in planned for member in group.members
        }

        async def roll_out(key: _MemberKey, refill: int) -> Trajectory:
            (group_id, number), (task, member) = key, members[key]
            member_seed = mix_seed(seed, group_id, number, *([refill] if refill else []))
            async with slots:
                trajectory = await self.roll_out_member(task, group_id, member, member_seed)
            self._breaker.note(trajectory)
            if refill:  # what failed before it counts as attempts
                return _as_retry(trajectory, finished[key])
            on_finished(trajectory)
            return trajectory

        pending = list(members)
        finished: dict[_MemberKey, Trajectory] = {}
        groups: list[Group] = []
        for refill in range(self.limits.group_refills + 1):
            finished |= await _run_all({key: roll_out(key, refill) for key in pending})
            groups = [group.result(finished) for group in planned]
            weak = {group.group_id for group in groups if self._is_weak(group)}
            pending = [key for key, trajectory in finished.items() if key[0] in weak and trajectory.is_failure]
            if not pending:
                break
        if not may_fail:
            raise_if_all_failed(groups)
        return [replace(group, dropped=True) if self._is_weak(group) else group for group in groups]

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Inside, rollouts can be made."""
        return nullcontext()

    def take_counts(self) -> dict[str, float]:
        """Metrics of how rollouts were run since the last call; here there are none."""
        return {}

    def _is_weak(self, group: Group) -> bool:
        return len(group.valid) < self.limits.min_group_share * len(group.trajectories)

    @contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """Inside, the engine is paused or the event loop is blocked: deadlines of episodes do not come nearer."""
        self._stopped_at = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._stopped_seconds += asyncio.get_running_loop().time() - self._stopped_at
            self._stopped_at = None

    def _clock(self) -> float:
        now = asyncio.get_running_loop().time() if self._stopped_at is None else self._stopped_at
        return now - self._stopped_seconds

    async def play(
        self,
        task: Task,
        *,
        sampling: SamplingParams,
        seed: int,
        observer: FlowObserver | None = None,
        continues: Turn | None = None,
        make_env: Callable[[Task], AgentEnv] | None = None,
        reward: RewardFunction | None = None,
    ) -> Trajectory:
        """One rollout without retries, for chat and serving: same flow, environment, tools, limits and reward.

        `observer` sees it while it runs; `continues` is the last turn of the conversation that it continues; `make_env`
        and `reward` replace those of the rollout.
        """
        context = self._context(task, sampling, seed)
        context = replace(context, observer=observer, continues=continues, make_env=make_env or self.make_env)
        return await self._try_once(task, 0, 0, context, reward or self.reward)

    async def roll_out_member(self, task: Task, group_id: int, member: Member, seed: int) -> Trajectory:
        """One rollout, with its retries."""
        failed: Trajectory | None = None
        for attempt in range(self.limits.retries + 1):
            context = self._context(task, member.sampling, mix_seed(seed, attempt))
            trajectory = await self._try_once(task, group_id, member.number, context, self.reward)
            trajectory = trajectory if failed is None else _as_retry(trajectory, failed)
            if not trajectory.is_failure:
                return trajectory
            failed = trajectory
        assert failed is not None
        return failed

    def _context(self, task: Task, sampling: SamplingParams, seed: int) -> FlowContext:
        return FlowContext(
            engine=self.engine,
            renderer=self.renderer,
            sampling=sampling,
            make_env=self.make_env,
            tool_runner=self.tool_runner,
            max_steps=self.limits.max_steps,
            max_images=self.limits.max_images,
            max_episode_images=self.limits.max_episode_images,
            seed=seed,
            trusted=task.trusted,
            services=self.services,
        )

    async def _try_once(
        self, task: Task, group_id: int, number: int, context: FlowContext, reward: RewardFunction
    ) -> Trajectory:
        """One attempt at a rollout; a failed one is a trajectory that says why."""
        flow: AgentFlowBase | None = None
        try:
            with boundary(StopReason.FLOW_ERROR, f"making flow '{task.agent_name}'"):
                task = task.with_own_values()
                flow = AgentFlowBase.registry.get(task.agent_name)(context)
            return await self._attempt(flow, task, group_id, number, reward)
        except EpisodeError as failure:
            return Trajectory(
                task_id=task.task_id,
                group_id=group_id,
                member=number,
                data_source=task.data_source,
                steps=tuple(flow.steps) if flow is not None else (),
                outcome_reward=0.0,
                stop_reason=failure.reason,
                error=str(failure),
                metrics=_metrics_of(flow, failure.reason),
            )

    async def _run_and_score(self, flow: AgentFlowBase, task: Task, reward: RewardFunction) -> tuple[Episode, Score]:
        with boundary(StopReason.FLOW_ERROR, f"flow '{task.agent_name}' on task '{task.task_id}'"):
            episode = checked_episode(flow, await flow.run(task))
        if episode.posted_reward is not None:
            return episode, Score(value=episode.posted_reward, answer=episode.answer)
        started = time.perf_counter()
        score = await score_episode(reward, task, episode)
        return _with_reward_seconds(episode, time.perf_counter() - started), score

    async def _attempt(
        self, flow: AgentFlowBase, task: Task, group_id: int, number: int, reward: RewardFunction
    ) -> Trajectory:
        deadline = self.limits.deadline_seconds
        running = asyncio.create_task(self._run_and_score(flow, task, reward))
        running.add_done_callback(_read_exception)  # it may fail in the moment in which the whole batch is cancelled
        end = self._clock() + deadline
        try:
            while not running.done() and (remaining := end - self._clock()) > 0:
                await asyncio.wait({running}, timeout=remaining)
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait({running}, timeout=min(deadline, 10.0))
        if running.cancelled() and self._clock() < end:
            where = f"flow '{task.agent_name}' or the reward on task '{task.task_id}'"
            raise EpisodeError(StopReason.FLOW_ERROR, where, "it cancelled its own task (asyncio.CancelledError)")
        if not running.done() or running.cancelled():
            raise EpisodeError(
                StopReason.TIMEOUT,
                f"task '{task.task_id}'",
                f"no end in {deadline} s (rollout.deadline_seconds): a tool or environment that hangs, or more "
                "episodes at once than this machine is fast enough for (rollout.concurrency is "
                f"{self.limits.concurrency})",
            )
        episode, score = running.result()
        return Trajectory(
            task_id=task.task_id,
            group_id=group_id,
            member=number,
            data_source=task.data_source,
            steps=episode.steps,
            outcome_reward=score.value,
            reward_parts=score.parts,
            vote=score.answer,
            stop_reason=episode.stop_reason,
            next_prompt_ids=episode.next_prompt_ids,
            next_privileged=episode.next_privileged,
            metrics=episode.metrics,
            given_answer=episode.given_answer,
            posted_reward=episode.posted_reward,
        )


def _read_exception(task: asyncio.Task[Any]) -> None:
    """Read the exception of a task, which asyncio prints otherwise."""
    if not task.cancelled():
        task.exception()


def _with_reward_seconds(episode: Episode, seconds: float) -> Episode:
    """The episode with the seconds of its reward function among the timings of its last step."""
    *steps, last = episode.steps
    return replace(episode, steps=(*steps, replace(last, timings={**last.timings, "reward": seconds})))


def _metrics_of(flow: AgentFlowBase | None, reason: StopReason) -> Mapping[str, float]:
    """The metrics of a failed flow; none when computing them fails."""
    if flow is None:
        return {}
    with suppress(EpisodeError), boundary(StopReason.FLOW_ERROR, "the metrics of the flow"):
        return flow.episode(reason).metrics
    return {}


def _as_retry(trajectory: Trajectory, failed: Trajectory) -> Trajectory:
    """`trajectory`, a retry of `failed`, with all failed attempts before it."""
    num_steps, error = len(failed.steps), failed.error or ""
    last = FailedAttempt(stop_reason=failed.stop_reason, error=error, num_steps=num_steps, metrics=failed.metrics)
    attempts = (*failed.failed_attempts, last, *trajectory.failed_attempts)
    return replace(trajectory, num_retries=len(attempts), failed_attempts=attempts)


async def _run_all(rollouts: Mapping[_MemberKey, Coroutine[Any, Any, Trajectory]]) -> dict[_MemberKey, Trajectory]:
    """Run all rollouts concurrently. An exception of one cancels the others and is raised by itself."""
    try:
        async with asyncio.TaskGroup() as running:
            tasks = {key: running.create_task(rollout) for key, rollout in rollouts.items()}
    except ExceptionGroup as failures:
        failing = failures.subgroup((RolloutsFailingError, EngineLostError, WorkersError))
        if failing is None:
            raise
        raise failing.exceptions[0] from None
    return {key: task.result() for key, task in tasks.items()}


def raise_if_all_failed(groups: Sequence[Group]) -> None:
    """Raise `RolloutsFailingError` when there are rollouts and every single one failed."""
    trajectories = [trajectory for group in groups for trajectory in group]
    if trajectories and all(trajectory.is_failure for trajectory in trajectories):
        reasons = sorted({str(trajectory.stop_reason) for trajectory in trajectories})
        raise RolloutsFailingError(
            f"all {len(trajectories)} rollouts of a batch failed ({', '.join(reasons)}); the first one:\n"
            f"{trajectories[0].error}"
        )
