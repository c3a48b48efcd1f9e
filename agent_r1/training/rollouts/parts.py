"""The parts of a `Rollout` that the configuration determines."""

from __future__ import annotations

from functools import partial
from typing import Any

from agent_r1.config import Config
from agent_r1.envs import make_env
from agent_r1.gateway import Gateway
from agent_r1.rewards import RewardFunction, in_workers
from agent_r1.rollout import RolloutLimits
from agent_r1.tools import ToolRunner


def rollout_parts(config: Config, reward: RewardFunction, tools: ToolRunner, gateway: Gateway) -> dict[str, Any]:
    """All arguments of a `Rollout` but its engine and renderer, within the limits of the configuration."""
    limits = RolloutLimits(
        max_steps=config.rollout.max_steps,
        max_images=config.rollout.max_images,
        max_episode_images=config.rollout.max_episode_images,
        concurrency=config.rollout.concurrency,
        deadline_seconds=config.rollout.deadline_seconds,
        retries=config.rollout.retries,
    )
    if config.reward.timeout is not None:
        reward = in_workers(reward, tools.workers, timeout=config.reward.timeout)
    return {
        "reward": reward,
        "make_env": partial(make_env, section=config.env, runner=tools),
        "limits": limits,
        "tool_runner": tools,
        "services": {"gateway": gateway},
    }
