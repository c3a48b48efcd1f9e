"""Evaluating a policy on held-out tasks: greedy, and sampled with mean, best@k and maj@k."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent_r1.evaluation.metrics import best_of, interval, majority, mean
from agent_r1.metric_names import ALL_SOURCES, EVAL_GREEDY, USAGE_PREFIX, eval_metric
from agent_r1.rollout import Rollout
from agent_r1.seeds import Stream, mix_seed
from agent_r1.types import Group, SamplingParams, Task, Trajectory

_SAMPLE_SEED = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The result of an evaluation."""

    metrics: dict[str, float]
    """Per data source, and over all rows under `all`: `eval/<source>/{greedy,mean,best@k,maj@k}`, the outcome reward
    and its parts (`reward`, `em`, ...), `rows`, `steps`, `tool_calls`, `response_tokens`, and `failed` when greedy
    rollouts failed, which count as not solved. Behind a chat API also what it says an episode took: `requests`,
    `prompt_tokens`, `cached_prompt_tokens`, `reasoning_tokens`."""
    greedy: tuple[Group, ...]
    """The greedy rollouts, one per task."""
    sampled: tuple[Group, ...] = ()
    """The sampled rollouts, k per task."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The 95 % confidence intervals over tasks, for the metrics that have one."""

    @property
    def success(self) -> float:
        """The share of tasks solved greedily."""
        return self.metrics[EVAL_GREEDY]

    def as_json(self) -> dict[str, Any]:
        """Metrics, intervals, the ids and data sources of the tasks, and how well each was solved greedily."""
        return {
            "metrics": dict(sorted(self.metrics.items())),
            "intervals": {name: list(pair) for name, pair in sorted(self.intervals.items())},
            "tasks": [group.task.task_id for group in self.greedy],
            "sources": [group.task.data_source for group in self.greedy],
            "solved": [_success(trajectory) for group in self.greedy for trajectory in group],
        }

    def worst_first(self) -> list[Trajectory]:
        """The greedy rollouts, unsolved ones first, otherwise in the order of the tasks."""
        return sorted((trajectory for group in self.greedy for trajectory in group), key=_success)


def sample_eval_tasks(tasks: Sequence[Task], max_tasks: int | None) -> list[Task]:
    """The rows an evaluation uses: all, or `max_tasks` of them, evenly over the data sources.

    The same number gives the same rows, whatever the run's seed, and a smaller sample is part of a larger one. Of 90
    rows of `math` and 10 of `shop`, a sample of 30 has 20 and 10.
    """
    if max_tasks is None or len(tasks) <= max_tasks:
        return list(tasks)
    rng = random.Random(_SAMPLE_SEED)
    shuffled: dict[str, list[int]] = defaultdict(list)
    for index in rng.sample(range(len(tasks)), len(tasks)):
        shuffled[tasks[index].data_source].append(index)
    ranked = [(rank, source, index) for source, indices in shuffled.items() for rank, index in enumerate(indices)]
    return [tasks[index] for index in sorted(index for _, _, index in sorted(ranked)[:max_tasks])]


async def evaluate(
    rollout: Rollout,
    tasks: Sequence[Task],
    *,
    sampling: SamplingParams,
    num_samples: int,
    seed: int,
    on_finished: Callable[[Trajectory], None] = lambda trajectory: None,
) -> Evaluation:
    """Evaluate the engine's current weights. Greedy rollouts use `sampling` at temperature 0.

    A rollout that fails counts as not solved: an evaluation must not look better because something broke.
    """
    greedy = await rollout.run(
        tasks, group_size=1, sampling=replace(sampling, temperature=0.0), seed=seed, on_finished=on_finished
    )
    sampled = (
        await rollout.run(
            tasks,
            group_size=num_samples,
            sampling=sampling,
            seed=mix_seed(seed, Stream.EVALUATION_SAMPLES),
            on_finished=on_finished,
        )
        if num_samples
        else []
    )
    metrics: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    by_source = _by_source(greedy)
    values = {eval_metric(name, source): scores for source in by_source for name, scores in _scores(by_source[source])}
    for source, groups in _by_source(sampled).items():
        values[eval_metric("mean", source)] = [mean(map(_success, group)) for group in groups]
        values[eval_metric(f"best@{num_samples}", source)] = [best_of(group.valid) for group in groups]
        values[eval_metric(f"maj@{num_samples}", source)] = [majority(group.valid) for group in groups]
    for name, scores in values.items():
        metrics[name] = mean(scores)
        if (pair := interval(scores)) is not None:
            intervals[name] = pair
    for source, groups in by_source.items():
        metrics.update({eval_metric(name, source): value for name, value in _counts(groups).items()})
    return Evaluation(metrics=metrics, greedy=tuple(greedy), sampled=tuple(sampled), intervals=intervals)


def _scores(groups: Sequence[Group]) -> list[tuple[str, list[float]]]:
    """Success, reward and each part of the reward of the greedy rollouts of a source, one value per task.

    A failed rollout has no parts and counts as 0; a part that only some tasks have is a mean over those.
    """
    trajectories = [trajectory for group in groups for trajectory in group]
    scores = [
        ("greedy", [_success(trajectory) for trajectory in trajectories]),
        ("reward", [trajectory.outcome_reward for trajectory in trajectories]),
    ]
    taken = {"greedy", "reward", "mean", *_counts(groups)}
    for part in sorted({part for trajectory in trajectories for part in trajectory.reward_parts} - {"success"}):
        rows = [trajectory for trajectory in trajectories if trajectory.is_failure or part in trajectory.reward_parts]
        name = f"reward_{part}" if part in taken else part
        scores.append((name, [trajectory.reward_parts.get(part, 0.0) for trajectory in rows]))
    return scores


def _counts(groups: Sequence[Group]) -> dict[str, float]:
    trajectories = [trajectory for group in groups for trajectory in group]
    counts = {
        "rows": float(len(groups)),
        "steps": mean(len(trajectory.steps) for trajectory in trajectories),
        "tool_calls": mean(trajectory.num_tool_calls for trajectory in trajectories),
        "response_tokens": mean(trajectory.num_action_tokens for trajectory in trajectories),
    }
    usage = _usage(trajectories)
    if "completion_tokens" in usage:  # there are no ids to count
        counts["response_tokens"] = usage.pop("completion_tokens")
    counts |= usage
    failed = sum(trajectory.is_failure for trajectory in trajectories)
    return {**counts, "failed": float(failed)} if failed else counts


def _usage(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What a server behind a chat API says that an episode took on average, failed attempts included."""
    totals: Counter[str] = Counter()
    for trajectory in trajectories:
        every = [trajectory.metrics, *(attempt.metrics for attempt in trajectory.failed_attempts)]
        for metrics in every:
            totals.update({name: value for name, value in metrics.items() if name.startswith(USAGE_PREFIX)})
    return {name.removeprefix(USAGE_PREFIX): total / len(trajectories) for name, total in sorted(totals.items())}


def _success(trajectory: Trajectory) -> float:
    return 0.0 if trajectory.is_failure else trajectory.success


def _by_source(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Groups by data source, and all of them under `all`; a source of that name is `source_all`."""
    sources: defaultdict[str, list[Group]] = defaultdict(list)
    for group in groups:
        source = group.task.data_source
        sources[f"source_{source}" if source == ALL_SOURCES else source].append(group)
    return {**sources, ALL_SOURCES: list(groups)} if groups else {}
