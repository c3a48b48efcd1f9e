"""Numbers about a batch of trajectories. Failed rollouts are counted and otherwise left out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from agent_r1.types import Group, Trajectory


def mean(values: Iterable[float]) -> float:
    """The mean; 0 of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """What a batch of rollouts earned and how it went."""
    everything = [trajectory for group in groups for trajectory in group]
    valid = [trajectory for trajectory in everything if not trajectory.is_failure]
    metrics = {
        "reward/outcome": mean(t.outcome_reward for t in valid),
        "reward/process": mean(t.process_reward for t in valid),
        "reward/success": mean(t.success for t in valid),
        "episode/steps": mean(len(t.steps) for t in valid),
        "episode/action_tokens": mean(t.num_action_tokens for t in valid),
        "episode/tool_calls": mean(t.num_tool_calls for t in valid),
        "episode/truncated": mean(t.stop_reason.is_truncation for t in valid),
        "step/parse_errors": mean(step.action.parse_error is not None for t in valid for step in t.steps),
        "error/failed_rollouts": float(len(everything) - len(valid)),
        "error/retries": float(sum(t.num_retries for t in everything)),
        "error/dropped_groups": float(sum(group.dropped for group in groups)),
        "perf/generated_tokens": float(sum(t.num_action_tokens for t in everything)),
    }
    for name in sorted({name for t in valid for name in t.reward_parts} - {"success"}):
        metrics[f"reward/{name}"] = mean(t.reward_parts[name] for t in valid if name in t.reward_parts)
    for name in sorted({name for t in valid for name in t.metrics}):
        metrics[name] = mean(t.metrics.get(name, 0.0) for t in valid)
    for reason, count in Counter(str(t.stop_reason) for t in everything if t.is_failure).items():
        metrics[f"error/{reason}"] = float(count)
    retried = Counter(str(attempt.stop_reason) for t in everything for attempt in t.failed_attempts)
    for reason, count in retried.items():
        metrics[f"error/retried_{reason}"] = float(count)
    return metrics


def best_of(group: Sequence[Trajectory]) -> float:
    """1 when any member succeeded."""
    return max((trajectory.success for trajectory in group), default=0.0)


def majority(group: Sequence[Trajectory]) -> float:
    """The success of the answer most members gave; ties go to the answer given first.

    Answers (4, 5, 4) with successes (1, 0, 1) give 1.
    """
    votes: defaultdict[str, list[float]] = defaultdict(list)
    for trajectory in group:
        votes[trajectory.answer.strip()].append(trajectory.success)
    sizes = {answer: len(successes) for answer, successes in votes.items()}
    return mean(votes[max(sizes, key=sizes.__getitem__)]) if votes else 0.0
