"""The errors that Agent-R1 raises, and the boundary between its code and user code.

    AgentR1Error
    |-- ConfigError (ValueError)           a key, value or combination in the configuration
    |-- DataError (ValueError)             a row, a column or a file
    |-- ImageError (ValueError)            an image that is broken, hostile or beyond a limit
    |-- UnsupportedMediaError (ValueError) images, video or audio that the model does not read
    |-- ChatTemplateError (ValueError)     a conversation that the model's chat template rejects
    |-- UnknownNameError (LookupError)     a name that is not registered
    |-- MissingExtraError (ImportError)    an optional dependency; the message has the pip line
    |-- CheckpointError (RuntimeError)     a checkpoint that cannot be read or does not fit
    |-- RunLockedError (RuntimeError)      a run folder that another process uses
    |-- StorageError (OSError)             a file or folder that cannot be written
    |-- ExportError (RuntimeError)         a trained model that cannot be exported as a Hugging Face folder
    |-- TrackerError (RuntimeError)        a tracker that cannot be opened or cannot log
    |-- EngineError (RuntimeError)         an engine that cannot complete a request
    |   |-- EngineRequestError (ValueError) the request itself can never be served
    |   `-- EngineLostError               no request can be served any more: the run ends
    |-- EnvTimeoutError (TimeoutError)     an environment that took too long
    |-- EnvServerError (ConnectionError)   an environment server that cannot be reached or sends a wrong reply
    |   `-- EpisodeLostError               it no longer has the episode: it was restarted, or the episode was idle
    |-- DivergenceError (ArithmeticError)  too many non-finite updates in a row, or weights that exploded
    |-- DeviceMemoryError (MemoryError)    a GPU with too little memory for an update or an engine
    |-- RolloutsFailingError (RuntimeError) every rollout of a batch failed
    |-- WorkersError (RuntimeError)        rollout workers that cannot be started, or that keep dying
    |-- RankError (RuntimeError)           one of several processes failed or was lost
    `-- EpisodeError (RuntimeError)        one rollout failed; has its StopReason and traceback

A message says what was wrong, what was found and what to do.
"""

from __future__ import annotations

import asyncio
import os
import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from difflib import get_close_matches
from importlib import metadata
from importlib.util import find_spec
from types import TracebackType
from typing import Any

from agent_r1.types import StopReason, media_in

MAX_TRACEBACK_CHARS = 20_000

INTERRUPTIONS = (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)
"""Exceptions that end a run, a generator or a task from outside; they pass through every boundary. Everything else that
user code raises is its failure, also `SystemExit` and other exceptions outside `Exception`, such as panics of Rust
code."""


class AgentR1Error(Exception):
    """Base of all errors that Agent-R1 raises."""

    is_silent = False
    """Whether another process of the same run shows it."""


class ConfigError(AgentR1Error, ValueError):
    """The configuration is wrong."""


class DataError(AgentR1Error, ValueError):
    """A data file is wrong."""


class ImageError(AgentR1Error, ValueError):
    """An image cannot be used."""


class UnsupportedMediaError(AgentR1Error, ValueError):
    """Content that is not text."""


class ChatTemplateError(AgentR1Error, ValueError):
    """A model's chat template rejects a conversation."""


class UnknownNameError(AgentR1Error, LookupError):
    """A name is not registered."""


class MissingExtraError(AgentR1Error, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package '{package}': pip install 'agent-r1[{extra}]'")


def require_installed(module: str, package: str, extra: str, purpose: str) -> None:
    """Raise `MissingExtraError` when a module of an optional dependency is not installed; nothing is imported."""
    if find_spec(module) is None:
        raise MissingExtraError(package, extra, purpose)


def pip_advice(module: str) -> str:
    """For PIL, which an extra brings: ": pip install 'agent-r1[images]'"; "" for a module that none brings."""
    package = {"PIL": "pillow"}.get(module, module.replace("_", "-"))
    with suppress(metadata.PackageNotFoundError):
        for line in metadata.requires("agent-r1") or ():
            if extra := re.fullmatch(rf"{re.escape(package)}\W.*extra == \W([\w-]+)\W", line):
                return f": pip install 'agent-r1[{extra[1]}]'"
    return ""


class CheckpointError(AgentR1Error, RuntimeError):
    """A checkpoint cannot be used."""


class RunLockedError(AgentR1Error, RuntimeError):
    """Another live process uses the run folder."""


class StorageError(AgentR1Error, OSError):
    """A file or folder cannot be written: the disk is full or not writable."""


class ExportError(AgentR1Error, RuntimeError):
    """A trained model cannot be exported."""


class TrackerError(AgentR1Error, RuntimeError):
    """A tracker cannot be opened, or cannot log."""


class EngineError(AgentR1Error, RuntimeError):
    """The engine cannot complete a request."""


class EngineRequestError(EngineError, ValueError):
    """The engine refuses a request: its prompt or its sampling parameters can never be served."""


class EngineLostError(EngineError):
    """The engine cannot serve any request any more. It is no failure of one rollout: it ends the run."""


class EnvTimeoutError(AgentR1Error, TimeoutError):
    """An environment took too long."""


class EnvServerError(AgentR1Error, ConnectionError):
    """An environment server cannot be used."""


class EpisodeLostError(EnvServerError):
    """The server no longer has the episode; a new environment must be made."""


class DivergenceError(AgentR1Error, ArithmeticError):
    """Updates stayed non-finite, or weights exploded."""


class DeviceMemoryError(AgentR1Error, MemoryError):
    """The device has too little memory for an update, or for a model and its engine."""


class RolloutsFailingError(AgentR1Error, RuntimeError):
    """Every rollout of a batch failed."""


class WorkersError(AgentR1Error, RuntimeError):
    """Rollout workers cannot be started, or keep dying."""


class RankError(AgentR1Error, RuntimeError):
    """One of the processes of a run failed or was lost."""


class EpisodeError(AgentR1Error, RuntimeError):
    """One rollout failed for a reason outside the policy."""

    def __init__(self, reason: StopReason, where: str, details: str) -> None:
        super().__init__(f"{where} failed ({reason}):\n{details}")
        self.reason = reason
        self.where = where
        self.details = details


class boundary:  # noqa: N801 - it is used like a function
    """Turn any exception of user code into `EpisodeError(reason)`; the one broad `except` of the rollout. Only
    `INTERRUPTIONS` and the loss of the engine pass.

    A process that this code forked ends here when it comes back, also by `sys.exit`: it would continue the run as a
    second one.

    It is a class because a context manager made from a generator lets `StopIteration` pass.

    >>> with boundary(StopReason.ENV_ERROR, "reset of env 'shop'"):
    ...     raise OSError("connection lost")
    Traceback (most recent call last):
    agent_r1.errors.EpisodeError: reset of env 'shop' failed (env_error): ...
    """

    def __init__(self, reason: StopReason, where: str) -> None:
        self._reason = reason
        self._where = where
        self._process = os.getpid()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._process:
            os._exit(0)
        if error is None or isinstance(error, (EpisodeError, EngineLostError, *INTERRUPTIONS)):
            return
        raise EpisodeError(self._reason, self._where, _traceback(error)) from error


@contextmanager
def no_exit(where: str) -> Iterator[None]:
    """For user code outside episodes: exceptions pass unchanged, but `SystemExit` and the like become a `ConfigError`.
    A `sys.exit(0)` in user code must not end a run as if it had succeeded.

    >>> with no_exit("the data preparation 'prepare:main'"):
    ...     raise SystemExit(0)
    Traceback (most recent call last):
    agent_r1.errors.ConfigError: the data preparation 'prepare:main' raised SystemExit: 0; ...
    """
    try:
        yield
    except (Exception, *INTERRUPTIONS):
        raise
    except BaseException as error:
        if isinstance(error.__context__, BrokenPipeError):  # the console leaves when its reader did: `| head`
            raise
        raise ConfigError(
            f"{where} raised {described(error)}; code that a run calls must return, or raise an exception that says "
            "what is wrong"
        ) from error


_importing: ContextVar[str | None] = ContextVar("importing", default=None)


@contextmanager
def importing(module: str) -> Iterator[None]:
    """Inside, a run imports a module of its user, which must not start a run itself."""
    token = _importing.set(module)
    try:
        yield
    finally:
        _importing.reset(token)


def refuse_run_in_import() -> None:
    """Raise `ConfigError` inside `importing`: a run that a module starts while it is imported may wait for that import,
    for ever."""
    module = _importing.get()
    if module is not None:
        raise ConfigError(
            f"the module '{module}' starts a run while a run imports it. Put the call under "
            "`if __name__ == '__main__':`, or what the run names into a module of its own"
        )


def portable(error: BaseException) -> Exception:
    """The same failure as an exception that a future can hold: `SystemExit` would end the event loop, and a future
    rejects `StopIteration`."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    carried = RuntimeError(described(error))
    carried.__cause__ = error
    return carried


def described(error: BaseException) -> str:
    """The type of an exception and its message, if it has one.

    >>> described(SystemExit(0)), described(StopIteration())
    ('SystemExit: 0', 'StopIteration')
    """
    try:
        text = str(error)
    except INTERRUPTIONS:
        raise
    except BaseException:  # `__str__` of the exception may raise itself
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def raising(kind: type[AgentR1Error], what: str) -> Iterator[None]:
    """Turn any exception of a library into `kind`; errors of Agent-R1 pass unchanged.

    >>> with raising(ExportError, "hf cannot be exported"):
    ...     raise KeyError("lm_head")
    Traceback (most recent call last):
    agent_r1.errors.ExportError: hf cannot be exported (KeyError: 'lm_head')
    """
    try:
        yield
    except AgentR1Error:
        raise
    except Exception as error:
        raise kind(f"{what} ({type(error).__name__}: {str(error).strip()})") from error


def _traceback(error: BaseException) -> str:
    """The traceback, with the middle of a very long one left out."""
    text = "".join(traceback.format_exception(error))
    if len(text) <= MAX_TRACEBACK_CHARS:
        return text
    half = MAX_TRACEBACK_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def refuse_media(where: str, messages: Iterable[Any] = (), images: Sequence[Any] = ()) -> None:
    """Raise `UnsupportedMediaError` for content that is not text, where a model reads text alone: a model that never
    sees an image must not be trained as if it did."""
    kinds = media_in(messages)
    if images and "image" not in kinds:
        kinds = ["image", *kinds]
    if kinds == ["image"]:
        raise UnsupportedMediaError(
            f"{where} holds image content, which this model does not see: it reads text alone. Choose a model with a "
            "vision tower (model.path), describe the image in text, or leave it out"
        )
    if kinds:
        raise UnsupportedMediaError(
            f"{where} holds {' and '.join(kinds)} content, which no model of Agent-R1 reads. Describe it in text, or "
            "leave it out"
        )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The second half of an unknown-name message: the nearest match and all known names.

    >>> did_you_mean("grop", ["grpo", "ppo"])
    "Did you mean 'grpo'? Known: grpo, ppo."
    """
    names = sorted(set(known))
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}Known: {', '.join(names) or 'none'}."


def report_problems(problems: list[str], error: type[AgentR1Error], title: str) -> None:
    """Raise `error` with every problem; do nothing when there is none."""
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise error(f"{title}\n{listed}")
