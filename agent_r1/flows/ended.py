"""What a flow's `run` returned, checked before anything reads it."""

from __future__ import annotations

from typing import Any

from agent_r1.errors import ConfigError
from agent_r1.flows.base import AgentFlowBase
from agent_r1.types import Episode, StopReason


def checked_episode(flow: AgentFlowBase, returned: Any) -> Episode:
    """What `flow.run` returned, checked to be an episode with steps."""
    name = type(flow).__name__
    if not isinstance(returned, Episode):
        raise ConfigError(
            f"{name}.run must return an Episode, got {type(returned).__name__}; "
            "end it with: return self.episode(StopReason.DONE)"
        )
    reason = returned.stop_reason
    if not isinstance(reason, StopReason) or reason.is_failure:
        raise ConfigError(
            f"{name}.run ended its episode with {reason!r}; end it with StopReason.DONE, or at a limit with MAX_STEPS, "
            "MAX_TOKENS or CONTEXT_FULL. For a failure raise an exception: the rollout is retried"
        )
    answer = returned.given_answer
    if not isinstance(answer, str | None):
        raise ConfigError(
            f"{name}.run gave the answer {answer!r:.80} ({type(answer).__name__}); an answer is text, which rewards "
            "compare: self.episode(StopReason.DONE, answer=str(...))"
        )
    if not returned.steps:
        raise ConfigError(f"{name}.run recorded no step; call self.record(turn, ...) for what should be learned from")
    for index, step in enumerate(returned.steps):
        if step.parent is not None and not -1 <= step.parent < index:
            raise ConfigError(
                f"{name}.run recorded step {index} with parent={step.parent}; expected an earlier step, or -1"
            )
    return returned
