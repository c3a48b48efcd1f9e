"""Running calls, so that whatever a tool does becomes something the model can read, in bounded time.

One `ToolRunner` serves all episodes of a run: limits on concurrency hold over all of them, and calls of a batching tool
that wait at the same moment are run as one, whichever episodes they come from.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from agent_r1.errors import INTERRUPTIONS, ConfigError, EpisodeError, did_you_mean, refuse_media
from agent_r1.seeds import unit_float
from agent_r1.tools.base import (
    BaseTool,
    ToolContext,
    ToolInputError,
    ToolResponse,
    ToolResult,
    ToolTimeoutError,
    ToolUnavailableError,
    named_arguments,
)
from agent_r1.tools.batching import Batcher
from agent_r1.tools.deadlines import call_within
from agent_r1.tools.policy import ToolPolicy
from agent_r1.tools.results import checked_result, cut_middle, describe
from agent_r1.tools.workers.threads import call_off_loop
from agent_r1.types import ToolCall

if TYPE_CHECKING:
    from agent_r1.tools.workers.pool import WorkerPool

CallStatus = Literal["ok", "error", "invalid", "timeout"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_NOTE_CHARS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOutcome:
    """What became of one call."""

    call: ToolCall
    """The call."""
    response: ToolResponse
    """What the model reads."""
    status: CallStatus
    """`ok`; `error`: the tool raised or its answer cannot be read; `invalid`: the model's own mistake (unknown tool,
    wrong arguments); `timeout`: it took too long."""
    reward: float = 0.0
    """The process reward of the call."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """What the tool noted."""
    seconds: float = 0.0
    """How long it took, waiting included."""
    truncated: bool = False
    """The answer was longer than the tool's policy allows."""
    retries: int = 0
    """Attempts that failed before the last one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Waiting:
    """A call on its way into a batch."""

    tool: BaseTool
    args: Mapping[str, Any]
    context: ToolContext


@dataclass(frozen=True, kw_only=True, slots=True)
class _ToolQueue:
    """What all calls of one tool share; of `places`, those of its like too."""

    policy: ToolPolicy
    places: asyncio.Semaphore
    batcher: Batcher[_Waiting, ToolResult] | None


class ToolRunner:
    """Runs the tool calls of a run, and closes what they needed at the end of its block:

        async with ToolRunner({"search": {"timeout": 5}}) as runner:
            outcome = await runner.call(tools, call, context)

    `overrides` are the configuration's changes to the policies of tools, by name.
    """

    def __init__(self, overrides: Mapping[str, Mapping[str, Any]] | None = None, *, seed: int = 0) -> None:
        self._overrides = overrides or {}
        self._seed = seed
        self._num_calls = 0
        self._lanes: dict[int, _ToolQueue] = {}
        self._places: dict[tuple[type[BaseTool], str, ToolPolicy], asyncio.Semaphore] = {}
        self._workers: WorkerPool | None = None

    @property
    def workers(self) -> WorkerPool:
        """The worker processes, started when first needed."""
        if self._workers is None:
            from agent_r1.tools.workers.pool import WorkerPool  # not for Windows, where everything else works

            self._workers = WorkerPool()
        return self._workers

    async def __aenter__(self) -> ToolRunner:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Kill the worker processes and disconnect from MCP servers. Servers are shared by the whole process: a later
        call connects again. Workers do not come back."""
        from agent_r1.tools.builtin.mcp import disconnect_servers

        try:
            if self._workers is not None:
                await self._workers.close()
        finally:
            await disconnect_servers()

    def policy_of(self, tool: BaseTool) -> ToolPolicy:
        """The tool's own policy with the configuration's changes."""
        return tool.policy.changed(tool.name, self._overrides.get(tool.name, {}))

    async def call(self, tools: Mapping[str, BaseTool], call: ToolCall, context: ToolContext) -> CallOutcome:
        """Run `call` with the tool it names. Never raises for what the model or the tool did wrong; an `EpisodeError`,
        by which a tool says that the machinery under it broke, goes through.

        An unknown tool, arguments that do not fit, an exception inside the tool and a timeout all come back as text,
        for example "Error: unknown tool 'prize'. Did you mean 'price'? Known: calculate, price."
        """
        tool = tools.get(call.name)
        if tool is None:
            text = f"Error: unknown tool '{call.name[:100]}'. {did_you_mean(call.name[:100], tools)}"
            return CallOutcome(call=call, response=ToolResponse(text=text), status="invalid")
        lane = self._lane(tool)
        arguments = named_arguments(tool, call.arguments)
        number = self._num_calls = self._num_calls + 1
        started = time.perf_counter()
        for attempt in range(lane.policy.retries + 1):
            if attempt:
                pause = min(_FIRST_PAUSE * 2 ** (attempt - 1), _LONGEST_PAUSE)
                await asyncio.sleep(pause * (0.5 + unit_float(self._seed, number, attempt)))
            answer, may_retry = await self._attempt(lane, tool, arguments, context)
            if not may_retry:
                break
        seconds = time.perf_counter() - started
        return CallOutcome(call=call, seconds=seconds, retries=attempt, **answer)

    async def _attempt(
        self, lane: _ToolQueue, tool: BaseTool, args: Mapping[str, Any], context: ToolContext
    ) -> tuple[dict[str, Any], bool]:
        """The fields of one attempt's outcome, and whether another one may help."""
        limit = lane.policy.max_output_chars
        status: CallStatus = "error"
        try:
            (response, reward, info), was_cut = await self._run(lane, tool, args, context)
            refuse_media(f"the answer of {tool.name}", images=response.images)
            if len(response.text) > limit or not response.text.isascii():
                # A worker has cut the text already, and put its note into it.
                text = cut_middle(response.text, limit + _NOTE_CHARS if was_cut else limit)
                was_cut = was_cut or len(response.text) > limit
                response = ToolResponse(text=text)
            found = {"response": response, "status": "ok", "reward": reward or 0.0, "info": info, "truncated": was_cut}
            return found, False
        except (EpisodeError, *INTERRUPTIONS):  # nothing the model should answer for
            raise
        except ToolInputError as error:
            status, text = "invalid", describe(error)
        except ToolTimeoutError as error:
            status, text = "timeout", str(error) or f"{tool.name} timed out after {lane.policy.timeout:g} seconds"
        except (ConnectionError, ToolUnavailableError) as error:
            return _failure(status, describe(error), limit), True
        except BaseException as error:  # a tool is foreign code: its failure is the model's next observation
            text = describe(error)
        return _failure(status, text, limit), False

    async def _run(
        self, lane: _ToolQueue, tool: BaseTool, given: Mapping[str, Any], context: ToolContext
    ) -> tuple[ToolResult, bool]:
        """The tool's result, and whether its text was cut already."""
        args = tool.check(given)
        if lane.policy.process:
            async with lane.places:
                return await self._run_in_worker(lane.policy, tool, given, context)
        if lane.batcher is not None:
            return checked_result(await lane.batcher.submit(_Waiting(tool=tool, args=args, context=context))), False
        async with lane.places:
            limit = lane.policy.max_output_chars
            found: tuple[ToolResult, bool] = await call_within(
                lane.policy.timeout, _execute_and_cut, tool.execute, args, context, limit
            )
            return found

    async def _run_in_worker(
        self, policy: ToolPolicy, tool: BaseTool, args: Mapping[str, Any], context: ToolContext
    ) -> tuple[ToolResult, bool]:
        from agent_r1.tools.workers.pool import WorkerDiedError, WorkerTimeoutError
        from agent_r1.tools.workers.tool_call import origin_of, run_tool, unpack

        arguments = (origin_of(tool), tool.name, dict(args), context, policy.max_output_chars)
        try:
            packed = await self.workers.call(run_tool, *arguments, timeout=policy.timeout)
        except WorkerTimeoutError:
            raise ToolTimeoutError from None
        except WorkerDiedError as error:
            raise ToolUnavailableError(
                describe(error).replace("agent_r1.tools.workers.tool_call:run_tool", tool.name)
            ) from error
        return unpack(packed, context)

    def _lane(self, tool: BaseTool) -> _ToolQueue:
        lane = self._lanes.get(id(tool))
        if lane is None:
            lane = self._lanes[id(tool)] = self._new_lane(tool)
            # Tools made for one episode must not pile up here, and their numbers are given out again.
            weakref.finalize(tool, self._lanes.pop, id(tool), None)
        return lane

    def _new_lane(self, tool: BaseTool) -> _ToolQueue:
        policy = self.policy_of(tool)
        # Shared by the objects that episodes have of one tool.
        places = self._places.setdefault((type(tool), tool.name, policy), asyncio.Semaphore(policy.max_concurrency))
        batcher: Batcher[_Waiting, ToolResult] | None = None
        if policy.process:
            check_process_tool(tool)
        elif tool.can_batch:

            async def run(batch: Sequence[_Waiting]) -> Sequence[ToolResult | BaseException]:
                return await _run_batch(batch, policy)

            batcher = Batcher(run, size=policy.batch_size, wait=policy.batch_wait, places=places)
        return _ToolQueue(policy=policy, places=places, batcher=batcher)


def check_process_tool(tool: BaseTool) -> None:
    """Raise `ConfigError` when a tool cannot run in a worker process."""
    from agent_r1.tools.workers.tool_call import origin_of

    if tool.can_batch:
        raise ConfigError(f"tool '{tool.name}' has batch_execute and process=True; choose one of the two")
    if type(tool).close is not BaseTool.close:
        raise ConfigError(
            f"tool '{tool.name}' keeps something open for an episode (it has close), which a worker process that takes "
            "one call of many episodes cannot; leave out process=True"
        )
    origin_of(tool)


async def _run_batch(batch: Sequence[_Waiting], policy: ToolPolicy) -> Sequence[ToolResult | BaseException]:
    """The results of a batch. When it fails as a whole, its calls run one by one, so that one cannot spoil the others;
    when it times out, all of them have."""
    tool = batch[0].tool
    args, contexts = [one.args for one in batch], [one.context for one in batch]
    try:
        results: Any = await call_within(policy.timeout, tool.batch_execute, args, contexts)
        if isinstance(results, Sequence) and len(results) == len(batch):
            return list(results)
        raise TypeError(f"batch_execute must return a list of {len(batch)} results")
    except ToolTimeoutError as error:
        return [error] * len(batch)
    except Exception:
        singles: list[Awaitable[Any]] = [
            call_within(policy.timeout, one.tool.execute, one.args, context=one.context) for one in batch
        ]
        return list(await asyncio.gather(*singles, return_exceptions=True))


async def _execute_and_cut(
    execute: Callable[..., Any], args: Mapping[str, Any], context: ToolContext, limit: int
) -> tuple[ToolResult, bool]:
    """The result, cut at once: the answers of hundreds of calls that end together would all wait for their readers
    in full."""
    response, reward, info = checked_result(await call_off_loop(execute, args, context=context))
    if len(response.text) <= limit:
        return (response, reward, info), False
    return (ToolResponse(text=cut_middle(response.text, limit), images=response.images), reward, info), True


def _failure(status: CallStatus, text: str, limit: int) -> dict[str, Any]:
    return {"response": ToolResponse(text=f"Error: {cut_middle(text, limit)}"), "status": status}


_current: ContextVar[ToolRunner | None] = ContextVar("tool_runner", default=None)
_of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ToolRunner] = weakref.WeakKeyDictionary()


@asynccontextmanager
async def tool_runner(runner: ToolRunner) -> AsyncIterator[ToolRunner]:
    """Within this block, and in the tasks started in it, `run_call` uses `runner`; it is closed at the end."""
    token = _current.set(runner)
    try:
        async with runner:
            yield runner
    finally:
        _current.reset(token)


def default_runner() -> ToolRunner:
    """The runner of the `tool_runner` block this is called in; outside of any, the event loop's own, with default
    policies."""
    runner = _current.get()
    return runner if runner is not None else _of_loop.setdefault(asyncio.get_running_loop(), ToolRunner())


async def run_call(
    tools: Mapping[str, BaseTool], call: ToolCall, context: ToolContext, *, runner: ToolRunner | None = None
) -> CallOutcome:
    """Run `call` with `runner`; None: with `default_runner()`."""
    return await (runner or default_runner()).call(tools, call, context)
