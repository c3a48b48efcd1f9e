"""Functions for worker processes: what tools and rewards do on a bad day. They must be found by `module:qualname`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from agent_r1.tools import BaseTool, ToolContext, ToolPolicy, ToolResponse, ToolResult, tool
from agent_r1.types import Episode, Task


def double(number: int) -> int:
    return 2 * number


async def double_later(number: int) -> int:
    await asyncio.sleep(0.01)
    return 2 * number


def own_pid() -> int:
    return os.getpid()


def raise_value_error() -> None:
    raise ValueError("there is no tea")


def loop_for_ever() -> None:
    while True:
        pass


def sleep_for_ever() -> None:
    time.sleep(1000)


def ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    loop_for_ever()


def hold_the_interpreter(file: str | None = None) -> None:
    """A regular expression that backtracks for ever, in C."""
    if file is not None:
        Path(file).write_text(str(os.getpid()))
    re.match(r"(a+)+$", "a" * 64 + "b")


def swallow_everything() -> None:
    while True:
        try:
            time.sleep(1000)
        except BaseException:  # noqa: BLE001
            continue


def leave(code: int) -> None:
    os._exit(code)


def exit_politely() -> None:
    sys.exit(3)


def segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def be_killed() -> None:
    """As the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def eat_memory() -> int:
    hoard = []
    while True:
        hoard.append(bytearray(16 * 2**20))


def huge_text(size: int) -> str:
    return "x" * size


def an_object() -> object:
    return object()


def circle() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def fork_and_hang(file: str) -> None:
    """A child and a grandchild that outlive their parent, unless they are killed."""
    if os.fork() == 0:
        os.fork()
        with Path(file).open("a") as written:
            written.write(f"{os.getpid()}\n")
        time.sleep(1000)
    time.sleep(1000)


def fork_and_answer(file: str) -> str:
    """Leave a child behind."""
    child = subprocess.Popen(["sleep", "1000"])
    Path(file).write_text(f"{child.pid}\n")
    return "done"


def leave_an_orphan(file: str) -> str:
    """Leave a grandchild behind, whose parent has ended."""
    subprocess.run(["sh", "-c", f"sleep 1000 & echo $! > {file}"], check=True)
    return "done"


def leave_an_orphan_in_its_own_session(file: str) -> str:
    """The same, out of reach of a signal to the worker's process group."""
    subprocess.run(["sh", "-c", f"sleep 1000 & echo $! > {file}"], check=True, start_new_session=True)
    return "done"


def leave_one_that_has_ended() -> str:
    """A child that has ended and was not waited for."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return "done"


def fork_and_come_back() -> str:
    """Both processes return from the call."""
    os.fork()
    return "hello"


def fork_and_die(file: str) -> None:
    """The worker ends while its child lives."""
    child = os.fork()
    if child == 0:
        time.sleep(1000)
    Path(file).write_text(f"{child}\n")
    os._exit(7)


def hang_here(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    loop_for_ever()


def length_reward(task: Task, episode: Episode) -> dict[str, Any]:
    return {"score": 0.5, "answer": task.ground_truth, "steps": len(episode.steps)}


def hanging_reward(task: Task, episode: Episode) -> float:
    loop_for_ever()
    return 0.0


def hangs_once(task: Task, episode: Episode) -> float:
    """Hang, unless another has hung before."""
    file = Path(task.env_kwargs["file"])
    if not file.exists():
        hang_here(str(file))
    return 1.0


def nan_reward(task: Task, episode: Episode) -> float:
    return float("nan")


def raising_reward(task: Task, episode: Episode) -> float:
    raise KeyError("no ground truth")


@tool(name="tests_in_process", process=True, timeout=20)
def in_process(text: str, context: ToolContext) -> tuple[str, float, dict[str, int]]:
    """Shout from another process.

    Args:
        text: What to shout.
    """
    context.state["calls"] = context.state.get("calls", 0) + 1
    return f"{text.upper()} {context.task.task_id} {context.task.ground_truth}", 0.5, {"pid": os.getpid()}


@tool(name="tests_notes", process=True, timeout=20)
def notes(key: str, context: ToolContext) -> str:
    """Write a note and count the notes, slowly.

    Args:
        key: What to note.
    """
    number = context.state.get("notes", 0)
    time.sleep(0.02)
    context.state.update({"notes": number + 1, key: True})
    return key


@tool(name="tests_removes", process=True, timeout=20)
def removes(key: str, context: ToolContext) -> str:
    """Remove a note.

    Args:
        key: What to remove.
    """
    return str(context.state.pop(key))


@tool(name="tests_hangs", process=True, timeout=0.3)
def hangs() -> str:
    """Hang."""
    while True:
        pass


@tool(name="tests_huge", process=True, timeout=20)
def huge(size: int) -> str:
    """A long answer."""
    return "a" + "x" * size + "z"


@tool(name="tests_dies", process=True, timeout=20, retries=1)
def dies() -> str:
    """Die."""
    os._exit(3)


@tool(name="tests_picture", process=True, timeout=20)
def picture() -> ToolResponse:
    """A picture."""
    return ToolResponse(text="a dot", images=(Image.new("RGB", (3, 2), (9, 8, 7)),))


class EchoTool(BaseTool):
    """A class as a tool of a worker process."""

    name = "tests_echo_process"
    tool_schema: Mapping[str, Any] = {"type": "function", "function": {"name": "tests_echo_process"}}
    policy = ToolPolicy(process=True, timeout=20)

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        await asyncio.sleep(0)
        return ToolResponse(text=f"{args['text']} {kwargs['context'].task.task_id}"), None, {"pid": os.getpid()}


@tool(name="tests_told")
def told(context: ToolContext) -> str:
    """What a tool knows of its row."""
    return f"{context.task.task_id} {context.task.ground_truth}"


@tool(name="tests_told_elsewhere", process=True)
def told_elsewhere(context: ToolContext) -> str:
    """The same in a worker process."""
    return f"{context.task.task_id} {context.task.ground_truth}"


class PrefixTool(BaseTool):
    """Runs in a worker process, with an argument."""

    name = "tests_prefix"
    policy = ToolPolicy(process=True)
    tool_schema: Mapping[str, Any] = {"type": "function", "function": {"name": "tests_prefix"}}

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        return ToolResponse(text=f"{self.prefix}{args['text']}"), None, {}


@tool(name="tests_forks", process=True, timeout=20)
def forks(file: str) -> str:
    """Leave a process behind.

    Args:
        file: Where to write its number.
    """
    return fork_and_answer(file)


def forget_waitid() -> None:
    """Make this process one of a system whose Python has no `os.waitid`."""
    del os.waitid
