"""Rewards: outcome functions, process rewards, text matching."""

from agent_r1.rewards.matching import last_number, normalise_text
from agent_r1.rewards.outcome import RewardFunction, RewardValue, Score, reward_functions, score_episode
from agent_r1.rewards.process import step_rewards

__all__ = [
    "RewardFunction",
    "RewardValue",
    "Score",
    "last_number",
    "normalise_text",
    "reward_functions",
    "score_episode",
    "step_rewards",
]
