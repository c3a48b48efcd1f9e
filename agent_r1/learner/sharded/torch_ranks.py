"""`TorchRanks`: ranks that torchrun started, over `torch.distributed`."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from agent_r1.config import Config
from agent_r1.errors import AgentR1Error, ConfigError, RankError, described
from agent_r1.interrupts import RunInterrupted, StopSignals
from agent_r1.learner.sharded.monitor import Monitor
from agent_r1.learner.sharded.ranks import Ranks, finish, mark

ValueT = TypeVar("ValueT")
_c10d = cast(Any, dist)  # its stores are not in its list of public names

_FOREVER = timedelta(days=7)
"""The group that exchanges outcomes waits as long as the slowest rollout takes; the monitor knows who is dead."""
_START_SECONDS = 300.0
_LAST_WORDS_SECONDS = 5.0
_AGREEMENT_SECONDS = 10.0
"""How long a rank that failed among exchanges waits for the others to have failed as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Outcome:
    """What became of one rank's work."""

    value: Any = None
    kind: type[AgentR1Error] | None = None
    """The type of the error, if it is one of ours."""
    error: str | None = None
    signal: int | None = None
    """The signal that stopped the work."""


class TorchRanks(Ranks):
    """One of several processes."""

    is_sharded = True

    def __init__(self, *, rank: int, size: int, objects: Any, monitor: Monitor | None) -> None:
        self.rank, self.size = rank, size
        self.objects = objects
        self._monitor = monitor
        self._stop: StopSignals | None = None
        self._num_collectives = 0

    @classmethod
    def open(cls, config: Config) -> TorchRanks:
        """Join the group of processes; every rank on a GPU of its own, or all on the CPU."""
        settings = config.trainer.sharding
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        device = _device(config)
        store: Any = None
        if size == 1 and "MASTER_ADDR" not in os.environ:
            store = _c10d.HashStore()
        elif not {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
            raise ConfigError(f"WORLD_SIZE={size} without RANK, MASTER_ADDR and MASTER_PORT; start with torchrun")
        dist.init_process_group(
            "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
            store=store,
            rank=rank if store is not None else -1,
            world_size=size if store is not None else -1,
            timeout=timedelta(seconds=settings.timeout_seconds),
            device_id=device if device.type == "cuda" else None,
        )
        objects = dist.new_group(backend="gloo", timeout=_FOREVER)
        monitor = None
        if size > 1:
            client = _c10d.TCPStore(
                os.environ["MASTER_ADDR"],
                int(os.environ["MASTER_PORT"]),
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=_START_SECONDS),
            )
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            shared = _c10d.PrefixStore(f"agent_r1/{attempt}", client)
            monitor = Monitor(shared, rank=rank, size=size, dead_after=settings.dead_after_seconds)
            monitor.start()
        return cls(rank=rank, size=size, objects=objects, monitor=monitor)

    def close(self) -> None:
        """Leave the group when all ranks are done."""
        self._exchange(_Outcome())
        if self._monitor is not None:
            self._monitor.close(finished=True)
        dist.destroy_process_group()

    def leave(self, error: BaseException) -> None:
        """Leave the group after an error, without waiting for anyone; an error that the others do not know of ends
        them."""
        if self._monitor is None:
            return
        if not self.agreed(error):
            with suppress(Exception):  # the store may be gone
                self.give_up(error)
        with suppress(Exception):
            self._monitor.close(finished=True)
        if self.agreed(error) and not self.is_first:
            # torchrun ends all ranks when the first process has ended: the one that shows the error goes first.
            end = time.monotonic() + _LAST_WORDS_SECONDS
            while time.monotonic() < end and 0 not in self._monitor.dead_ranks():
                time.sleep(0.05)

    def agreed(self, error: BaseException) -> bool:
        """Whether all ranks have raised this error at the same place."""
        return bool(getattr(error, "agreed_by_ranks", False))

    def attach(self, stop: StopSignals) -> None:
        """From here on a signal that reaches one rank reaches all."""
        self._stop = stop
        if self._monitor is not None:
            stop.repeat_seconds = 5.0
            if not self.is_first:
                stop.silence()
            self._monitor.attach(stop)

    def on_exit(self, *, outcome: Callable[[], str], release: Callable[[], None]) -> None:
        """What the run leaves, and what to release when this process is ended because of another."""
        if self._monitor is not None:
            self._monitor.outcome, self._monitor.before_exit = outcome, release

    # --- agreeing --------------------------------------------------------------------------------------------------

    def in_turn(self, work: Callable[[], ValueT]) -> ValueT:
        """The first rank works, then the others; an error of one is an error of all."""
        own_outcome: _Outcome | None = None
        for is_turn in (self.is_first, not self.is_first):
            if is_turn:
                own_outcome = self._attempt(work)
            self._raise_first(
                self._exchange(_without_value(own_outcome) if is_turn and own_outcome is not None else _Outcome())
            )
        assert own_outcome is not None
        return cast(ValueT, own_outcome.value)

    def from_first(self, value: ValueT) -> ValueT:
        """The first rank's value, on all ranks."""
        return cast(ValueT, self._exchange(_Outcome(value=value if self.is_first else None))[0].value)

    def by_first(self, work: Callable[[], ValueT]) -> ValueT:
        """What `work` returns on the first rank, or its error, on all ranks."""
        outcomes = self._exchange(self._attempt(work) if self.is_first else _Outcome())
        self._raise_first(outcomes)
        return cast(ValueT, outcomes[0].value)

    def gather_now(self, work: Callable[[], ValueT]) -> list[ValueT]:
        """What `work` returns on each rank. When it fails on one, all raise."""
        outcomes = self._exchange(self._attempt(work))
        self._raise_first(outcomes)
        return [cast(ValueT, outcome.value) for outcome in outcomes]

    def agree_now(self, work: Callable[[], ValueT]) -> ValueT:
        """Work of each rank: when it fails on one, all raise."""
        own_outcome = self._attempt(work)
        self._raise_first(self._exchange(_without_value(own_outcome)))
        return cast(ValueT, own_outcome.value)

    async def gather(self, work: Callable[[], Awaitable[ValueT]]) -> list[ValueT]:
        """What `work` returns on each rank. When it fails on one, or a signal stops it, all raise."""
        try:
            mine = _Outcome(value=await work())
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._stop is None or self._stop.received is None:
                raise
            if task is not None:
                task.uncancel()
            mine = _Outcome(signal=self._stop.received)
        except (Exception, RunInterrupted) as error:
            mine = _outcome_of_error(error)
        outcomes = await finish(asyncio.wrap_future(self._start(lambda: self._all_gather(mine))), self._stop)
        self._raise_first(outcomes)
        return [cast(ValueT, outcome.value) for outcome in outcomes]

    async def check(self, stop: StopSignals) -> None:
        """Raise `RunInterrupted` on all ranks when one of them has received a signal."""

        async def look() -> int | None:
            return stop.received

        received = [number for number in await self.gather(look) if number is not None]
        if received:
            raise self._interruption(received[0])

    @asynccontextmanager
    async def collective(self, what: str) -> AsyncIterator[None]:
        """Around work in which the ranks exchange tensors; see `Ranks.collective`."""
        self._num_collectives += 1
        key = f"failed/{self._num_collectives}"
        try:
            yield
        except Exception as error:
            settling = self._start(partial(self._settle, key, what, error))
            outcome = await finish(asyncio.wrap_future(settling), self._stop)
            if outcome is error:
                raise
            raise outcome from error

    def give_up(self, error: BaseException) -> None:
        """End the other ranks: this one leaves with an error they do not know of."""
        if self._monitor is not None and not isinstance(error, RankError):
            self._monitor.abort(f"{self._monitor.describe(self.rank)} failed: {_one_line(error)}")

    # --- exchanging ------------------------------------------------------------------------------------------------

    def _attempt(self, work: Callable[[], Any]) -> _Outcome:
        try:
            return _Outcome(value=work())
        except (Exception, RunInterrupted) as error:
            return _outcome_of_error(error)

    def _exchange(self, own_outcome: _Outcome) -> list[_Outcome]:
        """The outcomes of all ranks. The calling thread can receive signals meanwhile."""
        future = self._start(lambda: self._all_gather(own_outcome))
        while True:
            try:
                return cast(list[_Outcome], future.result(timeout=0.2))
            except TimeoutError:
                if future.done():
                    raise

    def _start(self, work: Callable[[], Any]) -> Future[Any]:
        """Run in a thread that does not keep the process alive: an exchange with a dead rank may never end."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True, name="ranks").start()
        return future

    def _all_gather(self, own_outcome: _Outcome) -> list[_Outcome]:
        outcomes: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(outcomes, own_outcome, group=self.objects)
        except RuntimeError as error:
            raise self._lost(error) from error
        return cast(list[_Outcome], outcomes)

    def _settle(self, key: str, what: str, error: Exception) -> Exception:
        """Whether all ranks failed alike. Returns the error to raise."""
        monitor = self._monitor
        if monitor is None:
            return error
        monitor.post(f"{key}/{self.rank}", "failed")
        end = time.monotonic() + _AGREEMENT_SECONDS
        while time.monotonic() < end:
            if all(monitor.posted(f"{key}/{rank}") for rank in range(self.size)):
                return cast(Exception, mark(error, agreed=True))
            if monitor.dead_ranks():
                return self._lost(error)
            time.sleep(0.1)
        return self._lost(error, f"{monitor.describe(self.rank)} failed in {what}: {_one_line(error)}")

    def _lost(self, error: Exception, otherwise: str | None = None) -> Exception:
        """The error of a rank that can no longer exchange anything with the others."""
        monitor = self._monitor
        end, dead = time.monotonic() + 5.0, list[int]()
        while monitor is not None and not dead and otherwise is None and time.monotonic() < end:
            dead = monitor.dead_ranks()
            time.sleep(0.1)
        if monitor is not None and (dead or monitor.dead_ranks()):
            message = f"{monitor.describe((dead or monitor.dead_ranks())[0])} has ended, and the run ends"
        else:
            message = otherwise or f"the connection to another rank is lost, and the run ends ({_one_line(error)})"
            if monitor is not None:
                monitor.abort(message)
        lost = RankError(message)
        lost.is_silent = bool(dead) and self.rank != min(set(range(self.size)) - set(dead), default=0)
        return cast(Exception, mark(lost, agreed=False))

    def _raise_first(self, outcomes: Sequence[_Outcome]) -> None:
        """Raise what the first failed rank has failed with, on all ranks."""
        for outcome in outcomes:
            if outcome.signal is not None:
                raise self._interruption(outcome.signal)
        for rank, outcome in enumerate(outcomes):
            if outcome.error is not None:
                error = (
                    outcome.kind(outcome.error)
                    if outcome.kind is not None
                    else RankError(f"rank {rank} failed: {outcome.error}")
                )
                error.is_silent = not self.is_first
                raise mark(error, agreed=True)

    def _interruption(self, number: int) -> BaseException:
        if self._stop is not None and self._stop.received is None:
            self._stop.received = number
        error = RunInterrupted(number, "Interrupted.") if self._stop is None else self._stop.interruption()
        error.is_silent = not self.is_first
        return mark(error, agreed=True)


def _without_value(outcome: _Outcome) -> _Outcome:
    return _Outcome(kind=outcome.kind, error=outcome.error, signal=outcome.signal)


def _outcome_of_error(error: BaseException) -> _Outcome:
    if isinstance(error, RunInterrupted):
        return _Outcome(signal=error.signal_number)
    plain = isinstance(error, AgentR1Error) and "__init__" not in vars(type(error))
    if isinstance(error, AgentR1Error):
        return _Outcome(kind=type(error) if plain else None, error=str(error))
    return _Outcome(error="".join(traceback.format_exception(error)).rstrip())


def _one_line(error: BaseException) -> str:
    return " ".join(described(error).split())[:300]


def _device(config: Config) -> torch.device:
    """The device of this rank, which becomes the current one."""
    name, local_rank = config.trainer.device, int(os.environ.get("LOCAL_RANK", "0"))
    if name.startswith("cuda:") and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(f"trainer.device={name} is one GPU, and torchrun started several processes; set cuda or auto")
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    found = torch.cuda.device_count()
    if local_rank >= found:
        raise ConfigError(
            f"torchrun started process {local_rank + 1} of this host, which has {found} GPUs; start one process per "
            "GPU (--nproc-per-node), or set trainer.device=cpu"
        )
    device = torch.device("cuda", local_rank if not name.startswith("cuda:") else int(name[5:]))
    torch.cuda.set_device(device)
    return device
