"""What one request may take, and how many may be in the server at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from agent_r1.errors import ConfigError, report_problems
from agent_r1.openai_api import ApiError


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingLimits:
    """The limits of a server; the names are those of the options."""

    max_tokens: int | None = None
    """Maximum tokens per completion; None: what the context leaves."""
    max_prompt_tokens: int | None = None
    """Maximum tokens of a prompt; None: what the context leaves."""
    max_running: int = 64
    """Completions that are sampled at once."""
    max_waiting: int = 256
    """Completions that wait for a slot; further requests get status 429."""
    request_seconds: float = 600.0
    """Deadline of one request, waiting included."""
    body_mb: float = 8.0
    """Maximum size of a request."""
    body_seconds: float = 30.0
    """Time for a request to arrive."""

    def __post_init__(self) -> None:
        wrong = [
            f"{field.name}={value}"
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
            and not (math.isfinite(value) and (value > 0 or (field.name == "max_waiting" and value == 0)))
        ]
        report_problems(wrong, ConfigError, "the limits of a server must be more than 0 and finite:")

    @property
    def body_bytes(self) -> int:
        """Maximum size of a request."""
        return int(self.body_mb * (1 << 20))


class Slots:
    """Counts the completions in the server. The engine queues those that wait, in the order of their arrival.

    >>> slots = Slots(ServingLimits(max_running=1, max_waiting=1))
    >>> with slots.taken(2): slots.num_taken
    2
    """

    def __init__(self, limits: ServingLimits) -> None:
        self._max_running = limits.max_running
        self._max = limits.max_running + limits.max_waiting
        self.num_taken = 0

    @property
    def num_waiting(self) -> int:
        """Completions beyond those that are sampled at once."""
        return max(0, self.num_taken - self._max_running)

    @contextmanager
    def taken(self, count: int) -> Iterator[None]:
        """Slots for `count` completions during the block. `ApiError` 429 when there are too few, 400 when there never
        will be enough."""
        if count > self._max:
            raise ApiError(f"the request asks for {count} completions; this server has room for {self._max}", param="n")
        if self.num_taken + count > self._max:
            raise ApiError(
                f"the server is busy with {self.num_taken} completions, as many as it takes; try again later",
                status=429,
                code="server_busy",
            )
        self.num_taken += count
        try:
            yield
        finally:
            self.num_taken -= count
