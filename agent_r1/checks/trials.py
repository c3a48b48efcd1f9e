"""Trial episodes with the model itself: nothing is trained, nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from agent_r1.checks.report import Result
from agent_r1.engines import Engine, takes_messages
from agent_r1.errors import RolloutsFailingError
from agent_r1.findings import Finding
from agent_r1.learner import make_compute, score_samples
from agent_r1.learner.packing import Sample
from agent_r1.training import RunComponents, RunPlan, make_rollout
from agent_r1.types import Completion, Group, SamplingParams, Step, StopReason, Task, TokenIds, Trajectory

_MAX_PARSE_ERRORS = 0.5
_MAX_CUT = 0.5
_MAX_GAP = {"float32": 1e-3, "bfloat16": 0.1}
"""Mean difference of log-probs that rounding explains, by the coarser of the two number types."""


class RecordingEngine:
    """Wraps an engine and records every prompt with what was sampled after it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.samples: set[tuple[TokenIds, TokenIds]] = set()

    @property
    def policy_version(self) -> int:
        """Of the engine."""
        return self._engine.policy_version

    @property
    def context_length(self) -> int:
        """Of the engine."""
        return self._engine.context_length

    @property
    def adapters(self) -> Collection[str]:
        """Of the engine."""
        return self._engine.adapters

    @property
    def pauses_during_update(self) -> bool:
        """Of the engine."""
        return self._engine.pauses_during_update

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Sample with the engine and record the result."""
        completion = await self._engine.generate(prompt_ids, sampling)
        self.samples.add((tuple(prompt_ids), completion.token_ids))
        return completion

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Pause the engine."""
        return self._engine.paused()

    async def update_weights(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Of the engine."""
        await self._engine.update_weights(weights, version)

    async def close(self) -> None:
        """Of the engine."""
        await self._engine.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Trials:
    """The trial episodes."""

    groups: tuple[Group, ...]
    """One per task."""
    samples: frozenset[tuple[TokenIds, TokenIds]]
    """Everything the engine sampled, with its prompt."""

    @property
    def trajectories(self) -> list[Trajectory]:
        """All trial episodes."""
        return [trajectory for group in self.groups for trajectory in group]

    @property
    def steps(self) -> list[Step]:
        """The steps of those that did not fail."""
        return [step for trajectory in self.trajectories if not trajectory.is_failure for step in trajectory.steps]


async def run_trials(
    plan: RunPlan,
    components: RunComponents,
    tasks: Sequence[Task],
    *,
    members: int,
    on_finished: Callable[[Trajectory], None],
) -> Trials:
    """`members` episodes of each task, sampled as training would. Raises `RolloutsFailingError` when all fail."""
    settings = plan.config.rollout
    engine = RecordingEngine(components.engine)
    rollout = components.rollout
    if not takes_messages(plan.config):
        rollout = make_rollout(plan, components.renderer, engine, components.tools, components.gateway)
    sampling = SamplingParams(
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
    )
    async with components.opened():
        groups = await rollout.run(
            tasks, group_size=members, sampling=sampling, seed=plan.config.trainer.seed, on_finished=on_finished
        )
    return Trials(groups=tuple(groups), samples=frozenset(engine.samples))


def failed_trials(error: RolloutsFailingError) -> Result:
    """The result when every trial episode failed."""
    finding = Finding(rule="episodes run to their end", observed=str(error), fix="Fix what raised")
    return Result(title="trial episodes", findings=(finding,))


def episodes_result(trials: Trials) -> Result:
    """Whether episodes run to their end, and what cuts them."""
    findings: list[Finding] = []
    trajectories = trials.trajectories
    failed = [trajectory for trajectory in trajectories if trajectory.is_failure]
    if failed:
        reasons = ", ".join(f"{count} {reason}" for reason, count in Counter(t.stop_reason for t in failed).items())
        observed = f"{len(failed)} of {len(trajectories)} failed ({reasons}); the first one:\n{failed[0].error}"
        findings.append(Finding(rule="episodes run to their end", observed=observed, fix="Fix what raised"))
    retried = sum(trajectory.num_retries for trajectory in trajectories)
    if retried > sum(trajectory.num_retries for trajectory in failed):
        observed = f"{retried} attempts failed before one succeeded"
        fix = "Look for what fails occasionally: a run retries it, and is slower"
        findings.append(
            Finding(rule="episodes run at the first attempt", observed=observed, fix=fix, severity="warning")
        )
    findings += _cuts([trajectory for trajectory in trajectories if not trajectory.is_failure])
    stops = ", ".join(f"{reason} {count}" for reason, count in Counter(t.stop_reason for t in trajectories).items())
    return Result(title="trial episodes", findings=tuple(findings), seen=f"{len(trajectories)} episodes: {stops}")


def _cuts(trajectories: Sequence[Trajectory]) -> list[Finding]:
    findings: list[Finding] = []
    if not trajectories:
        return findings
    full = sum(trajectory.stop_reason is StopReason.CONTEXT_FULL for trajectory in trajectories)
    if full > _MAX_CUT * len(trajectories):
        observed = f"{full} of {len(trajectories)} episodes ran out of context"
        fix = "Raise rollout.context_length, lower rollout.max_steps or use a context policy (env.context)"
        findings.append(Finding(rule="episodes fit the context", observed=observed, fix=fix))
    actions = sum(len(trajectory.steps) for trajectory in trajectories)
    cut = sum(trajectory.metrics.get("episode/cut_actions", 0.0) for trajectory in trajectories)
    if cut > _MAX_CUT * max(1, actions):
        observed = f"{cut:.0f} of {actions} actions were cut by rollout.max_tokens"
        fix = "Raise rollout.max_tokens, or warm-start the model so that it ends its turns"
        findings.append(Finding(rule="actions end by themselves", observed=observed, fix=fix, severity="warning"))
    return findings


def reward_result(trials: Trials) -> Result:
    """Whether the members of a group earn different rewards."""
    groups = [group for group in trials.groups if len(group.valid) > 1]
    totals = [[round(t.outcome_reward + t.process_reward, 9) for t in group.valid] for group in groups]
    if not totals:
        return Result(title="rewards", seen="no group has two episodes to compare", skipped=True)
    spread = sum(len(set(group)) > 1 for group in totals)
    every = [reward for group in totals for reward in group]
    seen = f"mean {sum(every) / len(every):.3f}, {spread} of {len(totals)} groups have members that differ"
    if spread:
        return Result(title="rewards", seen=seen)
    same = f"every episode earned {every[0]:g}" if len(set(every)) == 1 else "members of a group all earned the same"
    fix = (
        "Algorithms that compare members learn nothing from that. Try more groups (--groups), easier rows, a warm "
        "start, a higher rollout.temperature, or a reward with more than two values"
    )
    finding = Finding(rule="rewards differ within groups", observed=f"{same} in {len(totals)} groups", fix=fix)
    return Result(title="rewards", findings=(finding,), seen=seen)


def tools_result(trials: Trials) -> Result:
    """Whether the model calls the tools it is offered, with well-formed calls."""
    steps = trials.steps
    if not any(step.observation.tools for step in steps):
        return Result(title="tool use", seen="the model is offered no tools", skipped=True)
    calls = Counter(call.name for step in steps for call in step.action.tool_calls)
    errors = sum(step.action.parse_error is not None for step in steps)
    names = {schema["function"]["name"] for step in steps for schema in step.observation.tools}
    findings: list[Finding] = []
    if not calls:
        fix = (
            "Warm-start the model on demonstrations (agent-r1 sft), name the tools in the prompt, or check "
            "model.tool_format. A model that never calls a tool never learns to"
        )
        observed = f"no call in {len(steps)} actions"
        if errors:
            observed += f"; {errors} were malformed, for example: {_first_error(steps)}"
        findings.append(Finding(rule="tools are called", observed=observed, fix=fix))
    elif not names & set(calls):
        observed = f"only unknown tools were called: {', '.join(sorted(calls)[:5])}"
        findings.append(Finding(rule="tools are called", observed=observed, fix="Show the model its tools' names"))
    elif errors > _MAX_PARSE_ERRORS * len(steps):
        observed = f"{errors} of {len(steps)} actions were malformed, for example: {_first_error(steps)}"
        fix = "Check model.tool_format, raise rollout.max_tokens, or warm-start the model"
        findings.append(Finding(rule="calls are well formed", observed=observed, fix=fix, severity="warning"))
    counted = ", ".join(f"{name} {count}" for name, count in calls.most_common(5)) or "none"
    return Result(title="tool use", findings=tuple(findings), seen=f"calls: {counted}; malformed actions: {errors}")


def _first_error(steps: Sequence[Step]) -> str:
    return next(str(step.action.parse_error) for step in steps if step.action.parse_error is not None)


def tokens_result(trials: Trials) -> Result:
    """Whether every token that would carry loss was sampled, after the prompt it is trained after."""
    if not trials.samples:
        return Result(title="tokens in the loss", seen="the server tells no token ids", skipped=True)
    wrong = [
        f"step {number} of '{trajectory.task_id}'"
        for trajectory in trials.trajectories
        if not trajectory.is_failure
        for number, step in enumerate(trajectory.steps)
        if (step.prompt_ids, step.action_ids) not in trials.samples
    ]
    count = sum(len(step.action_ids) for step in trials.steps)
    if not wrong:
        return Result(title="tokens in the loss", seen=f"all {count} were sampled after their prompt")
    observed = f"{len(wrong)} steps hold tokens that the engine never sampled after their prompt, the first: {wrong[0]}"
    fix = "Record what `act` returned (`self.record(turn, ...)`): do not tokenise text again or join turns by hand"
    return Result(
        title="tokens in the loss",
        findings=(Finding(rule="only sampled tokens carry loss", observed=observed, fix=fix),),
    )


def agreement_result(trials: Trials, plan: RunPlan, components: RunComponents) -> Result:
    """Whether trainer and engine compute the same log-probs for the sampled tokens."""
    steps = [step for step in trials.steps if step.action_ids]
    if not steps or components.policy is None or tokens_result(trials).findings:
        return Result(title="engine and trainer", seen="no sampled tokens to compare", skipped=True)
    compute = make_compute(plan.config, components.policy)
    samples = [Sample.of_step(step.prompt_ids, step.action_ids) for step in steps]
    scored = score_samples(components.policy, samples, compute).tolist()
    sampled = [logprob for step in steps for logprob in step.rollout_logprobs]
    gaps = [abs(one - other) for one, other in zip(scored, sampled, strict=True)]
    mean, largest = sum(gaps) / len(gaps), max(gaps)
    seen = f"log-probs of {len(gaps)} tokens differ by {mean:.2g} on average, {largest:.2g} at most"
    exact = compute.autocast_dtype is None and plan.config.model.dtype == "float32"
    exact = exact and plan.config.engine.dtype in ("auto", "float32") and compute.device.type == "cpu"
    allowed = _MAX_GAP["float32" if exact else "bfloat16"]
    if mean <= allowed:
        return Result(title="engine and trainer", seen=seen)
    fix = "Use the same dtype for both, or correct for it: algorithm.off_policy.name=token"
    finding = Finding(rule="engine and trainer agree", observed=f"{seen}; {allowed:g} would be rounding", fix=fix)
    return Result(title="engine and trainer", findings=(finding,), seen=seen)
