"""Rewards: outcome functions, process rewards and their balance, text matching."""

from agent_r1.rewards.killable import Workers, in_workers
from agent_r1.rewards.matching import exact_match, f1_score, last_number, marked_number, normalise_text
from agent_r1.rewards.outcome import RewardFunction, RewardValue, Score, reward_functions, score_episode
from agent_r1.rewards.process import NORMALISATIONS, ProcessBalance
from agent_r1.rewards.shaping import RewardShaping, ShapedRewards, overlong_penalty

__all__ = [
    "NORMALISATIONS",
    "ProcessBalance",
    "RewardFunction",
    "RewardShaping",
    "RewardValue",
    "Score",
    "ShapedRewards",
    "Workers",
    "exact_match",
    "f1_score",
    "in_workers",
    "last_number",
    "marked_number",
    "normalise_text",
    "overlong_penalty",
    "reward_functions",
    "score_episode",
]
