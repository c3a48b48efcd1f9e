"""Metrics of a batch of trajectories, and confidence intervals of means. Failed rollouts are counted and otherwise left
out."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence

from agent_r1.metric_names import (
    ACTION_TOKENS,
    EPISODE_STEPS,
    OUTCOME,
    PARSE_ERRORS,
    PROCESS,
    REWARD_FIGURES,
    RUN_FAMILIES,
    SUCCESS,
    TOOL_CALLS,
    TRUNCATED,
)
from agent_r1.types import Group, Trajectory

_Z = 1.959964  # 95 % of a normal distribution lies within this many standard deviations


def mean(values: Iterable[float]) -> float:
    """The mean; 0 without values."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of a mean of one value per task; None for a single value that is not 0 or 1.

    Values that are all 0 or 1 are a share and have Wilson's interval, which has a width at 0 and 1 too: 8 of 10 give
    (0.490, 0.943), 10 of 10 give (0.722, 1). Others have the normal interval, mean +- 1.96 s / sqrt(n), clipped to
    [0, 1] when all values are in it.
    """
    count, centre = len(values), mean(values)
    if count and all(value in (0.0, 1.0) for value in values):
        spread = _Z / count * math.sqrt(count * centre * (1.0 - centre) + _Z**2 / 4)
        scale = 1.0 + _Z**2 / count
        middle = centre + _Z**2 / (2 * count)
        return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)
    if count < 2:
        return None
    deviation = math.sqrt(sum((value - centre) ** 2 for value in values) / (count - 1))
    low, high = centre - _Z * deviation / math.sqrt(count), centre + _Z * deviation / math.sqrt(count)
    within = all(0.0 <= value <= 1.0 for value in values)
    return (max(0.0, low), min(1.0, high)) if within else (low, high)


def rollout_metrics(groups: Sequence[Group], others: Collection[str] = ()) -> dict[str, float]:
    """Rewards, lengths, tool calls and failures of a batch of rollouts.

    What a reward function or an environment reports under the name of one of these, or of one of the `others` that the
    step logs, stands beside it: a part `process` of the reward is `reward/reward_process`, the metrics `reward/outcome`
    and `loss/policy` of an environment are `own/reward/outcome` and `own/loss/policy`.
    """
    everything = [trajectory for group in groups for trajectory in group]
    valid = [trajectory for trajectory in everything if not trajectory.is_failure]
    metrics = {
        OUTCOME: mean(t.outcome_reward for t in valid),
        PROCESS: mean(t.process_reward for t in valid),
        SUCCESS: mean(t.success for t in valid),
        EPISODE_STEPS: mean(len(t.steps) for t in valid),
        ACTION_TOKENS: mean(t.num_action_tokens for t in valid),
        TOOL_CALLS: mean(t.num_tool_calls for t in valid),
        TRUNCATED: mean(t.stop_reason.is_truncation for t in valid),
        PARSE_ERRORS: mean(step.action.parse_error is not None for t in valid for step in t.steps),
        "error/failed_rollouts": float(len(everything) - len(valid)),
        "error/retries": float(sum(t.num_retries for t in everything)),
        "error/dropped_groups": float(sum(group.dropped for group in groups)),
        "perf/generated_tokens": float(sum(t.num_action_tokens for t in everything)),
    }
    for reason, count in Counter(str(t.stop_reason) for t in valid if t.stop_reason.is_truncation).items():
        metrics[f"episode/{reason}"] = count / len(valid)
    for reason, count in Counter(str(t.stop_reason) for t in everything if t.is_failure).items():
        metrics[f"error/{reason}"] = float(count)
    retried = Counter(str(attempt.stop_reason) for t in everything for attempt in t.failed_attempts)
    for reason, count in retried.items():
        metrics[f"error/retried_{reason}"] = float(count)
    for name in sorted({name for t in valid for name in t.reward_parts} - {"success"}):
        shown = f"reward_{name}" if name in REWARD_FIGURES else name
        metrics[f"reward/{shown}"] = mean(t.reward_parts[name] for t in valid if name in t.reward_parts)
    for name in sorted({name for t in valid for name in t.metrics}):
        is_taken = name == "step" or name.startswith(RUN_FAMILIES) or name in metrics or name in others
        metrics[f"own/{name}" if is_taken else name] = mean(t.metrics.get(name, 0.0) for t in valid)
    return metrics


def best_of(group: Sequence[Trajectory]) -> float:
    """1 when any member succeeded."""
    return max((trajectory.success for trajectory in group), default=0.0)


def majority(group: Sequence[Trajectory]) -> float:
    """The success of the most frequent answer; ties go to the answer given first. An empty answer casts no vote.

    Answers (4, 5, 4) with successes (1, 0, 1) give 1; ("", "", 4) with successes (0, 0, 1) give 1.
    """
    votes: defaultdict[str, list[float]] = defaultdict(list)
    for trajectory in group:
        if answer := trajectory.vote.strip():
            votes[answer].append(trajectory.success)
    sizes = {answer: len(successes) for answer, successes in votes.items()}
    return mean(votes[max(sizes, key=sizes.__getitem__)]) if votes else 0.0
