"""What the driver of a run and its rollout workers send each other. Messages travel in batches, in both directions.

driver -> worker: StartRollout, CancelRollout, EngineAnswer, ClockChanged
worker -> driver: EngineRequest, CancelRequest, RolloutFinished, RolloutRaised
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_r1.images import Picture
from agent_r1.rollout.group_plans import Member
from agent_r1.types import Action, Completion, Observation, SamplingParams, Task, TokenIds, quickly_pickled


@quickly_pickled
@dataclass(frozen=True, kw_only=True, slots=True)
class StartRollout:
    """Roll out one member of a group, with its retries."""

    number: int
    """The rollout's number in the run; answers carry it."""
    task: Task
    group_id: int
    member: Member
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRollout:
    """The result of a rollout is no longer needed."""

    number: int


@quickly_pickled
@dataclass(frozen=True, kw_only=True, slots=True)
class EngineAnswer:
    """The engine's answer to a request: a completion, or why there is none."""

    number: int
    """The request's number in its worker."""
    completion: Completion | None = None
    action: Action | None = None
    """The parsed turn, from an engine that takes messages."""
    error: str | None = None
    is_refusal: bool = False
    """The request itself can never be served."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockChanged:
    """The deadlines of episodes stand still, or run again."""

    is_stopped: bool


@quickly_pickled
@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRequest:
    """One completion that an episode asks for: token ids, or for an engine behind a chat API an observation."""

    number: int
    sampling: SamplingParams
    prompt_ids: TokenIds = ()
    pictures: tuple[Picture, ...] = ()
    """The images of the prompt that this worker has not sent yet, or not for long."""
    observation: Observation | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRequest:
    """The episode no longer waits for this completion."""

    number: int


@quickly_pickled
@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutFinished:
    """The trajectory of a rollout, valid or failed."""

    number: int
    trajectory: bytes
    """Pickled once, where it was made."""
    pictures: tuple[Picture, ...] = ()
    """Images of the prompt after a truncated episode, from whose value a critic bootstraps: no request had them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutRaised:
    """A rollout ended with an error that is no failure of an episode: a bug, which ends the run."""

    number: int
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerInfo:
    """A worker that is ready."""

    host: str
    pid: int
    has_torch: bool
    """Whether something in it imported torch: code of the recipe, or a tokenizer that needs `transformers`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StartFailure:
    """Why a worker cannot work, and a new one could not either."""

    error: str


ToWorker = StartRollout | CancelRollout | EngineAnswer | ClockChanged
FromWorker = EngineRequest | CancelRequest | RolloutFinished | RolloutRaised
