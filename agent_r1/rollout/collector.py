"""`Collector`: rolls out the groups of one training step, and refills groups without spread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_r1.config import Config
from agent_r1.data import Curriculum, MixingSampler, RevisitingSampler, TaskSampler
from agent_r1.errors import ConfigError
from agent_r1.metric_names import GROUPS_WITH_SPREAD
from agent_r1.rewards import RewardShaping, returns_differ
from agent_r1.rollout.group_plans import group_plans, members_of
from agent_r1.rollout.runner import Rollout
from agent_r1.seeds import Stream, mix_seed
from agent_r1.types import Group, SamplingParams, Task, Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """The rollouts of one training step."""

    groups: tuple[Group, ...]
    """All groups. Those without spread count in the metrics, not in the loss."""
    metrics: dict[str, float]
    """How many groups have spread, and how many rollouts refilling cost."""


def make_sampler(config: Config, tasks: Sequence[Task]) -> TaskSampler:
    """The order of the training tasks; `ConfigError` for rows or keys that do not fit `data.curriculum`,
    `data.revisit` and `data.shares`."""
    size, seed, levels = config.rollout.groups_per_step, config.trainer.seed, config.data.curriculum
    again, shares = config.data.revisit, config.data.shares
    chosen = {
        "data.curriculum.enabled=true": levels.enabled,
        f"data.revisit.share={again.share:g}": again.share > 0,
        "data.shares": bool(shares),
    }
    if sum(chosen.values()) > 1:
        both = " and ".join(name for name, is_set in chosen.items() if is_set)
        raise ConfigError(f"{both} both choose the tasks; leave one out")
    if shares:
        return MixingSampler(tasks, batch_size=size, seed=seed, shares=shares)
    if again.share:
        return RevisitingSampler(tasks, batch_size=size, seed=seed, share=again.share, low=again.low, high=again.high)
    if not levels.enabled:
        return TaskSampler(tasks, batch_size=size, seed=seed)
    return Curriculum(
        tasks,
        batch_size=size,
        seed=seed,
        threshold=levels.threshold,
        window=levels.window,
        review=levels.review,
    )


class Collector:
    """Rolls out one batch of tasks per step. Batch `n` is a function of the seed, `n` and the weights."""

    def __init__(self, config: Config, rollout: Rollout, tasks: Sequence[Task], shaping: RewardShaping) -> None:
        self._settings = config.rollout
        self._algorithm = config.algorithm
        self._plan = group_plans.get(config.algorithm.group_plan)
        self._shaping = shaping
        self._seed = config.trainer.seed
        self._rollout = rollout
        self._sampler = make_sampler(config, tasks)
        self._sampling = SamplingParams(
            max_tokens=config.rollout.max_tokens,
            temperature=config.rollout.temperature,
            top_p=config.rollout.top_p,
            top_k=config.rollout.top_k,
        )
        self.rollouts_per_batch = config.rollout.groups_per_step * self._num_members(tasks[0])
        """Rollouts of a batch that needs no refill, if all groups are as large as the first task's."""

    def _num_members(self, task: Task) -> int:
        return len(members_of(self._plan, task, self._settings.group_size, self._sampling))

    async def collect(self, step: int, on_finished: Callable[[Trajectory], None]) -> Collected:
        """The rollouts of training step `step`.

        With `refill_rounds`, each round rolls out one further task per group without spread (DAPO's dynamic sampling).
        After the last round the batch may have fewer groups with spread than `groups_per_step`.
        """
        num_groups = self._settings.groups_per_step
        groups: list[Group] = []
        tasks, rounds = self._sampler.batch(step), 0
        while True:
            groups += await self._rollout.run(
                tasks,
                group_size=self._settings.group_size,
                sampling=self._sampling,
                seed=mix_seed(self._seed, Stream.ROLLOUT, step),
                plan=self._plan,
                first_group_id=len(groups),
                may_fail=bool(groups),
                on_finished=on_finished,
            )
            num_with_spread = sum(map(self.has_spread, groups))
            if num_with_spread >= num_groups or rounds == self._algorithm.refill_rounds:
                break
            rounds += 1
            tasks = self._sampler.extra(step, rounds, num_groups - num_with_spread)
        metrics = self._count(groups) | self._rollout.take_counts()
        metrics |= self._sampler.observe(groups, (step + 1) * num_groups)
        if self._algorithm.refill_rounds:
            metrics["perf/refill_rounds"] = float(rounds)
        return Collected(groups=tuple(groups), metrics=metrics)

    async def close(self) -> None:
        """Stop running rollouts; here there are none, since `collect` waits for its batch."""

    def state_dict(self, steps_done: int) -> dict[str, Any]:
        """Which groups come next: the numbers (over the whole run) of groups that were started and not trained, and of
        the first that was never started."""
        return {"pending": [], "next": steps_done * self._settings.groups_per_step, **self._sampler_state()}

    def _sampler_state(self) -> dict[str, Any]:
        state = self._sampler.state_dict()
        return {"sampler": state} if state else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state. A batch depends on its step and on the sampler; groups that a run with overlap had
        in flight are not rolled out again."""
        self._sampler.load_state_dict(state.get("sampler", {}))

    def _count(self, groups: Sequence[Group]) -> dict[str, float]:
        num_greedy = sum(group.greedy is not None for group in groups)
        metrics = {
            GROUPS_WITH_SPREAD: sum(map(self.has_spread, groups)) / len(groups),
            "perf/episodes": float(sum(len(group.trajectories) for group in groups) + num_greedy),
        }
        if self._algorithm.refill_rounds:
            metrics["perf/refilled_groups"] = float(len(groups) - self._settings.groups_per_step)
        return metrics

    def has_spread(self, group: Group) -> bool:
        """Whether the members that did not fail have different returns."""
        returns = [self._shaping.plain_return(trajectory) for trajectory in group.learnable]
        return returns_differ(returns)
