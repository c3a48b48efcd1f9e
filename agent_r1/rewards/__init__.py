"""Rewards: outcome functions, process rewards and their balance, text matching."""

from agent_r1.rewards.matching import (
    accepted_answers,
    exact_match,
    f1_score,
    last_number,
    marked_number,
    normalise_text,
    number_matches,
    same_text,
    truth_problem,
)
from agent_r1.rewards.number_reading import find_last_number, find_marked_number, number_text, to_number
from agent_r1.rewards.outcome import (
    RewardFunction,
    RewardValue,
    Score,
    needs_ground_truth,
    no_outcome_reward,
    reward_functions,
    row_problem,
    score_episode,
)
from agent_r1.rewards.process import NORMALISATIONS, ProcessBalance
from agent_r1.rewards.shaping import SPREAD_TOLERANCE, RewardShaping, ShapedRewards, overlong_penalty, returns_differ
from agent_r1.rewards.weighted import RewardSum, WeightedReward, find_reward, terms_of
from agent_r1.rewards.workers import Workers, in_workers

__all__ = [
    "NORMALISATIONS",
    "SPREAD_TOLERANCE",
    "ProcessBalance",
    "RewardFunction",
    "RewardShaping",
    "RewardSum",
    "RewardValue",
    "Score",
    "ShapedRewards",
    "WeightedReward",
    "Workers",
    "accepted_answers",
    "exact_match",
    "f1_score",
    "find_last_number",
    "find_marked_number",
    "find_reward",
    "in_workers",
    "last_number",
    "marked_number",
    "needs_ground_truth",
    "no_outcome_reward",
    "normalise_text",
    "number_matches",
    "number_text",
    "overlong_penalty",
    "returns_differ",
    "reward_functions",
    "row_problem",
    "same_text",
    "score_episode",
    "terms_of",
    "to_number",
    "truth_problem",
]
