"""Rollout: runs groups of episodes, with retries and deadlines, and collects the batches of training steps."""

from agent_r1.rollout.collector import Collector, make_sampler
from agent_r1.rollout.group_plans import (
    GroupPlan,
    Member,
    check_group_plan,
    configured_members,
    greedy_member,
    group_plans,
    sampled_members,
    with_greedy_member,
)
from agent_r1.rollout.limits import RolloutLimits
from agent_r1.rollout.overlapping import can_wait, make_collector
from agent_r1.rollout.runner import Rollout, raise_if_all_failed

__all__ = [
    "Collector",
    "GroupPlan",
    "Member",
    "Rollout",
    "RolloutLimits",
    "can_wait",
    "check_group_plan",
    "configured_members",
    "greedy_member",
    "group_plans",
    "make_collector",
    "make_sampler",
    "raise_if_all_failed",
    "sampled_members",
    "with_greedy_member",
]
