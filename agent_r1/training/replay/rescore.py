"""Scores recorded episodes with a reward function, as the rollouts of a run are scored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from agent_r1.config import Config
from agent_r1.errors import EpisodeError
from agent_r1.rewards import RewardFunction, in_workers, score_episode
from agent_r1.tools import ToolRunner
from agent_r1.training.replay.record import RecordedStep, make_group
from agent_r1.types import Group, Task, Trajectory


async def rescore(
    steps: Sequence[RecordedStep],
    reward: RewardFunction,
    config: Config,
    on_scored: Callable[[], None] = lambda: None,
) -> list[RecordedStep]:
    """The rollouts with the scores of a reward function.

    A rollout that failed has no episode to score and stays as it is; so does one whose agent posted its own reward. A
    reward that raises fails the rollout, as in a run; it is never 0.
    """
    slots = asyncio.Semaphore(config.rollout.concurrency)
    async with AsyncExitStack() as stack:
        if config.reward.timeout is not None:
            tools = await stack.enter_async_context(ToolRunner({}, seed=config.trainer.seed))
            reward = in_workers(reward, tools.workers, timeout=config.reward.timeout)

        async def score(task: Task, trajectory: Trajectory) -> Trajectory:
            async with slots:
                scored = await score_again(trajectory, task, reward)
            on_scored()
            return scored

        async def score_group(group: Group) -> Group:
            members = [*group.trajectories, *([group.greedy] if group.greedy is not None else [])]
            return make_group(group.task, await asyncio.gather(*(score(group.task, member) for member in members)))

        return [replace(step, groups=tuple(await asyncio.gather(*map(score_group, step.groups)))) for step in steps]


async def score_again(trajectory: Trajectory, task: Task, reward: RewardFunction) -> Trajectory:
    """A trajectory with the score that a reward function gives it."""
    if trajectory.is_failure or trajectory.posted_reward is not None:
        return trajectory
    try:
        score = await score_episode(reward, task, trajectory.episode)
    except EpisodeError as failure:
        return replace(trajectory, outcome_reward=0.0, reward_parts={}, stop_reason=failure.reason, error=str(failure))
    return replace(trajectory, outcome_reward=score.value, reward_parts=score.parts, vote=score.answer)
