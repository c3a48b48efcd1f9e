"""Whole rollouts: an episode, the trajectory it becomes when it is scored, and the group of one task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from agent_r1.types.messages import TokenIds
from agent_r1.types.pickling import quickly_pickled
from agent_r1.types.steps import Step
from agent_r1.types.tasks import Task


class StopReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    """The environment terminated the episode."""
    MAX_STEPS = "max_steps"
    """The maximum number of steps was reached."""
    MAX_TOKENS = "max_tokens"
    """The last action was cut by the token limit and the flow does not continue."""
    CONTEXT_FULL = "context_full"
    """The next prompt no longer fits the model's context."""
    TIMEOUT = "timeout"
    """The episode's deadline passed."""
    ENV_ERROR = "env_error"
    """`reset` or `step` of the environment raised."""
    TOOL_ERROR = "tool_error"
    """The tool runner failed. A tool that raises is not a failure: the model reads its error."""
    ENGINE_ERROR = "engine_error"
    """The engine could not complete a request."""
    REWARD_ERROR = "reward_error"
    """A reward function raised or returned something that is not a finite number."""
    FLOW_ERROR = "flow_error"
    """The flow's own code raised."""
    AGENT_ERROR = "agent_error"
    """The user's own agent raised, was killed, exited with an error, or never called the model."""

    @property
    def is_truncation(self) -> bool:
        """The episode was cut at a limit, so a critic's value may be used for its last state."""
        return self in _TRUNCATIONS

    @property
    def is_failure(self) -> bool:
        """The episode failed for a reason outside the policy: it is retried, and never counted as a zero reward."""
        return self is not StopReason.DONE and not self.is_truncation


_TRUNCATIONS = frozenset({StopReason.MAX_STEPS, StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL})


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """What a flow returns: the steps of one rollout and why it stopped. Reward functions read this."""

    steps: tuple[Step, ...]
    """In order."""
    stop_reason: StopReason
    """Why it ended."""
    next_prompt_ids: TokenIds | None = None
    """For truncated episodes: the prompt after the last step, from whose value a critic bootstraps."""
    next_privileged: str | None = None
    """`Observation.privileged` of that state."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers to be averaged over episodes, for example `tool/price/calls`."""
    given_answer: str | None = None
    """The answer that the flow gives; None: the text of the last action."""
    posted_reward: float | None = None
    """The outcome reward that the flow received itself; None: the reward function scores the episode."""

    @property
    def final_text(self) -> str:
        """The text of the last action, be it a cut sentence, a tool call or an answer (only the answer where the format
        marks one), or the answer that the flow gives; "" without an action. Rewards should read `answer`."""
        if self.given_answer is not None:
            return self.given_answer
        if not self.steps:
            return ""
        action = self.steps[-1].action
        return action.text if action.final_answer is None else action.final_answer

    @property
    def answer(self) -> str:
        """`final_text` where it is an answer, the text of a finished last turn: "" when the episode was cut, or its
        last action calls a tool, is malformed or was cut by the token limit. A right number in a call, or in a sentence
        that was never ended, is not an answer."""
        if not self.steps or self.stop_reason is not StopReason.DONE:
            return ""
        if self.given_answer is not None:
            return self.given_answer
        action = self.steps[-1].action
        return "" if action.tool_calls or action.parse_error is not None else self.final_text

    @property
    def num_tool_calls(self) -> int:
        """Well-formed tool calls over all steps."""
        return sum(len(step.action.tool_calls) for step in self.steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedAttempt:
    """A failed attempt at a rollout that was retried."""

    stop_reason: StopReason
    """Why it failed."""
    error: str
    """Its traceback."""
    num_steps: int = 0
    """Steps before the failure."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of these steps; not part of any average."""


@quickly_pickled
@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """A scored rollout of one member of a group."""

    task_id: str
    """The row it came from."""
    group_id: int
    """All rollouts of one task in one batch have the same one; unique in the batch."""
    member: int
    """Which rollout of the group; -1 is the greedy one."""
    steps: tuple[Step, ...]
    """In order."""
    outcome_reward: float
    """The reward of the whole episode. 0 when the rollout failed (see `is_failure`)."""
    stop_reason: StopReason
    """Why it ended."""
    data_source: str = "default"
    """The row's data source."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    """Other numbers that the reward function returned."""
    vote: str = ""
    """What maj@k counts: the reward function's `answer`, else the episode's; "" is no vote."""
    next_prompt_ids: TokenIds | None = None
    """For truncated episodes: the prompt after the last step."""
    next_privileged: str | None = None
    """`Observation.privileged` of that state."""
    error: str | None = None
    """The traceback of a failed rollout."""
    num_retries: int = 0
    """Failed attempts before this one."""
    failed_attempts: tuple[FailedAttempt, ...] = ()
    """One per retry."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers to be averaged over episodes."""
    given_answer: str | None = None
    """The answer that the flow gave; None: the text of the last action."""
    posted_reward: float | None = None
    """The outcome reward that the flow received itself; None: the reward function scored the episode."""

    @property
    def episode(self) -> Episode:
        """What the reward function was given."""
        return Episode(
            steps=self.steps,
            stop_reason=self.stop_reason,
            next_prompt_ids=self.next_prompt_ids,
            next_privileged=self.next_privileged,
            metrics=self.metrics,
            given_answer=self.given_answer,
            posted_reward=self.posted_reward,
        )

    @property
    def is_failure(self) -> bool:
        """Whether the rollout failed; it is then left out of baselines, loss and averages."""
        return self.stop_reason.is_failure

    @property
    def process_reward(self) -> float:
        """The sum of the steps' rewards."""
        return sum(step.reward for step in self.steps)

    @property
    def num_tool_calls(self) -> int:
        """Well-formed tool calls over all steps."""
        return sum(len(step.action.tool_calls) for step in self.steps)

    @property
    def num_action_tokens(self) -> int:
        """Sampled tokens over all steps."""
        return sum(len(step.action_ids) for step in self.steps)

    @property
    def ended_by_call(self) -> bool:
        """Whether a call of one of its tools ended it, so that no turn can follow."""
        last = self.steps[-1] if self.steps else None
        return last is not None and last.done and bool(last.action.tool_calls and last.observation.tools)

    @property
    def parents(self) -> tuple[int, ...]:
        """The index of the step that each step continues, -1 for none. Raises ValueError where it is no earlier one."""
        parents = tuple(index - 1 if step.parent is None else step.parent for index, step in enumerate(self.steps))
        if any(not -1 <= parent < index for index, parent in enumerate(parents)):
            raise ValueError(f"the parent of a step must be an earlier one, or -1; found {list(parents)}")
        return parents

    @property
    def success(self) -> float:
        """`reward_parts["success"]` when the reward function reports it, else 1 for an outcome reward of 1 or more."""
        return float(self.reward_parts.get("success", self.outcome_reward >= 1.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The rollouts of one task in one batch."""

    task: Task
    """The row."""
    group_id: int
    """The index of the group in the batch; where batches overlap, in the run."""
    trajectories: tuple[Trajectory, ...]
    """Its members, failed ones included."""
    greedy: Trajectory | None = None
    """A rollout at temperature 0, for algorithms that compare with it. Not a member."""
    dropped: bool = False
    """Too few members finished for a comparison; the group is not trained on."""

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)

    @property
    def valid(self) -> tuple[Trajectory, ...]:
        """The members that did not fail."""
        return tuple(t for t in self.trajectories if not t.is_failure)

    @property
    def learnable(self) -> tuple[Trajectory, ...]:
        """The valid members with at least one step; empty for a dropped group."""
        return () if self.dropped else tuple(t for t in self.valid if t.steps)
