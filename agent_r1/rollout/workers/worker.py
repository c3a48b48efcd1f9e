"""`RolloutWorker`: runs rollouts in a process of its own, for a driver that has the engine.

It has a `Rollout` like a run in one process: flows, environments, tools and rewards. Nothing here imports torch.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import os
import pickle
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Protocol

from agent_r1.errors import INTERRUPTIONS, AgentR1Error, ConfigError, described
from agent_r1.rollout.runner import Rollout
from agent_r1.rollout.workers.messages import (
    CancelRollout,
    ClockChanged,
    EngineAnswer,
    FromWorker,
    RolloutFinished,
    RolloutRaised,
    StartFailure,
    StartRollout,
    ToWorker,
    WorkerInfo,
)
from agent_r1.rollout.workers.proxy_engine import MessageProxyEngine, ProxyEngine
from agent_r1.types import Trajectory

RECIPE_NAME = "agent_r1_recipe_folder"
"""The recipe's folder in a worker's path. A name of its own: a recipe may be called like an installed module."""

_IDLE_SECONDS = 5.0
"""`poll` returns after this time with nothing, so that the driver knows that the worker's event loop runs."""

_BATCH_ROUNDS = 3
"""Rounds of the event loop that `poll` waits for further messages once it has one."""

_CLOSE_SECONDS = 5.0
"""How long cancelled rollouts may take to close their environments."""


def code_digest() -> str:
    """A hash of the library's own code, as this process imports it."""
    root = Path(sys.modules["agent_r1"].__path__[0])
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def recipe_copy() -> Path | None:
    """The folder to which the recipe travelled."""
    return next((path for entry in sys.path if (path := Path(entry) / RECIPE_NAME).is_dir()), None)


class WorkerSetup(Protocol):
    """What a worker is made from."""

    @property
    def context_length(self) -> int:
        """The context length of the driver's engine."""
        ...

    @property
    def takes_messages(self) -> bool:
        """Whether the driver's engine is a `MessageEngine`."""
        ...

    def pickled(self, dumps: Callable[[Any], bytes]) -> bytes:
        """What is sent to the worker."""
        ...

    def rollout(self, engine: ProxyEngine) -> AbstractAsyncContextManager[Rollout]:
        """What runs episodes with this engine; the end of the block stops what serves them."""
        ...


class RolloutWorker:
    """One worker. The driver calls `start` once, `deliver` with numbered batches, and `poll` again and again."""

    def __init__(self, pickled_setup: bytes, code: str | None = None) -> None:
        """`code` is the driver's `code_digest()`; None: whatever there is, is right."""
        self._pickled_setup = pickled_setup
        self._code = code
        self._outbox: list[FromWorker] = []
        self._has_mail = asyncio.Event()
        self._next_batch = 0
        self._early_batches: dict[int, Sequence[ToWorker]] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._stack = AsyncExitStack()
        self._clock = ExitStack()
        self._rollout: Rollout | None = None
        self._engine: ProxyEngine | None = None
        self._context = contextvars.copy_context()

    async def start(self) -> WorkerInfo | StartFailure:
        """Make the rollout. A failure is returned, not raised: a new worker would fail in the same way."""
        if self._code not in (None, code_digest()):
            where = sys.modules["agent_r1"].__path__[0]
            return StartFailure(
                error=f"on {socket.gethostname()}, agent_r1 is imported from {where}, whose code differs from that of "
                "this run; install the same version there, or remove it: the run brings its own"
            )
        try:
            setup: WorkerSetup = pickle.loads(self._pickled_setup)
            kind = MessageProxyEngine if setup.takes_messages else ProxyEngine
            self._engine = kind(self._send, context_length=setup.context_length)
            self._rollout = await self._stack.enter_async_context(setup.rollout(self._engine))
            self._context = contextvars.copy_context()  # what the set-up chose, such as the recipe's folder
        except INTERRUPTIONS:
            raise
        except AgentR1Error as error:
            return StartFailure(error=str(error))
        except BaseException as error:  # noqa: BLE001 - modules of the recipe are foreign code
            return StartFailure(error=described(error))
        return WorkerInfo(host=socket.gethostname(), pid=os.getpid(), has_torch="torch" in sys.modules)

    async def deliver(self, batch: int, messages: Sequence[ToWorker]) -> None:
        """Take a batch of messages. Batches may overtake each other; they are read in the order of their numbers."""
        self._early_batches[batch] = messages
        while self._next_batch in self._early_batches:
            for message in self._early_batches.pop(self._next_batch):
                self._read(message)
            self._next_batch += 1

    async def poll(self) -> list[FromWorker]:
        """The messages for the driver, as soon as there is one; none after a few seconds without any."""
        if not self._outbox:
            self._has_mail.clear()
            try:
                async with asyncio.timeout(_IDLE_SECONDS):
                    await self._has_mail.wait()
            except TimeoutError:
                return []
            for _ in range(_BATCH_ROUNDS):
                await asyncio.sleep(0)
        messages, self._outbox = self._outbox, []
        return messages

    async def close(self) -> None:
        """Cancel the rollouts, close their environments and stop the processes of their tools."""
        for running in self._running.values():
            running.cancel()
        if self._running:
            await asyncio.wait(self._running.values(), timeout=_CLOSE_SECONDS)
        await self._stack.aclose()

    def _send(self, message: FromWorker) -> None:
        self._outbox.append(message)
        self._has_mail.set()

    def _read(self, message: ToWorker) -> None:
        assert self._rollout is not None
        assert self._engine is not None
        match message:
            case StartRollout():
                running = asyncio.get_running_loop().create_task(self._run(message), context=self._context)
                self._running[message.number] = running
                running.add_done_callback(lambda _: self._running.pop(message.number))
            case CancelRollout():
                if message.number in self._running:
                    self._running[message.number].cancel()
            case EngineAnswer():
                self._engine.answer(message)
            case ClockChanged():
                self._clock.close()
                if message.is_stopped:
                    self._clock.enter_context(self._rollout.clock_stopped())

    async def _run(self, start: StartRollout) -> None:
        assert self._rollout is not None
        try:
            trajectory = await self._rollout.roll_out_member(start.task, start.group_id, start.member, start.seed)
            pickled = _pickle(trajectory)
        except INTERRUPTIONS:
            raise
        except BaseException as error:  # noqa: BLE001 - the driver raises it
            self._send(RolloutRaised(number=start.number, error=described(error)))
        else:
            assert self._engine is not None
            pictures = self._engine.new_pictures(trajectory.next_prompt_ids or ())
            self._send(RolloutFinished(number=start.number, trajectory=pickled, pictures=pictures))


def _pickle(trajectory: Trajectory) -> bytes:
    try:
        return pickle.dumps(trajectory, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"a rollout of task '{trajectory.task_id}' cannot be sent from its worker to the trainer: {error}. "
            "Something in the observations, messages or `info` of its steps cannot be pickled; put plain values there"
        ) from error
