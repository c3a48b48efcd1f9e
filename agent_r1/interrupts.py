"""Ctrl-C, SIGTERM and SIGHUP end a run between two steps, not in the middle of one.

    with stop_signals() as stop:
        ...                           # a signal raises `RunInterrupted` at once
        with stop.deferred():         # a signal is only recorded: weights may be changing
            with stop.cancelling():   # a signal cancels what this task waits for, such as rollouts
                await rollouts()
            stop.check()              # raises `RunInterrupted` when a signal has come

A second signal quits at once: it ends the process when that is a command of ours, and raises a plain
`KeyboardInterrupt` otherwise.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any, NamedTuple

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_QUIT = b"quitting at once; whatever was not saved is lost\n"

_owns_process: ContextVar[bool] = ContextVar("owns_process", default=False)
"""Whether the program is a command of ours, which a second signal may end at once."""


class RunInterrupted(KeyboardInterrupt):
    """A signal ended the run. The message says what was saved and how to resume."""

    is_silent = False
    """Whether another process of the same run shows it."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number
        """What a shell expects of a program that a signal ended: 130, 143, 129."""


class _Interrupted(KeyboardInterrupt):
    """Raised by a signal in another thread than the main one; `raised_in_this_thread` turns it into
    `RunInterrupted`."""


class _Waiting(NamedTuple):
    """A task that a signal cancels."""

    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[Any]
    first: Callable[[], None]


class StopSignals:
    """Which signals were received, and how to react to them."""

    def __init__(self, *, quiet: bool = True, blocks_loop: bool = False) -> None:
        self.received: int | None = None
        """The first signal received."""
        self.repeat_seconds = 0.0
        """A further signal within this time after the first is the same one: several processes pass it on."""
        self._received_at = 0.0
        self._blocks_loop = blocks_loop
        self._thread: int | None = None
        self._raised: RunInterrupted | None = None
        self._outcome = "Nothing was saved: run the same command again to start over."
        self._quiet = quiet
        self._may_exit = _owns_process.get()
        self._num_deferred = 0
        self._waiting: _Waiting | None = None
        self._before: dict[int, Any] = {}

    @property
    def name(self) -> str:
        """The signal's name, for the user."""
        return signal.Signals(self.received).name if self.received is not None else ""

    def install(self) -> None:
        """Handle signals that have no other handler; ignored signals, as under nohup, stay ignored.

        With `blocks_loop`, the handler of `asyncio.run` is replaced too: it cancels the main task, which cannot notice
        while it blocks the loop.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            before = signal.getsignal(number)
            is_asyncio = self._blocks_loop and getattr(getattr(before, "func", None), "__name__", "") == "_on_sigint"
            if is_asyncio or before in (signal.SIG_DFL, signal.default_int_handler):
                self._before[number] = before
                signal.signal(number, self._handle)

    def uninstall(self) -> None:
        """Restore the previous handlers."""
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def silence(self) -> None:
        """Print nothing when a signal comes: another process of the run does."""
        self._quiet = True

    def check(self) -> None:
        """Raise `RunInterrupted` when a signal has come in."""
        if self.received is not None:
            raise self.interruption()

    def interruption(self, outcome: str | None = None) -> RunInterrupted:
        """The error that ends the run, with what it leaves."""
        number = self.received if self.received is not None else int(signal.SIGINT)
        name = signal.Signals(number).name
        return RunInterrupted(number, f"Interrupted by {name}. {self._outcome if outcome is None else outcome}")

    @contextmanager
    def leaving(self, outcome: str) -> Iterator[None]:
        """Inside, an interruption tells the user this outcome."""
        before, self._outcome = self._outcome, outcome
        try:
            yield
        finally:
            self._outcome = before

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, a signal is recorded and raises nothing by itself."""
        self._num_deferred += 1
        try:
            yield
        finally:
            self._num_deferred -= 1

    @contextmanager
    def cancelling(self, first: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Inside, a signal calls `first`, cancels what the current task waits for and raises `RunInterrupted`."""
        task = asyncio.current_task()
        assert task is not None
        with self.deferred():
            self._waiting = _Waiting(asyncio.get_running_loop(), task, first)
            try:
                self.check()
                yield
            except asyncio.CancelledError:
                if self.received is None:
                    raise
                raise self.interruption() from None
            finally:
                self._waiting = None
                if self.received is not None and task.cancelling():
                    task.uncancel()

    @contextmanager
    def raised_in_this_thread(self) -> Iterator[None]:
        """Inside, a signal raises its `RunInterrupted` in the current thread, while the main thread waits for it."""
        before, self._thread = self._thread, threading.get_ident()
        try:
            yield
        except _Interrupted:
            raise self._raised or self.interruption() from None
        finally:
            self._thread = before

    def _raise(self) -> None:
        if self._thread is None:
            raise self.interruption()
        self._raised = self.interruption()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(_Interrupted))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            if time.monotonic() - self._received_at < self.repeat_seconds:
                return
            self._quit(number)
        self.received, self._received_at = number, time.monotonic()
        if number == getattr(signal, "SIGHUP", None):
            _leave_closed_terminals()
        if not self._num_deferred:
            self._raise()
            return
        if not self._quiet:
            what = "stopping" if self._waiting is not None else "stopping after the current step"
            _write(f"{self.name}: {what}; a second Ctrl-C quits at once\n".encode())
        if self._waiting is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._waiting.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        waiting = self._waiting
        if waiting is not None:
            try:
                waiting.first()
            finally:
                waiting.task.cancel()

    def _quit(self, number: int) -> None:
        if not self._may_exit:
            if self._thread is not None:
                self._raise()
            raise KeyboardInterrupt
        _write(_QUIT)
        os._exit(128 + number)


_active: ContextVar[StopSignals | None] = ContextVar("stop_signals", default=None)


@contextmanager
def stop_signals(*, quiet: bool = True, blocks_loop: bool = False) -> Iterator[StopSignals]:
    """Handle signals inside the block; blocks inside it share the first one's handling. With `quiet`, a signal prints
    nothing; `blocks_loop` says that the block holds up an event loop that runs in this thread."""
    outer = _active.get()
    if outer is not None:
        yield outer
        return
    stop = StopSignals(quiet=quiet, blocks_loop=blocks_loop)
    token = _active.set(stop)
    stop.install()
    try:
        yield stop
    finally:
        stop.uninstall()
        _active.reset(token)


@contextmanager
def ours_to_end() -> Iterator[None]:
    """Inside, a second signal ends the process."""
    token = _owns_process.set(True)
    try:
        yield
    finally:
        _owns_process.reset(token)


def _leave_closed_terminals() -> None:
    """Redirect closed terminals to /dev/null: every write to them would fail, and the run must still save."""
    with suppress(OSError, AttributeError):
        for descriptor in (sys.__stdout__, sys.__stderr__):
            if descriptor is None:
                continue
            poll = select.poll()
            poll.register(descriptor.fileno(), 0)
            if any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0)):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor.fileno())
                os.close(nowhere)


def _write(text: bytes) -> None:
    """Write to standard error unbuffered: a handler must not enter a buffered writer that it may have interrupted."""
    with suppress(OSError):
        os.write(2, text)
