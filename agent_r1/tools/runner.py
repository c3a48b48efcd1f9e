"""Running one call, so that whatever a tool does becomes something the model can read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agent_r1.errors import EpisodeError, did_you_mean
from agent_r1.tools.base import BaseTool, ToolContext, ToolInputError, ToolResponse
from agent_r1.types import ToolCall

CallStatus = Literal["ok", "error", "invalid"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOutcome:
    """What became of one call."""

    call: ToolCall
    """The call."""
    response: ToolResponse
    """What the model reads."""
    status: CallStatus
    """`ok`; `error`: the tool raised; `invalid`: the model's own mistake (unknown tool, wrong arguments)."""
    reward: float = 0.0
    """The process reward of the call."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """What the tool noted."""
    seconds: float = 0.0
    """How long it took."""


async def run_call(tools: Mapping[str, BaseTool], call: ToolCall, context: ToolContext) -> CallOutcome:
    """Run `call` with the tool it names. Never raises for what the model or the tool did wrong; an `EpisodeError`, by
    which a tool says that the machinery under it broke, goes through.

    An unknown tool, arguments that do not fit and an exception inside the tool all come back as text, for example
    "Error: unknown tool 'prize'. Did you mean 'price'? Known: calculate, price."
    """
    tool = tools.get(call.name)
    if tool is None:
        text = f"Error: unknown tool '{call.name}'. {did_you_mean(call.name, tools)}"
        return CallOutcome(call=call, response=ToolResponse(text=text), status="invalid")
    started = time.perf_counter()
    status: CallStatus = "ok"
    reward: float | None = None
    info: Mapping[str, Any] = {}
    try:
        response, reward, info = await tool.execute(call.arguments, context=context)
    except ToolInputError as error:
        response, status = ToolResponse(text=f"Error: {error}"), "invalid"
    except EpisodeError:
        raise
    except (Exception, SystemExit) as error:  # a tool is foreign code: its failure is the model's next observation
        reason = str(error) or type(error).__name__
        response, status = ToolResponse(text=f"Error: {reason}"), "error"
    return CallOutcome(
        call=call,
        response=response,
        status=status,
        reward=reward or 0.0,
        info=info,
        seconds=time.perf_counter() - started,
    )
