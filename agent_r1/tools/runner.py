"""`ToolRunner`: run tool calls, so that whatever a tool does becomes text the model can read, in bounded time.

One runner serves all episodes of a run: concurrency limits apply across episodes, and calls of a batching tool that
wait at the same time run as one batch.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from agent_r1.tools.results import checked_result, cut_middle, describe, read_images
from agent_r1.tools.workers.threads import call_off_loop
from agent_r1.types import ToolCall, own_values

if TYPE_CHECKING:
    from agent_r1.tools.workers.pool import WorkerPool

CallStatus = Literal["ok", "error", "invalid", "timeout"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_NOTE_CHARS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOutcome:
    """The outcome of one call."""

    call: ToolCall
    """The call."""
    response: ToolResponse
    """What the model reads."""
    status: CallStatus
    """`ok`; `error`: the tool raised, or its answer is not text; `invalid`: the model's own mistake (unknown tool,
    wrong arguments); `timeout`: the call took too long."""
    reward: float = 0.0
    """The process reward of the call."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """What the tool noted."""
    seconds: float = 0.0
    """How long the call took, including waiting for a slot."""
    truncated: bool = False
    """The answer was longer than the tool's policy allows."""
    retries: int = 0
    """Failed attempts before the last one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Waiting:
    """A call that waits for its batch."""

    tool: BaseTool
    args: Mapping[str, Any]
    context: ToolContext


@dataclass(frozen=True, kw_only=True, slots=True)
class _ToolQueue:
    """What all calls of one tool share. Tools of the same class, name and policy share `slots`."""

    policy: ToolPolicy
    slots: asyncio.Semaphore
    batcher: Batcher[_Waiting, ToolResult] | None


class ToolRunner:
    """Runs the tool calls of a run; the end of its block closes what they used.

        async with ToolRunner({"search": {"timeout": 5}}) as runner:
            outcome = await runner.call(tools, call, context)

    `overrides` are the configuration's changes to the policies of tools, by name. With `sees_images=False`, for a model
    that reads text alone, an answer with images is an error.
    """

    def __init__(
        self, overrides: Mapping[str, Mapping[str, Any]] | None = None, *, seed: int = 0, sees_images: bool = True
    ) -> None:
        self._overrides = overrides or {}
        self.sees_images = sees_images
        self._seed = seed
        self._num_calls = 0
        self._queues: dict[int, _ToolQueue] = {}
        self._slots: dict[tuple[type[BaseTool], str, ToolPolicy], asyncio.Semaphore] = {}
        # A lock is alive, and with it the context whose id it has, while a call holds it or waits for it.
        self._turns: weakref.WeakValueDictionary[int, asyncio.Lock] = weakref.WeakValueDictionary()
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
        """Kill the worker processes, those of searches too, and disconnect from MCP servers. Servers are shared by the
        whole process: a later call connects again. Workers do not come back, but for searches."""
        from agent_r1.tools.builtin.mcp import disconnect_servers
        from agent_r1.tools.builtin.search import close_searchers

        try:
            if self._workers is not None:
                await self._workers.close()
            await close_searchers()
        finally:
            await disconnect_servers()

    def policy_of(self, tool: BaseTool) -> ToolPolicy:
        """The tool's own policy with the configuration's overrides."""
        return tool.policy.with_overrides(tool.name, self._overrides.get(tool.name, {}))

    async def call(self, tools: Mapping[str, BaseTool], call: ToolCall, context: ToolContext) -> CallOutcome:
        """Run `call` with the tool it names.

        An unknown tool, wrong arguments, an exception inside the tool and a timeout all come back as text, for example
        "Error: unknown tool 'prize'. Did you mean 'price'? Known: calculate, price." Only an `EpisodeError` is raised:
        a tool's infrastructure failed.
        """
        tool = tools.get(call.name)
        if tool is None:
            text = f"Error: unknown tool '{call.name[:100]}'. {did_you_mean(call.name[:100], tools)}"
            return CallOutcome(call=call, response=ToolResponse(text=text), status="invalid")
        queue = self._queue(tool)
        arguments = named_arguments(tool, call.arguments)
        number = self._num_calls = self._num_calls + 1
        started = time.perf_counter()
        for attempt in range(queue.policy.retries + 1):
            if attempt:
                pause = min(_FIRST_PAUSE * 2 ** (attempt - 1), _LONGEST_PAUSE)
                await asyncio.sleep(pause * (0.5 + unit_float(self._seed, number, attempt)))
            # Tools may change their arguments: neither the next attempt nor the history may see that.
            fields, may_retry = await self._attempt(queue, tool, own_values(arguments), context)
            if not may_retry:
                break
        seconds = time.perf_counter() - started
        return CallOutcome(call=call, seconds=seconds, retries=attempt, **fields)

    async def _attempt(
        self, queue: _ToolQueue, tool: BaseTool, args: Mapping[str, Any], context: ToolContext
    ) -> tuple[dict[str, Any], bool]:
        """The fields of one attempt's outcome, and whether a retry may help."""
        limit = queue.policy.max_output_chars
        status: CallStatus = "error"
        try:
            (response, reward, info), was_cut = await self._run(queue, tool, args, context)
            if response.images:
                response = await self._with_pictures(response, tool)
            if len(response.text) > limit or not response.text.isascii():
                # A worker has already cut the text and added its note.
                text = cut_middle(response.text, limit + _NOTE_CHARS if was_cut else limit)
                was_cut = was_cut or len(response.text) > limit
                response = replace(response, text=text)
            fields = {"response": response, "status": "ok", "reward": reward or 0.0, "info": info, "truncated": was_cut}
            return fields, False
        except (EpisodeError, *INTERRUPTIONS):  # not caused by the model
            raise
        except ToolInputError as error:
            status, text = "invalid", describe(error)
        except ToolTimeoutError as error:
            status, text = "timeout", str(error) or f"{tool.name} timed out after {queue.policy.timeout:g} seconds"
        except (ConnectionError, ToolUnavailableError) as error:
            return _failure(status, describe(error), limit), True
        except BaseException as error:  # a tool is foreign code: its failure is the model's next observation
            text = describe(error)
        return _failure(status, text, limit), False

    async def _with_pictures(self, response: ToolResponse, tool: BaseTool) -> ToolResponse:
        """The answer with its images read. That takes milliseconds each: it is done in a thread."""
        if not self.sees_images:
            refuse_media(f"the answer of {tool.name}", images=response.images)
        pictures = await asyncio.to_thread(read_images, response.images, tool.name)
        return replace(response, images=pictures)

    async def _run(
        self, queue: _ToolQueue, tool: BaseTool, raw_args: Mapping[str, Any], context: ToolContext
    ) -> tuple[ToolResult, bool]:
        """The tool's result, and whether its text was cut already."""
        args = tool.check(raw_args)
        if queue.policy.process:
            if not tool.takes_context:
                context = ToolContext(task=context.task)
            async with self._turn_of(context), queue.slots:
                return await self._run_in_worker(queue.policy, tool, raw_args, context)
        if queue.batcher is not None:
            return checked_result(await queue.batcher.submit(_Waiting(tool=tool, args=args, context=context))), False
        async with queue.slots:
            limit = queue.policy.max_output_chars
            result: tuple[ToolResult, bool] = await call_within(
                queue.policy.timeout, _execute_and_cut, tool.execute, args, context, limit
            )
            return result

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

    def _turn_of(self, context: ToolContext) -> asyncio.Lock:
        """Held while a worker process has a copy of `context.state`. The calls of one action arrive at once; one that
        began before another has returned would undo its changes."""
        lock = self._turns.get(id(context))
        if lock is None:
            lock = self._turns[id(context)] = asyncio.Lock()
        return lock

    def _queue(self, tool: BaseTool) -> _ToolQueue:
        queue = self._queues.get(id(tool))
        if queue is None:
            queue = self._queues[id(tool)] = self._new_queue(tool)
            # Tools made for one episode must not pile up here, and their ids are reused.
            weakref.finalize(tool, self._queues.pop, id(tool), None)
        return queue

    def _new_queue(self, tool: BaseTool) -> _ToolQueue:
        policy = self.policy_of(tool)
        # Episodes have tool objects of their own, and share the slots.
        slots = self._slots.setdefault((type(tool), tool.name, policy), asyncio.Semaphore(policy.max_concurrency))
        batcher: Batcher[_Waiting, ToolResult] | None = None
        if policy.process:
            check_process_tool(tool)
        elif tool.can_batch:

            async def run(batch: Sequence[_Waiting]) -> Sequence[ToolResult | BaseException]:
                return await _run_batch(batch, policy)

            batcher = Batcher(run, size=policy.batch_size, wait=policy.batch_wait, slots=slots)
        return _ToolQueue(policy=policy, slots=slots, batcher=batcher)


def check_process_tool(tool: BaseTool) -> None:
    """Raise `ConfigError` when a tool cannot run in a worker process."""
    from agent_r1.tools.workers.tool_call import origin_of

    if tool.can_batch:
        raise ConfigError(f"tool '{tool.name}' has batch_execute and process=True; choose one of the two")
    if type(tool).close is not BaseTool.close:
        raise ConfigError(
            f"tool '{tool.name}' keeps something open for an episode (it has close), which worker processes, shared by "
            "all episodes, cannot do; leave out process=True"
        )
    origin_of(tool)


async def _run_batch(batch: Sequence[_Waiting], policy: ToolPolicy) -> Sequence[ToolResult | BaseException]:
    """The results of a batch. When the batch fails as a whole, its calls run one by one, so that one bad call does not
    fail the others; when it times out, all of them do."""
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
    """The result, cut at once: otherwise hundreds of calls that end together hold their full answers in memory."""
    response, reward, info = checked_result(await call_off_loop(execute, args, context=context))
    if len(response.text) <= limit:
        return (response, reward, info), False
    return (replace(response, text=cut_middle(response.text, limit)), reward, info), True


def _failure(status: CallStatus, text: str, limit: int) -> dict[str, Any]:
    return {"response": ToolResponse(text=f"Error: {cut_middle(text, limit)}"), "status": status}


_runner_of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ToolRunner] = weakref.WeakKeyDictionary()


async def run_call(
    tools: Mapping[str, BaseTool], call: ToolCall, context: ToolContext, *, runner: ToolRunner | None = None
) -> CallOutcome:
    """Run `call` with `runner`; None: with a runner of the event loop, with default policies."""
    if runner is None:
        runner = _runner_of_loop.setdefault(asyncio.get_running_loop(), ToolRunner())
    return await runner.call(tools, call, context)
