"""`SimulatedEngine`: continuous batching as a queue of prompts before a shared decode loop.

Prompts are computed one after the other and before anything else; while one is, no request gets a token. Otherwise all
running requests get a token together, every `base + per_request * running` seconds. With rates of 0.01 s per prompt
token, 0.1 s base and 0.05 s per request, two requests of 10 new prompt tokens and 4 action tokens that arrive at 0:

    0.0 - 0.2  both prompts        0.2 - 1.0  4 tokens for both, 0.1 + 2 * 0.05 = 0.2 s each
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRates:
    """How long an engine takes, in seconds."""

    per_prompt_token: float
    """To compute one token of a prompt that is not in the prefix cache."""
    base: float
    """To decode one token for every running request, if there were none."""
    per_request: float
    """More per running request."""
    per_call: float = 0.0
    """Seconds per call outside the engine: the host, the network. They delay the call and keep no engine busy."""

    def seconds_per_token(self, running: int) -> float:
        """Between two tokens of one request.

        >>> EngineRates(per_prompt_token=0.01, base=0.5, per_request=0.25).seconds_per_token(2)
        1.0
        """
        return self.base + self.per_request * running


class Clock:
    """Events in the order of their times; those of one time in the order in which they were added."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Call `event` in `seconds` from now."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), event))

    def run_until(self, is_reached: Callable[[], bool]) -> None:
        """Let events happen until the condition holds. Raises `RuntimeError` when there is none left before that."""
        while not is_reached():
            if not self._events:
                raise RuntimeError("the simulation waits for something that never happens")
            self.now, _, event = heapq.heappop(self._events)
            event()


@dataclass(slots=True, order=True)
class _Request:
    """A request in the engine. Requests that run end in the order of `ends_at`."""

    ends_at: float
    """The count of tokens, of `SimulatedEngine._served`, at which it has all of its own."""
    number: int
    prompt_tokens: float = field(compare=False)
    """To be computed before its first token."""
    action_tokens: float = field(compare=False)
    on_done: Callable[[], None] = field(compare=False)


class SimulatedEngine:
    """One engine. Its counts are for reports and tests."""

    def __init__(self, clock: Clock, rates: EngineRates) -> None:
        self._clock = clock
        self._rates = rates
        self._prompts: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._served = 0.0  # tokens that a request which has always been running would have
        self._since = 0.0
        self._is_paused = False
        self._planned = 0
        self._numbers = itertools.count()
        self.episodes = 0
        """Episodes that have been given to this engine and are not finished."""
        self.version = 0
        """Weight updates so far; each empties the prefix cache."""
        self.busy_seconds = 0.0
        self.prompt_tokens = 0.0
        self.action_tokens = 0.0

    def submit(self, prompt_tokens: float, action_tokens: float, on_done: Callable[[], None]) -> None:
        """Queue a request for so many new tokens after so many tokens of prompt."""
        self._advance()
        self.prompt_tokens += prompt_tokens
        self._prompts.append(
            _Request(
                ends_at=0.0,
                number=next(self._numbers),
                prompt_tokens=prompt_tokens,
                action_tokens=action_tokens,
                on_done=on_done,
            )
        )
        self._plan()

    def pause(self) -> None:
        """Compute nothing until `resume`."""
        self._advance()
        self._is_paused = True
        self._plan()

    def resume(self) -> None:
        """Continue after a pause."""
        self._advance()
        self._is_paused = False
        self._plan()

    def _advance(self) -> None:
        """Account for the time since the last call."""
        seconds, self._since = self._clock.now - self._since, self._clock.now
        if self._is_paused or not (self._prompts or self._running):
            return
        self.busy_seconds += seconds
        if self._prompts:
            if self._rates.per_prompt_token:
                self._prompts[0].prompt_tokens -= seconds / self._rates.per_prompt_token
        elif per_token := self._rates.seconds_per_token(len(self._running)):
            self._served += seconds / per_token

    def _plan(self) -> None:
        """Schedule what comes next, in place of what was scheduled before."""
        self._planned += 1
        planned = self._planned
        if self._is_paused or not (self._prompts or self._running):
            return
        if self._prompts:
            seconds = self._prompts[0].prompt_tokens * self._rates.per_prompt_token
        else:
            remaining = self._running[0].ends_at - self._served
            seconds = remaining * self._rates.seconds_per_token(len(self._running))
        self._clock.after(max(0.0, seconds), lambda: self._happen() if planned == self._planned else None)

    def _happen(self) -> None:
        """A prompt is computed, or the request that is nearest to its end has its last token."""
        self._advance()
        if self._prompts:
            request = self._prompts.popleft()
            request.ends_at = self._served + request.action_tokens
            heapq.heappush(self._running, request)
            self._plan()
            return
        request = heapq.heappop(self._running)
        self._served = max(self._served, request.ends_at)
        self.action_tokens += request.action_tokens
        self._plan()
        request.on_done()
