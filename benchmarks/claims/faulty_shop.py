"""The quickstart's shop on a bad day: its own tools, environment and reward, each with a fault that strikes at a rate.

Used by `faults.py`. Which draw is a fault follows from the seed and the draw's number, which all processes count
together in one file; what strikes is written down in another, so that it can be compared with what a run reports.
Held-out tasks (`eval-...`) are never struck.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the clone: agent_r1, benchmarks, recipes

from agent_r1.codec import records
from agent_r1.envs import ToolEnv
from agent_r1.seeds import unit_float
from agent_r1.tools import FunctionTool, ToolContext, ToolPolicy, calculate
from agent_r1.types import Action, Episode, Observation, StepResult, Task
from recipes.quickstart import reward_fn
from recipes.quickstart.tools import price as own_price

PLAN = "AGENT_R1_FAULTS"
"""The variable that holds the plan, for worker processes and servers too: `{"folder", "rate", "seed"}` as JSON."""

HUGE = 100_000_000
SLEEP = 1000.0
LATE_SECONDS = 6.0
SWAP_SECONDS = 0.5


def draw(task_id: str) -> int | None:
    """The number of the next draw when a fault strikes now."""
    plan = json.loads(os.environ[PLAN])
    if task_id.startswith("eval-"):
        return None
    number = _count(Path(plan["folder"]) / "draws")
    return number if unit_float(plan["seed"], number) < plan["rate"] else None


def note(task_id: str, kind: str, **more: Any) -> None:
    """Write down what strikes."""
    with (Path(json.loads(os.environ[PLAN])["folder"]) / "faults.jsonl").open("a") as file:
        file.write(json.dumps({"task_id": task_id, "kind": kind, **more}) + "\n")


def strikes(task: Task, kind: str = "fault") -> bool:
    """A fault strikes now, and is written down."""
    struck = draw(task.task_id) is not None
    if struck:
        note(task.task_id, kind)
    return struck


def _count(path: Path) -> int:
    """One more, over all processes: where an appending write ends is the number of bytes so far."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, b".")
        return os.lseek(file, 0, os.SEEK_CUR)
    finally:
        os.close(file)


# --- tools ------------------------------------------------------------------------------------------------------------


async def raising_price(item: str, context: ToolContext) -> tuple[str, float]:  # noqa: D103 - the model reads own_price's
    if strikes(context.task):
        raise OSError("the price list cannot be read")
    return await _own(item, context)


async def huge_price(item: str, context: ToolContext) -> tuple[str, float]:  # noqa: D103
    if strikes(context.task):
        return "9" * HUGE, 0.0
    return await _own(item, context)


async def garbage_price(item: str, context: ToolContext) -> Any:  # noqa: D103
    number = draw(context.task.task_id)
    if number is None:
        return await _own(item, context)
    ring: list[Any] = []
    ring.append(ring)
    garbage = (object(), b"\xff\x00", ring, ("5", "much"), ("5", float("nan")), ("5", 0.1, "notes"), {(1, 2): 3})
    chosen = garbage[number % len(garbage)]
    note(context.task.task_id, "fault", returned=type(chosen).__name__)
    return chosen


async def hanging_price(item: str, context: ToolContext) -> tuple[str, float]:  # noqa: D103
    number = draw(context.task.task_id)
    if number is not None:
        note(context.task.task_id, "fault", pid=os.getpid())
        while number % 4 == 0:  # one in four burns a core
            pass
        time.sleep(SLEEP)
    return await _own(item, context)


async def forking_price(item: str, context: ToolContext) -> tuple[str, float]:  # noqa: D103
    number = draw(context.task.task_id)
    if number is not None:
        child = os.fork()
        if child == 0:
            time.sleep(SLEEP)
            os._exit(0)
        dies = number % 2 == 0
        note(context.task.task_id, "fault" if dies else "left behind", pid=child)
        if dies:
            os._exit(7)
    return await _own(item, context)


async def _own(item: str, context: ToolContext) -> tuple[str, float]:
    answer: tuple[str, float] = await own_price.function(item, context)
    return answer


def _price(function: Callable[..., Any], **limits: Any) -> FunctionTool:
    function.__doc__ = own_price.function.__doc__
    return FunctionTool(function, "price", ToolPolicy(**limits))


raises = _price(raising_price)
huge = _price(huge_price)
garbage = _price(garbage_price)
hangs = _price(hanging_price, process=True, timeout=1.0)
forks = _price(forking_price, process=True)


# --- rewards ----------------------------------------------------------------------------------------------------------


def raising_score(task: Task, episode: Episode) -> Mapping[str, Any]:
    """The quickstart's reward, or an exception."""
    if strikes(task):
        raise KeyError("ground_truth")
    return reward_fn.score(task, episode)


def nan_score(task: Task, episode: Episode) -> Mapping[str, Any]:
    """The quickstart's reward, or NaN."""
    return {"score": float("nan")} if strikes(task) else reward_fn.score(task, episode)


def hanging_score(task: Task, episode: Episode) -> Mapping[str, Any]:
    """The quickstart's reward, or never an end."""
    if strikes(task):
        time.sleep(SLEEP)
    return reward_fn.score(task, episode)


# --- environments -----------------------------------------------------------------------------------------------------


class CrashingReset(ToolEnv):
    """`reset` raises."""

    async def reset(self, task: Task) -> Observation:
        """Begin, or raise."""
        if strikes(task):
            raise RuntimeError("the world could not be built")
        return await super().reset(task)


class CrashingStep(ToolEnv):
    """`step` raises."""

    async def step(self, action: Action) -> StepResult:
        """Go on, or raise."""
        if strikes(self._tool_context.task):
            raise RuntimeError("the world fell apart")
        return await super().step(action)


_WORLD = """
import os, signal, sys
for line in sys.stdin:
    if line == "die\\n":
        os.kill(os.getpid(), signal.SIGKILL)
    print(line, end="", flush=True)
"""


class DyingWorld(ToolEnv):
    """Its world is a process of its own, which is killed in the middle of a step."""

    _world: Process | None = None

    async def reset(self, task: Task) -> Observation:
        """Begin a world; held-out tasks need none."""
        seen = await super().reset(task)
        if not task.task_id.startswith("eval-"):
            self._world = await asyncio.create_subprocess_exec(
                sys.executable, "-S", "-E", "-c", _WORLD, stdin=PIPE, stdout=PIPE
            )
        return seen

    async def step(self, action: Action) -> StepResult:
        """Ask the world, which answers or is dead."""
        task = self._tool_context.task
        if self._world is not None:
            assert self._world.stdin is not None
            assert self._world.stdout is not None
            self._world.stdin.write(b"die\n" if strikes(task) else b"go on\n")
            if await self._world.stdout.readline() != b"go on\n":
                raise ConnectionError(f"the world of this episode ended with {await self._world.wait()}")
        return await super().step(action)

    async def close(self) -> None:
        """End the world."""
        world, self._world = self._world, None
        if world is not None:
            if world.returncode is None:
                world.kill()
            await world.wait()
            world._transport.close()  # type: ignore[attr-defined]
        await super().close()


# --- served environments ----------------------------------------------------------------------------------------------


class ServedShop(ToolEnv):
    """The shop for `agent-r1 env serve`. Its server is killed in every step whose number `die_at` divides."""

    def __init__(self, die_at: int = 0) -> None:
        super().__init__([own_price, calculate])
        self._die_at = die_at

    async def step(self, action: Action) -> StepResult:
        """Go on, unless the server dies now, with everybody's episodes."""
        task = self._tool_context.task
        if self._die_at and not task.task_id.startswith("eval-"):
            number = _count(Path(json.loads(os.environ[PLAN])["folder"]) / "draws")
            if number % self._die_at == 0:
                note(task.task_id, "fault", pid=os.getpid())
                os.kill(os.getpid(), signal.SIGKILL)
        return await super().step(action)


def serve_late_and_swapped(port: int) -> None:
    """A server whose answers come late, or go to somebody else's request."""
    from agent_r1.envs.remote.server import EnvService, ServiceLimits, serve

    class Disturbed(EnvService):
        def __init__(self) -> None:
            super().__init__(ServedShop, name="shop", limits=ServiceLimits(max_episodes=4096))
            self._task_ids: dict[str, str] = {}
            self._held: tuple[asyncio.Future[bytes], bytes, str] | None = None

        async def begin(self, body: records.Json) -> bytes:
            self._task_ids[body["request_id"]] = body["task"]["task_id"]
            return await self._disturb(body["request_id"], await super().begin(body))

        async def step(self, episode_id: str, body: records.Json) -> bytes:
            return await self._disturb(episode_id, await super().step(episode_id, body))

        async def _disturb(self, episode_id: str, answer: bytes) -> bytes:
            task_id = self._task_ids.get(episode_id, "eval-")
            number = draw(task_id)
            if number is None:
                return answer
            if number % 2:
                note(task_id, "fault", answer="late")
                await asyncio.sleep(LATE_SECONDS)
                return answer
            # An episode that asks again and gets its own answer has not been struck.
            if self._held is not None and not self._held[0].done() and self._held[2] != episode_id:
                (waiting, other, _), self._held = self._held, None
                waiting.set_result(answer)
                note(task_id, "fault", answer="swapped")
                return other
            mine: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._held = mine, answer, episode_id
            try:
                swapped = await asyncio.wait_for(asyncio.shield(mine), SWAP_SECONDS)
            except TimeoutError:
                mine.cancel()
                return answer
            note(task_id, "fault", answer="swapped")
            return swapped

    serve(Disturbed(), "127.0.0.1", port, lambda url: print(f"serving shop at {url}", flush=True))


if __name__ == "__main__":
    serve_late_and_swapped(int(sys.argv[1]))
