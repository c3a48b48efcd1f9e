"""`check_env`: finds mistakes in an environment before a training run does.

    for finding in check_env(MyEnv, task):
        print(finding)

It plays the same actions in two episodes, each in a new environment from `make_env`.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agent_r1.constraints import MAX_REWARD, reward_problem
from agent_r1.envs.base import AgentEnv, as_step_result, unpack_step
from agent_r1.errors import EpisodeError, ImageError, MissingExtraError, boundary
from agent_r1.event_loop import callable_in_event_loop, run_cancelling
from agent_r1.findings import Finding
from agent_r1.images import normal_observation
from agent_r1.types import Action, Observation, StepResult, StopReason, Task, media_in

SCRIPT = (
    Action(text="hello", content="hello"),
    Action(text="<tool_call>{", content="<tool_call>{", parse_error="Tool call 1 is malformed: not valid JSON."),
    Action(text="", content=""),
)
"""The default actions: text, a malformed tool call and an empty action."""

_BLOCKED_SECONDS = 0.1
_TICK_SECONDS = 0.005


@callable_in_event_loop
def check_env(
    make_env: Callable[[], AgentEnv], task: Task, actions: Sequence[Action] = SCRIPT, *, call_seconds: float = 60.0
) -> list[Finding]:
    """All findings; empty for a correct environment. `actions` should lead through an episode.

    A `step` that returns `observation=None, done=False` gives: a step that continues the episode needs an
    observation: step 0 gave observation=None and done=False. Give the whole next model input, or done=True.
    """
    return run_cancelling(lambda: _check(make_env, task, actions, call_seconds))


async def _check(
    make_env: Callable[[], AgentEnv], task: Task, actions: Sequence[Action], call_seconds: float
) -> list[Finding]:
    first = await _Play(task, call_seconds).run(make_env, actions)
    second = await _Play(task, call_seconds).run(make_env, actions)
    blocking = _blocking(first, second)
    if blocking:  # on a busy machine any call may block now and then: report only those that block every time
        blocking = _blocking(first, second, await _Play(task, call_seconds).run(make_env, actions))
    findings = [*first.findings, *second.findings, *_differences(first, second), *blocking]
    return list(dict.fromkeys(findings))


@dataclass
class _Play:
    """One episode with its observations and findings."""

    task: Task
    call_seconds: float
    findings: list[Finding] = field(default_factory=list)
    shown: list[Observation] = field(default_factory=list)
    """The observations as the environment returned them."""
    copies: list[Observation] = field(default_factory=list)
    """Copies of them, made when they were returned."""
    blocked: dict[str, float] = field(default_factory=dict)
    """Per call, the longest time for which the event loop was blocked."""

    async def run(self, make_env: Callable[[], AgentEnv], actions: Sequence[Action]) -> _Play:
        try:
            with boundary(StopReason.ENV_ERROR, "making the environment"):
                env = make_env()
        except EpisodeError as failure:
            self._note_error("making the environment", failure)
            return self
        await self._episode(env, actions)
        for index, (shown, copied) in enumerate(zip(self.shown, self.copies, strict=True)):
            if _readable(shown) != copied:
                self._find(
                    "an observation never changes after it was given",
                    f"observation {index} was changed by a later step",
                    "Give each observation messages of its own; do not append to a list that was given away",
                )
                break  # the others changed for the same reason
        if await self._call("close", env.close) is not _FAILED:
            await self._close_again(env)
        return self

    async def _close_again(self, env: AgentEnv) -> None:
        try:
            with boundary(StopReason.ENV_ERROR, "a second close"):
                await env.close()
        except EpisodeError as failure:
            self._find(
                "close may be called twice",
                f"the second close raised {_last_line(failure)}",
                "Let close do nothing when there is nothing left to release",
            )

    async def _episode(self, env: AgentEnv, actions: Sequence[Action]) -> None:
        seen = await self._call("reset", lambda: env.reset(self.task))
        if seen is _FAILED or not self._is_observation("reset", seen):
            return
        messages = seen.messages
        if messages is not None and list(messages[: len(self.task.prompt)]) != list(self.task.prompt):
            self._find(
                "the first messages are the task's",
                "reset shows messages that do not start with task.prompt",
                "Begin with task.prompt and add to it: it is what the row's author wrote",
            )
        for index, action in enumerate(actions):
            result = await self._step(env, action, f"step {index}")
            if result is None:
                return
            if result.done or result.truncated:
                await self._step_after_done(env, action)
                return

    async def _step(self, env: AgentEnv, action: Action, where: str) -> StepResult | None:
        """The result of one step, or None after recording why the episode cannot continue."""
        returned: Any = await self._call(where, lambda: env.step(action))
        if returned is _FAILED:
            return None
        try:
            with boundary(StopReason.ENV_ERROR, where):
                result = unpack_step(returned)
                has_bad_reward = reward_problem(result.reward) is not None
        except EpisodeError as failure:
            self._find(
                "step returns a StepResult or a tuple",
                f"in {where}, {failure.__cause__}",
                "Return StepResult(observation=..., reward=..., done=...)",
            )
            return None
        if has_bad_reward:
            observed = f"{where} gave the reward {result.reward}"
            self._find("rewards are finite", observed, f"Give a number of at most {MAX_REWARD:g} in size, 0.0 for none")
            return None
        if result.observation is not None and not self._is_observation(where, result.observation):
            return None
        if result.observation is None and not (result.done or result.truncated):
            self._find(
                "a step that continues the episode needs an observation",
                f"{where} gave observation=None and done=False",
                "Give the whole next model input, or done=True",
            )
            return None
        return result

    async def _step_after_done(self, env: AgentEnv, action: Action) -> None:
        """A step after the end may raise or return done again, but may not continue the episode."""
        try:
            with boundary(StopReason.ENV_ERROR, "a step after the end"):
                async with asyncio.timeout(self.call_seconds):
                    result = as_step_result(await env.step(action))
        except EpisodeError:
            return
        if not (result.done or result.truncated):
            self._find(
                "nothing happens after the end",
                "a step after done continued the episode",
                "Raise, or answer done=True again",
            )

    def _is_observation(self, where: str, seen: Any) -> bool:
        if isinstance(seen, Observation):
            self._check_media(where, seen)
            self.shown.append(seen)
            self.copies.append(copy.deepcopy(_readable(seen)))
            return True
        self._find(
            "an observation is an Observation",
            f"{where} gave a {type(seen).__name__}",
            "Return Observation(messages=(*task.prompt, ...)), or text= or token_ids=",
        )
        return False

    def _check_media(self, where: str, seen: Observation) -> None:
        """Images must be readable; video and audio no model reads, nor images beside a prompt without messages."""
        try:
            shown = normal_observation(seen)
        except (ImageError, MissingExtraError) as error:
            self._find("images can be read", f"{where} shows an image that cannot: {error}", "Give another one")
            return
        kinds = {*media_in(shown.messages or ()), *(["images beside text"] if shown.images else [])} - {"image"}
        if kinds:
            self._find(
                "observations are text and images",
                f"{where} shows {' and '.join(sorted(kinds))}, which no model reads",
                "Put what it shows into words, or images into messages",
            )

    async def _call(self, where: str, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            with boundary(StopReason.ENV_ERROR, where):
                async with _watch_blocking(self.blocked, where), asyncio.timeout(self.call_seconds):
                    return await call()
        except EpisodeError as failure:
            self._note_error(where, failure)
            return _FAILED

    def _note_error(self, where: str, failure: EpisodeError) -> None:
        last_line = _last_line(failure)
        if last_line == "TimeoutError":
            last_line = f"TimeoutError, after {self.call_seconds:g} s at the latest"
        self._find("nothing raises", f"{where} raised {last_line}", f"Fix it; the traceback:\n{failure.details}")

    def _find(self, rule: str, observed: str, fix: str) -> None:
        self.findings.append(Finding(rule=rule, observed=observed, fix=fix))


_FAILED = object()


def _readable(seen: Observation) -> Observation:
    """The observation with its images as pictures, which are compared by their content; as it is if they are broken."""
    try:
        return normal_observation(seen)
    except (ImageError, MissingExtraError):
        return seen


def _last_line(failure: EpisodeError) -> str:
    return failure.details.strip().splitlines()[-1]


@asynccontextmanager
async def _watch_blocking(blocked: dict[str, float], where: str) -> AsyncIterator[None]:
    """Record the longest time for which the event loop was blocked inside this context."""
    longest = 0.0
    last = time.perf_counter()

    def tick() -> None:
        nonlocal longest, last
        now = time.perf_counter()
        longest, last = max(longest, now - last - _TICK_SECONDS), now

    async def ticking() -> None:
        while True:
            tick()
            await asyncio.sleep(_TICK_SECONDS)

    ticker = asyncio.create_task(ticking())
    try:
        yield
    finally:
        tick()
        ticker.cancel()
        blocked[where] = longest


def _differences(first: _Play, second: _Play) -> list[Finding]:
    for index, (one, other) in enumerate(zip(first.copies, second.copies, strict=False)):
        if one != other:
            where = "the second reset" if index == 0 else f"observation {index}"
            return [
                Finding(
                    rule="episodes do not leak into each other",
                    observed=f"{where} differs from that of the first episode although task and actions were the same",
                    fix="Begin every episode from the task alone, and seed what is random from it",
                )
            ]
    return []


def _blocking(*plays: _Play) -> list[Finding]:
    """Calls that blocked the event loop in every episode; once may be an import."""
    return [
        Finding(
            rule="no call blocks the event loop",
            observed=f"{where} blocked all other episodes for more than {1000 * _BLOCKED_SECONDS:.0f} ms",
            fix="Await what is slow, or run it with asyncio.to_thread",
        )
        for where in plays[0].blocked
        if min(play.blocked.get(where, 0.0) for play in plays) > _BLOCKED_SECONDS
    ]
