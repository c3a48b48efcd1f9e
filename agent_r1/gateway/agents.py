"""The user's agent in one rollout: a function, a command, or a program on another machine.

It gets the task and an address that speaks the OpenAI API, and it may return an answer:

    def solve(task, base_url, api_key): ...       # agent.function=my_agent:solve, also async
    python my_agent.py                            # agent.command, with OPENAI_BASE_URL and OPENAI_API_KEY
    POST /rollouts                                # agent.remote=true: a worker asks for a task and its address

An agent that raises, is killed or exits with an error fails the rollout (`agent_error`), and the rollout is retried.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent_r1.errors import EpisodeError, boundary
from agent_r1.images import openai_content, picture_messages
from agent_r1.tools.workers import call_off_loop
from agent_r1.types import Message, StopReason, Task

MAX_OUTPUT_BYTES = 64 * 1024
"""Bytes that are kept of what a command writes: its end."""
_MAX_TASK_VARIABLE = 64 * 1024
"""A task larger than this is on the standard input only: the kernel limits the size of a variable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """What an agent needs for one rollout."""

    task: Mapping[str, Any]
    """The row as JSON, without what only the reward may see."""
    base_url: str
    """The address of the rollout: `http://127.0.0.1:8600/<token>/v1`."""
    api_key: str
    """The key to send with each request."""
    finished: asyncio.Future[str | None]
    """Resolved with the answer of a remote program."""


class Agent(Protocol):
    """Runs the user's agent."""

    async def run(self, assignment: Assignment) -> str | None:
        """The agent's answer, or None. Raises `EpisodeError` when the agent fails; when it is cancelled, the agent is
        stopped."""
        ...


def task_for_agent(task: Task) -> dict[str, Any]:
    """What an agent sees of a task: everything but the ground truth. Images are as the OpenAI API has them."""
    return {
        "task_id": task.task_id,
        "prompt": [_for_agent(message) for message in picture_messages(task.prompt)],
        "data_source": task.data_source,
        "env_kwargs": dict(task.env_kwargs),
        "extra_info": dict(task.extra_info),
    }


def _for_agent(message: Message) -> dict[str, Any]:
    return {key: openai_content(value) if key == "content" else value for key, value in message.items()}


@dataclass(frozen=True, slots=True)
class FunctionAgent:
    """Calls a function in this process: `async def` on the event loop, any other in a thread of its own."""

    function: Callable[..., Any]
    name: str

    async def run(self, assignment: Assignment) -> str | None:
        """What the function returns."""
        with boundary(StopReason.AGENT_ERROR, f"the agent '{self.name}'"):
            returned = await call_off_loop(
                self.function, dict(assignment.task), assignment.base_url, assignment.api_key
            )
            return _answer(returned)


def _answer(returned: Any) -> str | None:
    if returned is None or isinstance(returned, str):
        return returned
    if isinstance(returned, int | float):
        return str(returned)
    raise TypeError(f"an agent returns its answer as text or a number, or None; got {type(returned).__name__}")


@dataclass(frozen=True, slots=True)
class CommandAgent:
    """Starts a process per rollout, in a session of its own, which is killed as a whole."""

    command: str

    async def run(self, assignment: Assignment) -> str | None:
        """The last line of the process's standard output; None when there is none."""
        where = f"the agent '{self.command}'"
        with boundary(StopReason.AGENT_ERROR, where):
            process = await asyncio.create_subprocess_exec(
                *shlex.split(self.command),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                env=_environment(assignment),
            )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        output, errors = _Tail(), _Tail()
        reading = asyncio.gather(output.read(process.stdout), errors.read(process.stderr))
        try:
            await _write(process.stdin, json.dumps(assignment.task).encode() + b"\n")
            await process.wait()
        finally:
            await _kill_group(process)
            with suppress(TimeoutError):  # a child in a session of its own may keep the pipes open
                await asyncio.wait_for(reading, 1.0)
        if process.returncode != 0:
            details = f"it {_how_it_ended(process.returncode)}. The end of its standard error:\n{errors.text}"
            raise EpisodeError(StopReason.AGENT_ERROR, where, details)
        lines = output.text.split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), None)


def _environment(assignment: Assignment) -> dict[str, str]:
    task_text = json.dumps(assignment.task)
    variables = {
        "OPENAI_BASE_URL": assignment.base_url,
        "OPENAI_API_BASE": assignment.base_url,
        "OPENAI_API_KEY": assignment.api_key,
    }
    if len(task_text) <= _MAX_TASK_VARIABLE:
        variables["AGENT_R1_TASK"] = task_text
    return {**os.environ, **variables}


async def _write(pipe: asyncio.StreamWriter, content: bytes) -> None:
    """Write and close; an agent need not read its standard input."""
    with suppress(ConnectionError):
        pipe.write(content)
        await pipe.drain()
        pipe.close()
        await pipe.wait_closed()


async def _kill_group(process: asyncio.subprocess.Process) -> None:
    """SIGKILL for the process and all its children, also those it left behind."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        await process.wait()


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


class _Tail:
    """The end of what a process writes."""

    def __init__(self) -> None:
        self._kept = bytearray()

    async def read(self, stream: asyncio.StreamReader) -> None:
        while part := await stream.read(1 << 16):
            self._kept += part
            del self._kept[:-MAX_OUTPUT_BYTES]

    @property
    def text(self) -> str:
        return self._kept.decode(errors="replace")


@dataclass(slots=True)
class RemoteAgents:
    """Rollouts that wait for a program which asks for them (`POST /rollouts`)."""

    is_closed: bool = False
    """The run is over: there is nothing left to claim."""
    _waiting: deque[Assignment] = field(default_factory=deque)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, assignment: Assignment) -> str | None:
        """What the program that claims the rollout sends at its end (`POST <address>/finish`)."""
        self._waiting.append(assignment)
        self._arrived.set()
        try:
            return await assignment.finished
        finally:
            with suppress(ValueError):
                self._waiting.remove(assignment)

    async def claim(self, wait_seconds: float) -> Assignment | None:
        """The rollout that has waited longest; None when there is none within `wait_seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                while not self._waiting and not self.is_closed:
                    self._arrived.clear()
                    await self._arrived.wait()
        return self._waiting.popleft() if self._waiting else None

    def take_back(self, assignment: Assignment) -> None:
        """A claimed rollout that did not reach its worker is the next one to be claimed, unless it has ended."""
        if not assignment.finished.done():
            self._waiting.appendleft(assignment)
            self._arrived.set()

    def close(self) -> None:
        """Tell those who wait for a rollout that there will be none."""
        self.is_closed = True
        self._arrived.set()
