"""`Ranks`: the processes of a run, and how they stay together. By default there is only one.

    torchrun --nproc-per-node 8 -m agent_r1.cli train hotpotqa

All ranks run the same program. Where only one of them could fail, or where a signal may reach one before the others,
they agree: each tells what became of its work, and either all continue or all raise. An error on which all agreed
(`Ranks.agreed`) leaves them in step, so a checkpoint can still be written; after any other nothing is exchanged.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from agent_r1.config import Config
from agent_r1.errors import ConfigError
from agent_r1.interrupts import StopSignals

ValueT = TypeVar("ValueT")
_are_open: ContextVar[bool] = ContextVar("ranks_are_open", default=False)


class Ranks:
    """One process: it is the first rank, and what it does is agreed."""

    rank = 0
    size = 1
    is_sharded = False
    """Whether the models are split over the ranks."""
    objects: Any = None
    """The group that exchanges tensors of the host."""

    @property
    def is_first(self) -> bool:
        """Whether this rank writes logs, checkpoints and the console."""
        return self.rank == 0

    def attach(self, stop: StopSignals) -> None:
        """From here on a signal that reaches one rank reaches all."""

    def in_turn(self, work: Callable[[], ValueT]) -> ValueT:
        """Work that makes files when they are missing: the first rank does it, then the others, who find them."""
        return work()

    def from_first(self, value: ValueT) -> ValueT:
        """The first rank's value, on all ranks."""
        return value

    def by_first(self, work: Callable[[], ValueT]) -> ValueT:
        """What `work` returns on the first rank, on all ranks; or its error."""
        return work()

    def gather_now(self, work: Callable[[], ValueT]) -> list[ValueT]:
        """What `work` returns on each rank. When it fails on one, all raise."""
        return [work()]

    def agree_now(self, work: Callable[[], ValueT]) -> ValueT:
        """Work of each rank, without exchanges inside: when it fails on one, all raise."""
        return work()

    async def gather(self, work: Callable[[], Awaitable[ValueT]]) -> list[ValueT]:
        """What `work` returns on each rank, in the order of the ranks. When it fails on one, or a signal stops it, all
        raise."""
        return [await work()]

    async def check(self, stop: StopSignals) -> None:
        """Raise `RunInterrupted` on all ranks when one of them has received a signal."""
        stop.check()

    @asynccontextmanager
    async def collective(self, what: str) -> AsyncIterator[None]:
        """Around work in which the ranks exchange tensors. An error that all of them raise is agreed; one that only
        some raise ends the others, which wait for an exchange that will not come."""
        yield

    def agreed(self, error: BaseException) -> bool:
        """Whether all ranks have raised this error at the same place, as one process always has."""
        return True

    def give_up(self, error: BaseException) -> None:
        """End the other ranks: this one leaves with an error they do not know of."""

    def on_exit(self, *, outcome: Callable[[], str], release: Callable[[], None]) -> None:
        """What the run leaves, for the message, and what to release when the process is ended because of another."""


def mark(error: BaseException, *, agreed: bool) -> BaseException:
    """The error, marked for `Ranks.agreed`."""
    error.agreed_by_ranks = agreed  # type: ignore[attr-defined]
    return error


ErrorT = TypeVar("ErrorT", bound=BaseException)


def alike(error: ErrorT, other: Any) -> ErrorT:
    """An error that replaces another: agreed on by all ranks, and shown, as the other was."""
    for name in ("agreed_by_ranks", "is_silent"):
        if hasattr(other, name):
            setattr(error, name, getattr(other, name))
    return error


@contextmanager
def open_ranks(config: Config) -> Iterator[Ranks]:
    """The ranks of a run: those that torchrun started, or one. Inside this block they can exchange values."""
    mode, size = config.trainer.sharding.mode, int(os.environ.get("WORLD_SIZE", "1"))
    if mode == "off" and size > 1:
        raise ConfigError(f"trainer.sharding.mode=off, and torchrun started {size} processes; start one, or set auto")
    if mode != "on" and size == 1:
        yield Ranks()
        return
    from agent_r1.learner.sharded.torch_ranks import TorchRanks

    ranks = TorchRanks.open(config)
    token = _are_open.set(True)
    try:
        yield ranks
    except BaseException as error:
        ranks.leave(error)
        raise
    finally:
        _are_open.reset(token)
    ranks.close()


def refuse_ranks(command: str) -> None:
    """Raise `ConfigError` when torchrun started several processes for something that one process does. A run on several
    ranks may do it: one of them, while the others wait."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1 and not _are_open.get():
        raise ConfigError(f"agent-r1 {command} runs in one process, and torchrun started {size}; start it without")


async def finish(work: Awaitable[ValueT], stop: StopSignals | None) -> ValueT:
    """What a future gives. A signal that cancels the waiting task is kept for the next place where ranks agree: one
    rank must not leave an exchange that the others are in."""
    future = asyncio.ensure_future(work)
    task, cancelled = asyncio.current_task(), None
    while not future.done():
        try:
            await asyncio.wait([future], timeout=0.2)
        except asyncio.CancelledError as error:
            cancelled = error
            if task is not None and stop is not None and stop.received is not None:
                task.uncancel()
    if cancelled is not None and (stop is None or stop.received is None):
        future.exception()
        raise cancelled
    return future.result()
