"""Every error Agent-R1 raises on purpose, and the boundary that tells whose fault an exception is.

    AgentR1Error
    |-- ConfigError (ValueError)           a key, value or combination in the configuration
    |-- DataError (ValueError)             a row, a column or a file
    |-- ChatTemplateError (ValueError)     a conversation that the model's chat template refuses
    |-- UnknownNameError (LookupError)     a name that is in no registry
    |-- MissingExtraError (ImportError)    an optional dependency; the message has the pip line
    |-- CheckpointError (RuntimeError)     a checkpoint that cannot be read or does not fit
    |-- StorageError (OSError)             a file or folder that cannot be written
    |-- EngineError (RuntimeError)         an engine that cannot answer
    |-- EnvTimeoutError (TimeoutError)     an environment that took too long
    |-- EnvServerError (ConnectionError)   an environment server that cannot be reached or does not answer as it should
    |   `-- EpisodeLostError               it does not know the episode: it was restarted, or closed an idle episode
    |-- DivergenceError (ArithmeticError)  too many non-finite updates in a row
    |-- DeviceMemoryError (MemoryError)    a GPU with too little memory for an update
    |-- RolloutsFailingError (RuntimeError) every rollout of a batch failed
    `-- EpisodeError (RuntimeError)        one rollout broke; carries its StopReason and traceback

A message says what was wrong, what was found and what to do.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec

from agent_r1.types import StopReason

MAX_TRACEBACK_CHARS = 20_000


class AgentR1Error(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(AgentR1Error, ValueError):
    """The configuration is wrong."""


class DataError(AgentR1Error, ValueError):
    """A data file is wrong."""


class ChatTemplateError(AgentR1Error, ValueError):
    """A model's chat template refuses a conversation."""


class UnknownNameError(AgentR1Error, LookupError):
    """A name is in no registry."""


class MissingExtraError(AgentR1Error, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package '{package}': pip install 'agent-r1[{extra}]'")


def require_installed(module: str, package: str, extra: str, purpose: str) -> None:
    """Raise `MissingExtraError` when a module of an optional dependency is not there; it is not imported yet."""
    if find_spec(module) is None:
        raise MissingExtraError(package, extra, purpose)


class CheckpointError(AgentR1Error, RuntimeError):
    """A checkpoint cannot be used."""


class StorageError(AgentR1Error, OSError):
    """A file or folder cannot be written: the disk is full, or closed to us."""


class EngineError(AgentR1Error, RuntimeError):
    """The engine cannot answer."""


class EnvTimeoutError(AgentR1Error, TimeoutError):
    """An environment took too long."""


class EnvServerError(AgentR1Error, ConnectionError):
    """An environment server cannot be used."""


class EpisodeLostError(EnvServerError):
    """The server does not know the episode; only a fresh environment helps."""


class DivergenceError(AgentR1Error, ArithmeticError):
    """Updates stayed non-finite."""


class DeviceMemoryError(AgentR1Error, MemoryError):
    """The device has too little memory for an update."""


class RolloutsFailingError(AgentR1Error, RuntimeError):
    """Every rollout of a batch failed."""


class EpisodeError(AgentR1Error, RuntimeError):
    """One rollout broke for a reason that is not the policy's."""

    def __init__(self, reason: StopReason, where: str, details: str) -> None:
        super().__init__(f"{where} failed ({reason}):\n{details}")
        self.reason = reason
        self.where = where
        self.details = details


@contextmanager
def boundary(reason: StopReason, where: str) -> Iterator[None]:
    """Turn any exception of foreign code into `EpisodeError(reason)`; the one broad `except` of the rollout.

    >>> with boundary(StopReason.ENV_ERROR, "reset of env 'shop'"):
    ...     raise OSError("connection lost")
    Traceback (most recent call last):
    agent_r1.errors.EpisodeError: reset of env 'shop' failed (env_error): ...
    """
    try:
        yield
    except EpisodeError:
        raise
    except Exception as error:
        raise EpisodeError(reason, where, _traceback(error)) from error


def _traceback(error: BaseException) -> str:
    """The traceback, without the middle of a message that would fill the memory and the records."""
    text = "".join(traceback.format_exception(error))
    if len(text) <= MAX_TRACEBACK_CHARS:
        return text
    half = MAX_TRACEBACK_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The second half of an unknown-name message: the nearest match and everything there is.

    >>> did_you_mean("grop", ["grpo", "ppo"])
    "Did you mean 'grpo'? Known: grpo, ppo."
    """
    names = sorted(set(known))
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}Known: {', '.join(names) or 'none'}."


def report_problems(problems: list[str], error: type[AgentR1Error], title: str) -> None:
    """Raise `error` naming every problem at once; do nothing when there is none."""
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise error(f"{title}\n{listed}")
