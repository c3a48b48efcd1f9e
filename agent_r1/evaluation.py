"""Evaluating a policy on held-out tasks: greedy, and sampled with mean, best@k and maj@k."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agent_r1.metrics import best_of, majority, mean
from agent_r1.rollout import Rollout
from agent_r1.seeds import mix_seed
from agent_r1.types import Group, SamplingParams, Task, Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What an evaluation found."""

    metrics: dict[str, float]
    """`eval/<source>/{greedy,mean,best@k,maj@k}`, `eval/all/...` over all rows, `eval/all/tool_calls`, and
    `eval/<source>/failed` when greedy rollouts failed, which count as not solved."""
    greedy: tuple[Group, ...]
    """The greedy rollouts, one a task."""
    sampled: tuple[Group, ...] = ()
    """The sampled rollouts, k a task."""

    @property
    def success(self) -> float:
        """The share of tasks solved greedily."""
        return self.metrics["eval/all/greedy"]


async def evaluate(
    rollout: Rollout,
    tasks: Sequence[Task],
    *,
    sampling: SamplingParams,
    num_samples: int,
    seed: int,
    on_finished: Callable[[Trajectory], None] = lambda trajectory: None,
) -> Evaluation:
    """Evaluate the engine's current weights. `sampling` is used for the sampled rollouts, at temperature 0 for greedy.

    A rollout that fails counts as not solved: an evaluation must not look better because something broke.
    """
    greedy = await rollout.run(
        tasks, group_size=1, sampling=replace(sampling, temperature=0.0), seed=seed, on_finished=on_finished
    )
    sampled = (
        await rollout.run(
            tasks, group_size=num_samples, sampling=sampling, seed=mix_seed(seed, 1), on_finished=on_finished
        )
        if num_samples
        else []
    )
    metrics: dict[str, float] = {}
    for source, groups in _by_source(greedy).items():
        metrics[f"eval/{source}/greedy"] = mean(_success(t) for group in groups for t in group)
        metrics[f"eval/{source}/tool_calls"] = mean(t.num_tool_calls for group in groups for t in group)
        failed = sum(t.is_failure for group in groups for t in group)
        if failed:
            metrics[f"eval/{source}/failed"] = float(failed)
        metrics[f"eval/{source}/steps"] = mean(len(t.steps) for group in groups for t in group)
    for source, groups in _by_source(sampled).items():
        metrics[f"eval/{source}/mean"] = mean(_success(t) for group in groups for t in group)
        metrics[f"eval/{source}/best@{num_samples}"] = mean(best_of(group.valid) for group in groups)
        metrics[f"eval/{source}/maj@{num_samples}"] = mean(majority(group.valid) for group in groups)
    return Evaluation(metrics=metrics, greedy=tuple(greedy), sampled=tuple(sampled))


def _success(trajectory: Trajectory) -> float:
    return 0.0 if trajectory.is_failure else trajectory.success


def _by_source(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Groups by data source, and all of them under `all`."""
    sources: defaultdict[str, list[Group]] = defaultdict(list)
    for group in groups:
        sources[group.task.data_source].append(group)
    return {**sources, "all": list(groups)} if groups else {}
