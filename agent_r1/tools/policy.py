"""`ToolPolicy`: how the runner treats the calls of one tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from agent_r1.constraints import MAX_WHOLE_NUMBER
from agent_r1.errors import ConfigError, did_you_mean


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolPolicy:
    """Limits of one tool. A tool declares it (`policy = ToolPolicy(timeout=5)`, `@tool(timeout=5)`), and the
    configuration may change it (`tools.search.timeout=5`)."""

    timeout: float = 30.0
    """Maximum seconds per attempt (for a batch: the whole batch), not counting the wait for a free slot."""
    max_concurrency: int = 512
    """Maximum calls, or batches, that run at once, across all episodes."""
    retries: int = 0
    """Retries when the tool could not be reached or its worker died. Timeouts and errors of the tool itself are not
    retried. Set it above 0 only for tools that may run twice."""
    max_output_chars: int = 20_000
    """Maximum length of an answer; a longer one loses its middle, with a note there."""
    process: bool = False
    """Run each call in a worker process, which is killed at the timeout. For slow, risky or CPU-bound tools."""
    batch_size: int = 32
    """Maximum calls per batch of a tool that has `batch_execute`."""
    batch_wait: float = 0.005
    """Maximum seconds a batch waits for further calls."""

    def __post_init__(self) -> None:
        for name in ("timeout", "max_concurrency", "max_output_chars", "batch_size"):
            _require(name, getattr(self, name), more_than=0)
        for name in ("retries", "batch_wait"):
            _require(name, getattr(self, name), more_than=None)
        if not isinstance(self.process, bool):
            raise ConfigError(f"process={self.process!r} of a tool must be true or false")

    def with_overrides(self, tool_name: str, changes: Mapping[str, Any]) -> ToolPolicy:
        """This policy with the configuration's changes for a tool.

        >>> ToolPolicy().with_overrides("search", {"timeout": 5}).timeout
        5
        """
        names = [entry.name for entry in fields(ToolPolicy)]
        unknown = [key for key in changes if key not in names]
        if unknown:
            raise ConfigError(f"unknown key 'tools.{tool_name}.{unknown[0]}'. {did_you_mean(str(unknown[0]), names)}")
        try:
            return replace(self, **changes)
        except ConfigError as error:
            raise ConfigError(f"tools.{tool_name}: {error}") from None


def _require(name: str, value: Any, *, more_than: float | None) -> None:
    may_be_float = name in ("timeout", "batch_wait")
    is_number = isinstance(value, (int, float) if may_be_float else int) and not isinstance(value, bool)
    # A comparison with NaN is false, so it is refused as well.
    if not is_number or not (0 <= value <= MAX_WHOLE_NUMBER) or (more_than is not None and value <= more_than):
        kind = "a number" if may_be_float else "a whole number"
        bound = f"more than {more_than}" if more_than is not None else "0 or more"
        raise ConfigError(f"{name}={value!r:.80} of a tool must be {kind}, {bound}, and at most {MAX_WHOLE_NUMBER}")
