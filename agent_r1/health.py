"""Says in plain words when learning goes wrong, and what to change.

`HealthMonitor` reads the metrics of one step after the other. Each kind of trouble is reported when it begins, and
again only after it had gone. It has no other memory than the metrics it was shown, so a resumed run shows it the old
ones first.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping

Metrics = Mapping[str, float]

WINDOW = 3
"""Steps over which a number is averaged before it is judged: one odd batch is no trouble."""

SOLVED = 0.9
"""Above this success a policy may well be sure of itself, and its groups may all succeed."""


class HealthMonitor:
    """Watches the metrics of a run.

    >>> monitor = HealthMonitor(has_tools=True)
    >>> [len(monitor.look({"episode/tool_calls": 0.0, "reward/success": 0.0})) for _ in range(4)]
    [0, 0, 1, 0]
    """

    def __init__(self, *, has_tools: bool) -> None:
        self._has_tools = has_tools
        self._history: list[dict[str, float]] = []
        self._active: set[str] = set()
        self.warnings: list[str] = []

    def look(self, metrics: Metrics) -> list[str]:
        """The warnings that begin with this step."""
        self._history.append(dict(metrics))
        new: list[str] = []
        for name, check in _CHECKS.items():
            message = check(self) if len(self._history) >= WINDOW else None
            if message is not None and name not in self._active:
                new.append(message)
            (self._active.discard if message is None else self._active.add)(name)
        self.warnings += [f"step {len(self._history)}: {message}" for message in new]
        return new

    def replay(self, steps: Iterable[Metrics]) -> None:
        """Look at steps that were reported before."""
        for metrics in steps:
            self.look(metrics)

    # --- what the checks ask ---------------------------------------------------------------------------------------

    @property
    def has_tools(self) -> bool:
        """The policy has tools to call."""
        return self._has_tools

    def recent(self, name: str) -> float | None:
        """The mean over the last steps; None when one of them does not have it."""
        values = [step[name] for step in self._history[-WINDOW:] if name in step]
        return statistics.fmean(values) if len(values) == WINDOW else None

    def earlier(self, name: str) -> list[float]:
        """All values before the last steps."""
        return [step[name] for step in self._history[:-WINDOW] if name in step]

    def best_window(self, name: str) -> float:
        """The largest mean over a window so far."""
        window: deque[float] = deque(maxlen=WINDOW)
        best = 0.0
        for step in self._history:
            if name in step:
                window.append(step[name])
                best = max(best, statistics.fmean(window)) if len(window) == WINDOW else best
        return best

    @property
    def solved(self) -> bool:
        """The task is as good as solved."""
        return (self.recent("reward/success") or 0.0) >= SOLVED


def _tools_never_called(monitor: HealthMonitor) -> str | None:
    if not monitor.has_tools or monitor.best_window("episode/tool_calls") > 0.01 or monitor.solved:
        return None
    return (
        "the model calls no tool at all: it cannot learn to. Warm-start it on a few demonstrations (agent-r1 sft), say "
        "in the prompt how a call looks, or check that model.tool_format is the one this model was trained with"
    )


def _tool_calls_collapse(monitor: HealthMonitor) -> str | None:
    recent, best = monitor.recent("episode/tool_calls"), monitor.best_window("episode/tool_calls")
    if not monitor.has_tools or recent is None or best < 0.5 or recent > 0.3 * best or monitor.solved:
        return None
    return (
        f"tool calls are collapsing: {recent:.2f} an episode, once {best:.2f}. Reward useful calls (process rewards, "
        "reward.process_weight), lower optimizer.learning_rate, or hold the policy with algorithm.kl.coefficient"
    )


def _entropy_collapse(monitor: HealthMonitor) -> str | None:
    recent, earlier = monitor.recent("policy/entropy"), monitor.earlier("policy/entropy")
    if recent is None or not earlier or monitor.solved:
        return None
    start = statistics.fmean(earlier[:WINDOW])
    if recent > 0.1 * start or start < 0.05:
        return None
    return (
        f"entropy is collapsing: {recent:.3f}, at first {start:.3f}, and the task is not solved. The policy stops "
        "exploring: lower optimizer.learning_rate, raise algorithm.loss.clip_high, set algorithm.entropy_coefficient, "
        "or raise rollout.temperature"
    )


def _no_spread(monitor: HealthMonitor) -> str | None:
    alive = monitor.recent("reward/groups_with_spread")
    if alive is None or alive > 0.02:
        return None
    reward = monitor.recent("reward/outcome") or 0.0
    if monitor.solved:
        return (
            f"all groups succeed (reward {reward:.2f}) and none has any spread: nothing is left to learn from these "
            "tasks. Stop here, or use harder ones"
        )
    return (
        f"no group has any spread of reward (mean {reward:.2f}), so nothing is learned. Raise rollout.group_size or "
        "rollout.temperature, use easier tasks, reward parts of the way, or check that the reward function can tell a "
        "good answer from a bad one"
    )


def _truncated(monitor: HealthMonitor) -> str | None:
    cut, episodes = monitor.recent("episode/cut_actions"), monitor.recent("episode/truncated")
    steps = monitor.recent("episode/steps")
    if cut is not None and steps and cut / steps > 0.5:
        return (
            f"{cut / steps:.0%} of the answers are cut by the token limit: the model cannot finish what it says. Raise "
            "rollout.max_tokens, ask for shorter answers, or charge long ones (algorithm.overlong_fraction)"
        )
    if episodes is not None and episodes > 0.5:
        return (
            f"{episodes:.0%} of the episodes are cut before their end: most never earn their outcome. Raise "
            "rollout.max_steps or rollout.context_length, or make the task shorter"
        )
    return None


def _kl_spike(monitor: HealthMonitor) -> str | None:
    for name, what in (("policy/reference_kl", "from the starting policy"), ("policy/approx_kl", "in one step")):
        recent, earlier = monitor.recent(name), [abs(value) for value in monitor.earlier(name)]
        usual = statistics.median(earlier) if earlier else 0.0
        if recent is not None and earlier and abs(recent) > max(10.0 * usual, 0.1):
            return (
                f"the policy moves too far {what}: a divergence of {abs(recent):.3f} a token, usually {usual:.3f}. "
                "Lower optimizer.learning_rate or algorithm.epochs, or raise algorithm.kl.coefficient"
            )
    return None


def _engine_difference(monitor: HealthMonitor) -> str | None:
    recent, earlier = monitor.recent("offpolicy/logprob_difference"), monitor.earlier("offpolicy/logprob_difference")
    usual = statistics.median(earlier) if earlier else 0.0
    if recent is None or recent < 0.05 or (earlier and recent < 3.0 * usual and usual < 0.05):
        return None
    return (
        f"engine and trainer disagree about the same tokens: log-probs differ by {recent:.3f} on average. Set "
        "algorithm.off_policy.name=token, use model.dtype=float32, and check that rollout.temperature, top_p and top_k "
        "are what the engine really samples with"
    )


_CHECKS: Mapping[str, Callable[[HealthMonitor], str | None]] = {
    "tools never called": _tools_never_called,
    "tool calls collapse": _tool_calls_collapse,
    "entropy collapses": _entropy_collapse,
    "no spread": _no_spread,
    "truncated": _truncated,
    "KL spikes": _kl_spike,
    "engine differs": _engine_difference,
}
