"""Problems, collected so that one error lists all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agent_r1.errors import AgentR1Error

TITLE = "the configuration cannot be used:"


class Problems:
    """Collects problems so that all can be reported at once."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Inside, an error is recorded instead of raised."""
        try:
            yield
        except AgentR1Error as error:
            self.found.append(str(error))

    def run(self, check: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a check, or None if it raised."""
        with self.collect():
            return check(*arguments)
        return None
