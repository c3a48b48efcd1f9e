"""Warns when learning goes wrong, and says which keys to change.

`HealthMonitor` reads the metrics of each step. A problem is reported when it begins, and again only after it has been
gone for some steps. Its only state is the metrics it has seen, so a resumed run replays the old ones first. Metrics
that are missing or not finite are ignored.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping

from agent_r1.metric_names import (
    APPROX_KL,
    CREDITED_TRAJECTORIES,
    CUT_ACTIONS,
    ENTROPY,
    EPISODE_STEPS,
    EPISODES,
    EVAL_GREEDY,
    EVAL_ROWS,
    GROUPS_WITH_SPREAD,
    LOGPROB_DIFFERENCE,
    OUTCOME,
    PARSE_ERRORS,
    PREEMPTIONS,
    PROCESS,
    REFERENCE_KL,
    STALENESS_MEAN,
    SUCCESS,
    TOOL_CALLS,
    TRUNCATED,
)

Metrics = Mapping[str, float]

WINDOW = 3
"""Steps over which a metric is averaged before it is judged: one odd batch is not a problem."""

LONG_WINDOW = 10
"""Steps that define what is usual, and how long a problem must be gone before it is reported again."""

MEMORY = 50
"""Steps before the last window whose median is the usual value; bounded, so that long runs cost no more."""

SOLVED = 0.9
"""Above this success, low entropy and groups without spread are expected."""

MUCH_MOVED = 0.2
"""A mean change of log-probs since sampling beyond which tokens of older policies are of little use."""


class HealthWarning(str):
    """The text of a warning, with the name of the check that gave it."""

    __slots__ = ("rule",)
    rule: str

    def __new__(cls, text: str, *, rule: str) -> HealthWarning:
        """A text with its rule."""
        warning = super().__new__(cls, text)
        warning.rule = rule
        return warning


class HealthMonitor:
    """Watches the metrics of a run.

    >>> monitor = HealthMonitor(has_tools=True)
    >>> [len(monitor.observe({"episode/tool_calls": 0.0, "reward/success": 0.0})) for _ in range(4)]
    [0, 0, 1, 0]
    """

    def __init__(self, *, has_tools: bool) -> None:
        self._has_tools = has_tools
        self._history: list[dict[str, float]] = []
        self._quiet_for: dict[str, int] = {}
        self._first: dict[str, list[float]] = {}
        self._best: dict[str, float] = {}
        self._before: float | None = None
        self._held_out_fell = False
        self.warnings: list[str] = []

    def observe(self, metrics: Metrics) -> list[HealthWarning]:
        """The warnings that begin with this step."""
        self._remember({name: value for name, value in metrics.items() if math.isfinite(value)})
        new: list[HealthWarning] = []
        for name, check in _CHECKS.items():
            message = check(self) if len(self._history) >= WINDOW else None
            if message is not None:
                if self._quiet_for.get(name, LONG_WINDOW) >= LONG_WINDOW:
                    new.append(HealthWarning(message, rule=name))
                self._quiet_for[name] = 0
            elif name in self._quiet_for:
                self._quiet_for[name] += 1
        self.warnings += [f"step {len(self._history)}: {message}" for message in new]
        return new

    def observe_evaluation(self, metrics: Metrics) -> list[HealthWarning]:
        """The warnings that begin with this evaluation of held-out tasks, which is compared with the first one."""
        success, rows = metrics.get(EVAL_GREEDY, math.nan), metrics.get(EVAL_ROWS, 0.0)
        if not math.isfinite(success) or rows < 1:
            return []
        if self._before is None:
            self._before = success
        # Twice the standard error of the difference: less than that may be chance.
        chance = 2.0 * math.sqrt((self._before * (1 - self._before) + success * (1 - success)) / rows)
        fell, was_reported = success < self._before - max(chance, 0.02), self._held_out_fell
        self._held_out_fell = fell
        if not fell or was_reported:
            return []
        message = _held_out_falls(self, success, self._before)
        self.warnings.append(f"step {len(self._history)}: {message}")
        return [HealthWarning(message, rule="held-out falls")]

    def replay(self, lines: Iterable[Metrics]) -> None:
        """Observe the logged steps and evaluations of a resumed run; lines that only count failures are skipped."""
        for metrics in lines:
            if EVAL_GREEDY in metrics:
                self.observe_evaluation(metrics)
            elif not _counts_failures(metrics):
                self.observe(metrics)

    def _remember(self, step: dict[str, float]) -> None:
        self._history.append(step)
        for name, value in step.items():
            first = self._first.setdefault(name, [])
            if len(first) < WINDOW:
                first.append(value)
            mean = self.recent(name)
            if mean is not None:
                self._best[name] = max(mean, self._best.get(name, mean))

    # --- queries of the checks ---------------------------------------------------------------------------------------

    @property
    def has_tools(self) -> bool:
        """The policy has tools to call."""
        return self._has_tools

    def recent(self, name: str, num_steps: int = WINDOW) -> float | None:
        """The mean over the last steps; None when one of them does not have it."""
        values = [step[name] for step in self._history[-num_steps:] if name in step]
        return sum(values) / num_steps if len(values) == num_steps else None

    def earlier(self, name: str) -> list[float]:
        """Values before the last steps."""
        return [step[name] for step in self._history[-WINDOW - MEMORY : -WINDOW] if name in step]

    def at_first(self, name: str) -> float | None:
        """The mean over the first steps that had it; None while these are also the last ones."""
        first = self._first.get(name, [])
        return sum(first) / WINDOW if len(first) == WINDOW and len(self._history) > WINDOW else None

    def best_window(self, name: str) -> float | None:
        """The largest mean over a window so far; None when there was none."""
        return self._best.get(name)

    @property
    def solved(self) -> bool:
        """Whether the task is practically solved."""
        return (self.recent(SUCCESS) or 0.0) >= SOLVED


def _counts_failures(metrics: Metrics) -> bool:
    return {name.partition("/")[0] for name in metrics} - {"step"} == {"error"}


def _tools_never_called(monitor: HealthMonitor) -> str | None:
    best = monitor.best_window(TOOL_CALLS)
    if not monitor.has_tools or best is None or best > 0.01 or monitor.solved:
        return None
    return (
        "the model never calls a tool, so it cannot learn to. Warm-start it on a few demonstrations (agent-r1 sft), "
        "show a call in the prompt, or check that model.tool_format is the one this model was trained with"
    )


def _tool_calls_collapse(monitor: HealthMonitor) -> str | None:
    recent, best = monitor.recent(TOOL_CALLS), monitor.best_window(TOOL_CALLS)
    if not monitor.has_tools or recent is None or best is None or best < 0.5 or recent > 0.3 * best or monitor.solved:
        return None
    return (
        f"tool calls are collapsing: {recent:.2f} per episode, once {best:.2f}, and the task is not solved. Reward "
        "useful calls (process rewards, reward.process_weight), lower optimizer.learning_rate, or hold the policy with "
        "algorithm.kl.coefficient"
    )


def _malformed_calls(monitor: HealthMonitor) -> str | None:
    recent = monitor.recent(PARSE_ERRORS)
    if not monitor.has_tools or recent is None or recent <= 0.5:
        return None
    return (
        f"{recent:.0%} of the actions are malformed tool calls. Check that model.tool_format is the one this model was "
        "trained with, allow longer actions (rollout.max_tokens), or warm-start on well-formed calls (agent-r1 sft)"
    )


def _success_falls(monitor: HealthMonitor) -> str | None:
    recent, best = monitor.recent(SUCCESS, LONG_WINDOW), monitor.best_window(SUCCESS)
    if recent is None or best is None or best < 0.3 or recent > 0.5 * best:
        return None
    return (
        f"success has fallen to {recent:.2f}, once {best:.2f}: the policy is getting worse. Lower "
        "optimizer.learning_rate or optimizer.gradient_clip, hold the policy with algorithm.kl.coefficient, and resume "
        "from an earlier checkpoint"
    )


def _held_out_falls(monitor: HealthMonitor, success: float, before: float) -> str:
    message = f"held-out success has fallen to {success:.1%}, before training {before:.1%}: "
    recent, start = monitor.recent(PROCESS), monitor.at_first(PROCESS)
    if recent is not None and start is not None and recent > 1.2 * start:
        return message + (
            f"meanwhile process rewards rise from {start:.3f} to {recent:.3f} per episode and may be what is learned. "
            "Read conversations in the run's trajectories, and try reward.process_weight=0"
        )
    return message + (
        "what is rewarded in training is not what is evaluated, or the policy is getting worse. Read conversations in "
        "the run's trajectories, and lower optimizer.learning_rate"
    )


def _entropy_collapse(monitor: HealthMonitor) -> str | None:
    recent, start = monitor.recent(ENTROPY), monitor.at_first(ENTROPY)
    if recent is None or start is None or monitor.solved:
        return None
    if recent > 0.1 * start or start < 0.05:
        return None
    return (
        f"entropy is collapsing: {recent:.3f}, at first {start:.3f}, and the task is not solved. The policy stops "
        "exploring: lower optimizer.learning_rate, raise algorithm.loss.clip_high, set algorithm.entropy_coefficient, "
        "or raise rollout.temperature"
    )


def _no_spread(monitor: HealthMonitor) -> str | None:
    """Reported early if groups never had any spread; otherwise a few batches without any may be chance."""
    name = GROUPS_WITH_SPREAD
    never_had_any = monitor.best_window(name) == 0.0
    alive = monitor.recent(name, WINDOW if never_had_any else LONG_WINDOW)
    # A critic, or a baseline that is not the group's, learns from groups without spread too.
    credited = monitor.recent(CREDITED_TRAJECTORIES)
    if alive is None or alive > 0.01 or (credited is not None and credited > 0.02):
        return None
    reward = monitor.recent(OUTCOME) or 0.0
    if monitor.solved:
        return (
            f"nearly all rollouts succeed (reward {reward:.2f}) and no group has any spread: nothing is left to learn "
            "from these tasks. Stop here, or use harder ones"
        )
    return (
        f"no group has any spread of reward (mean {reward:.2f}), so nothing is learned. Raise rollout.group_size or "
        "rollout.temperature, use easier tasks, reward partial progress, or check that the reward function tells good "
        "answers from bad ones"
    )


def _truncated(monitor: HealthMonitor) -> str | None:
    cut, episodes = monitor.recent(CUT_ACTIONS), monitor.recent(TRUNCATED)
    steps = monitor.recent(EPISODE_STEPS)
    if cut is not None and steps and cut / steps > 0.5:
        return (
            f"{cut / steps:.0%} of the actions are cut by the token limit: the model cannot finish them. Raise "
            "rollout.max_tokens, ask for shorter ones, or penalise long ones (algorithm.overlong_fraction)"
        )
    if episodes is not None and episodes > 0.5:
        return (
            f"{episodes:.0%} of the episodes are truncated: most never earn their outcome. Raise "
            "rollout.max_steps, rollout.max_tokens or rollout.context_length, or make the task shorter"
        )
    return None


def _kl_spike(monitor: HealthMonitor) -> str | None:
    # The divergence from the start begins at 0 and climbs in every run: what is usual is known only after some steps.
    for name, what, num_known in (
        (REFERENCE_KL, "from the starting policy", LONG_WINDOW),
        (APPROX_KL, "in one step", 1),
    ):
        recent, earlier = monitor.recent(name), [abs(value) for value in monitor.earlier(name)]
        usual = statistics.median(earlier) if earlier else 0.0
        if recent is not None and len(earlier) >= num_known and abs(recent) > max(10.0 * usual, 0.1):
            return (
                f"the policy moves too far {what}: a divergence of {abs(recent):.3f} per token, usually {usual:.3f}. "
                "Lower optimizer.learning_rate or algorithm.epochs, or raise algorithm.kl.coefficient"
            )
    return None


def _engine_difference(monitor: HealthMonitor) -> str | None:
    recent, earlier = monitor.recent(LOGPROB_DIFFERENCE), monitor.earlier(LOGPROB_DIFFERENCE)
    usual = statistics.median(earlier) if earlier else 0.0
    age = monitor.recent(STALENESS_MEAN)
    if age and recent is not None:
        # Older policies sampled some of the tokens: there, a difference between engine and trainer is expected.
        return _stale_tokens(age, recent) if recent > MUCH_MOVED else None
    if recent is None or recent < 0.05 or (earlier and recent < 3.0 * usual and usual < 0.05):
        return None
    return (
        f"engine and trainer disagree about the same tokens: log-probs differ by {recent:.3f} on average. Set "
        "algorithm.off_policy.name=token, use model.dtype=float32, and check that rollout.temperature, rollout.top_p "
        "and rollout.top_k are what the engine really samples with"
    )


def _stale_tokens(age: float, difference: float) -> str:
    return (
        f"the policy moves far between sampling and training: tokens are {age:.1f} updates old, and their log-probs "
        f"changed by {difference:.3f} on average. Lower rollout.max_staleness or optimizer.learning_rate, or mask the "
        "tokens that changed most with algorithm.off_policy.name=mask"
    )


def _cache_too_small(monitor: HealthMonitor) -> str | None:
    lost, episodes = monitor.recent(PREEMPTIONS), monitor.recent(EPISODES)
    if lost is None or not episodes or lost <= 0.25 * episodes:
        return None
    return (
        f"the engine's cache is too small for {episodes:.0f} episodes: {lost:.0f} times in a step one of them lost its "
        "place in it and was computed again. Raise engine.kv_memory (a number of tokens, or a share of memory), or "
        "lower rollout.concurrency"
    )


_CHECKS: Mapping[str, Callable[[HealthMonitor], str | None]] = {
    "tools never called": _tools_never_called,
    "tool calls collapse": _tool_calls_collapse,
    "malformed calls": _malformed_calls,
    "success falls": _success_falls,
    "entropy collapses": _entropy_collapse,
    "no spread": _no_spread,
    "truncated": _truncated,
    "KL spikes": _kl_spike,
    "engine differs": _engine_difference,
    "cache too small": _cache_too_small,
}
