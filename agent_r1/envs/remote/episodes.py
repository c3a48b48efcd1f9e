"""`EnvService`: the open episodes of a served environment, their calls, deadlines and slots.

No slot is held forever. A call of `reset` or `step` has a deadline. A call whose client is gone is cancelled after some
seconds: not at once, since a client whose connection broke sends the request again with the same id. An idle episode is
closed. Code that ignores cancellation keeps its memory, but not its slot.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from agent_r1.codec import WireError, integer, mapping, records, text
from agent_r1.envs.base import AgentEnv, as_step_result
from agent_r1.errors import INTERRUPTIONS, ConfigError, EpisodeError, boundary, portable, report_problems
from agent_r1.types import Observation, StopReason
from agent_r1.version import __version__
from agent_r1.web import RefusedError

EnvFactory = Callable[..., AgentEnv]
"""An environment class, or a function that makes one; called with a client's `args`."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_PAUSE = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceLimits:
    """The limits of a service."""

    max_episodes: int = 256
    """Episodes open at once."""
    call_seconds: float = 300.0
    """The deadline of one `reset` or `step`. After it the episode is closed."""
    gone_seconds: float = 30.0
    """A call whose client is gone is cancelled after this long, and its episode closed."""
    idle_seconds: float = 600.0
    """An episode that was not used for this long is closed."""
    close_seconds: float = 10.0
    """Timeout for a cancelled call to stop, and then for `close`."""
    body_mb: float = 32.0
    """The largest request."""
    body_seconds: float = 60.0
    """A request must arrive within this time."""

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        wrong = [f"{name}={value}" for name, value in values.items() if not 0 < value < math.inf]
        report_problems(wrong, ConfigError, "the limits of an environment service must be more than 0 and finite:")


class _Episode:
    """One environment and its last call, whose response may be requested again."""

    def __init__(self, episode_id: str, env: AgentEnv) -> None:
        self.episode_id = episode_id
        self.env = env
        self.num_steps = 0
        self.last_request = episode_id
        self.last_call: asyncio.Task[bytes]
        self.num_waiting = 0
        self._work: asyncio.Task[bytes]
        self._last_used = time.monotonic()

    def begin(self, request_id: str, call: Callable[[], Awaitable[bytes]], seconds: float, where: str) -> None:
        """Start a call; its response is kept until the next one."""
        self.last_request = request_id
        self._work = asyncio.create_task(_no_exit(call))
        self.last_call = asyncio.create_task(self._until_deadline(self._work, seconds, where))

    async def _until_deadline(self, work: asyncio.Task[bytes], seconds: float, where: str) -> bytes:
        try:
            # Not `wait_for`, which waits forever for a call that ignores cancellation.
            await asyncio.wait({work}, timeout=seconds)
            if not work.done():
                raise RefusedError(
                    504, "deadline", f"{where} took longer than {seconds:g} s; the episode is closed (--call-seconds)"
                )
            return work.result()
        finally:
            work.cancel()
            self._last_used = time.monotonic()

    async def response(self) -> bytes:
        """The response of the last call, also for a client that repeats its request while it runs."""
        self.num_waiting += 1
        try:
            return await asyncio.shield(self.last_call)
        finally:
            self.num_waiting -= 1
            self._last_used = time.monotonic()

    def is_over(self, limits: ServiceLimits) -> bool:
        """Whether it should be closed: it is idle, or no client waits for its running call."""
        if self.num_waiting:
            return False
        failure = _failure(self.last_call)
        is_abandoned = not self.last_call.done() or (failure is not None and self.num_steps == 0)
        seconds = limits.gone_seconds if is_abandoned else limits.idle_seconds
        return time.monotonic() - self._last_used > seconds or isinstance(failure, RefusedError)

    async def close(self, seconds: float) -> None:
        """Cancel the running call and close the environment; exceptions of its `close` are ignored."""
        self.last_call.cancel()
        self._work.cancel()
        await asyncio.wait({self.last_call, self._work}, timeout=seconds)
        closing = asyncio.create_task(_no_exit(self.env.close))
        await asyncio.wait({closing}, timeout=seconds)
        closing.cancel()
        for task in (self.last_call, self._work, closing):
            task.add_done_callback(_forget_failure)


def _failure(call: asyncio.Task[bytes]) -> BaseException | None:
    return call.exception() if call.done() and not call.cancelled() else None


def _forget_failure(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception, so that the event loop does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()


async def _no_exit(call: Callable[[], Awaitable[Any]]) -> Any:
    """Await a call of the environment; `sys.exit` in it must not end the server."""
    try:
        return await call()
    except (Exception, *INTERRUPTIONS):
        raise
    except BaseException as error:
        raise portable(error) from error


class EnvService:
    """The open episodes of one served environment."""

    def __init__(self, factory: EnvFactory, *, name: str, limits: ServiceLimits | None = None) -> None:
        self.name = name
        self.limits = limits or ServiceLimits()
        self._factory = factory
        self._episodes: dict[str, _Episode] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._instance = secrets.token_hex(8)
        self._started = time.monotonic()

    def health(self) -> records.Json:
        """The response to `GET /health`."""
        return {
            "name": self.name,
            "version": __version__,
            "instance": self._instance,
            "episodes_open": len(self._episodes),
            "episodes_closing": len(self._ending),
            "max_episodes": self.limits.max_episodes,
            "uptime_seconds": time.monotonic() - self._started,
        }

    async def begin(self, body: records.Json) -> bytes:
        """Make an environment and reset it."""
        request_id = _request_id(body)
        where = f"reset of {self.name}"
        if request_id not in self._episodes:
            task, args = records.task_from_json(body.get("task")), mapping(body.get("args") or {}, "args")
            self._end_overdue()
            if len(self._episodes) >= self.limits.max_episodes:
                raise RefusedError(503, "full", f"all {self.limits.max_episodes} episodes of {self.name} are taken")
            with _env_errors(f"making {self.name}"):
                env = self._factory(**args)
                if not isinstance(env, AgentEnv):
                    raise ConfigError(f"{self.name} must make an AgentEnv, got {type(env).__name__}")
            episode = _Episode(request_id, env)
            self._episodes[request_id] = episode

            async def reset() -> bytes:
                first = await episode.env.reset(task)
                if not isinstance(first, Observation):
                    raise ConfigError(f"reset must return an Observation, got {type(first).__name__}")
                observation = records.observation_to_json(first)
                return records.dumps({"request_id": request_id, "episode_id": request_id, "observation": observation})

            episode.begin(request_id, reset, self.limits.call_seconds, where)
        episode = self._episodes[request_id]
        if episode.num_steps:
            raise RefusedError(409, "out_of_order", f"the episode '{request_id}' has begun and taken steps already")
        return await self._response(episode, where)

    async def step(self, episode_id: str, body: records.Json) -> bytes:
        """Take a step, or repeat the response of the last one."""
        request_id, number = _request_id(body), integer(body.get("step"), "step")
        action = records.action_from_json(body.get("action"))
        episode = self._episodes.get(episode_id)
        if episode is None:
            short_id = episode_id[:128]
            raise RefusedError(404, "unknown_episode", f"{self.name} has no episode '{short_id}' on this server")
        where = f"step {number} of {self.name}"
        if request_id != episode.last_request or number != episode.num_steps:
            if number != episode.num_steps + 1 or not episode.last_call.done():
                raise RefusedError(
                    409, "out_of_order", f"step {number} of an episode that has begun {episode.num_steps} steps"
                )

            async def take() -> bytes:
                result = as_step_result(await episode.env.step(action))
                return records.dumps(
                    {"request_id": request_id, "step": number, "result": records.result_to_json(result)}
                )

            episode.num_steps = number
            episode.begin(request_id, take, self.limits.call_seconds, where)
        return await self._response(episode, where)

    async def _response(self, episode: _Episode, where: str) -> bytes:
        try:
            with _env_errors(where):
                return await episode.response()
        except asyncio.CancelledError:
            if not episode.last_call.cancelled():
                raise
            raise RefusedError(404, "unknown_episode", f"the episode was closed during {where}") from None
        except RefusedError as refused:
            if refused.status == 504:
                self._begin_end(episode.episode_id)
            elif episode.num_steps == 0:
                await self.end(episode.episode_id)
            raise

    async def end(self, episode_id: str) -> bytes:
        """Close an episode, also when the client disconnects meanwhile; an unknown episode is no error."""
        ending = self._begin_end(episode_id)
        if ending is not None:
            await asyncio.shield(ending)
        return records.dumps({"episode_id": episode_id, "closed": ending is not None})

    def _begin_end(self, episode_id: str) -> asyncio.Task[None] | None:
        """Free the slot now, and close the environment in the background."""
        episode = self._episodes.pop(episode_id, None)
        if episode is None:
            return None
        ending = asyncio.create_task(episode.close(self.limits.close_seconds))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    def _end_overdue(self) -> None:
        overdue = [key for key, episode in self._episodes.items() if episode.is_over(self.limits)]
        for episode_id in overdue:
            self._begin_end(episode_id)

    async def close(self) -> None:
        """Close every episode."""
        for episode_id in list(self._episodes):
            self._begin_end(episode_id)
        await asyncio.gather(*self._ending)

    async def expire(self) -> None:
        """Close overdue episodes, in an endless loop."""
        while True:
            await asyncio.sleep(min(self.limits.idle_seconds / 4, self.limits.gone_seconds / 4, _MAX_PAUSE))
            self._end_overdue()


def _request_id(body: records.Json) -> str:
    request_id = text(body.get("request_id"), "request_id")
    if not _REQUEST_ID.fullmatch(request_id):
        raise WireError("request_id must be 1 to 128 letters, digits, '.', '_' and '-', the first a letter or digit")
    return request_id


@contextmanager
def _env_errors(where: str) -> Iterator[None]:
    """Inside, an exception of the environment becomes the error `env_error` with its traceback."""
    try:
        with boundary(StopReason.ENV_ERROR, where):
            yield
    except EpisodeError as failure:
        if isinstance(failure.__cause__, RefusedError):
            raise failure.__cause__ from None
        last_line = (failure.details.strip() or "it failed").splitlines()[-1]
        raise RefusedError(500, "env_error", f"{where}: {last_line}", failure.details) from None
