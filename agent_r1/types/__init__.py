"""The records that all packages share.

A dataset row becomes a `Task`. An environment shows the model an `Observation`, the model answers with an `Action`, and
the two together with the exact token ids are one `Step` of a Markov decision process. A flow returns an `Episode`
(steps and why it stopped); scoring it gives a `Trajectory`.

    row -> Task -> [Observation -> Action -> StepResult] * n -> Episode -> Trajectory

All records are frozen and keyword-only. This package imports only the standard library, so environments and tools can
be written and tested without torch.
"""

from agent_r1.types.credit import LOG_RATIO_BOUND, Numbers, StepCredit, TrajectoryCredit
from agent_r1.types.episodes import Episode, FailedAttempt, Group, StopReason, Trajectory
from agent_r1.types.messages import (
    MAX_ARGUMENT_DEPTH,
    TEXT_ARGUMENT,
    Message,
    TokenIds,
    ToolSchema,
    content_text,
    media_in,
)
from agent_r1.types.own_values import own_values
from agent_r1.types.pickling import quickly_pickled
from agent_r1.types.printable import one_line, printable
from agent_r1.types.sampling import Completion, FinishReason, SamplingParams
from agent_r1.types.sequences import common_prefix
from agent_r1.types.steps import Action, Observation, Step, StepResult, ToolCall, turn_call_id
from agent_r1.types.tasks import Task

__all__ = [
    "LOG_RATIO_BOUND",
    "MAX_ARGUMENT_DEPTH",
    "TEXT_ARGUMENT",
    "Action",
    "Completion",
    "Episode",
    "FailedAttempt",
    "FinishReason",
    "Group",
    "Message",
    "Numbers",
    "Observation",
    "SamplingParams",
    "Step",
    "StepCredit",
    "StepResult",
    "StopReason",
    "Task",
    "TokenIds",
    "ToolCall",
    "ToolSchema",
    "Trajectory",
    "TrajectoryCredit",
    "common_prefix",
    "content_text",
    "media_in",
    "one_line",
    "own_values",
    "printable",
    "quickly_pickled",
    "turn_call_id",
]
