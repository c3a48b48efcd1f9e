"""Which trajectories are listed, and in which order: read from the query string of an address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agent_r1.errors import DataError
from agent_r1.view.index.scan import clean

MAX_ROWS = 1000
MAX_SEARCH = 1000
"""Characters of a search."""
SORTS = {
    "step": "t.step",
    "reward": "t.reward",
    "tokens": "t.tokens",
    "steps": "t.num_steps",
    "calls": "t.tool_calls",
}
"""The names of orders, and their columns."""
KINDS = ("train", "eval")


@dataclass(frozen=True, kw_only=True, slots=True)
class Filters:
    """Which trajectories are listed; None and () select all."""

    step_min: int | None = None
    """The first training step."""
    step_max: int | None = None
    """The last training step."""
    reward_min: float | None = None
    """The smallest outcome reward."""
    reward_max: float | None = None
    """The largest outcome reward."""
    success: bool | None = None
    """Whether the success is 1 or more."""
    failed: bool | None = None
    """Whether it failed for a reason outside the policy."""
    stop_reasons: tuple[str, ...] = ()
    """Any of these."""
    tools: tuple[str, ...] = ()
    """It calls any of these."""
    task: str | None = None
    """Its task id."""
    data_source: str | None = None
    """Its data source."""
    group: int | None = None
    """Its group id."""
    text: str = ""
    """Words that it or its prompt contains."""
    kind: str | None = None
    """train or eval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Which rows of a list, in which order."""

    sort: str = "step"
    """A name, or -name for the reverse."""
    offset: int = 0
    """Rows to skip."""
    limit: int = 100
    """Maximum number of rows."""


def parse_filters(parameters: Sequence[tuple[str, str]]) -> tuple[Filters, Page]:
    """The filters and the page that a query string asks for; `DataError` names every parameter that is wrong."""
    parsers: dict[str, Callable[[str], Any]] = {
        "step_min": _integer,
        "step_max": _integer,
        "reward_min": _float,
        "reward_max": _float,
        "success": _flag,
        "failed": _flag,
        "task": str,
        "data_source": str,
        "group": _integer,
        "text": _text,
        "kind": _kind,
    }
    paging: dict[str, Callable[[str], Any]] = {"sort": _sort, "offset": _integer, "limit": _integer}
    fields: dict[str, Any] = {}
    page: dict[str, Any] = {}
    repeated: dict[str, list[str]] = {"stop_reason": [], "tool": []}
    problems = []
    for name, value in parameters:
        if not value:
            continue
        try:
            if name in repeated:
                repeated[name].append(value)
            elif name == "step":
                fields["step_min"] = fields["step_max"] = _integer(value)
            elif name in parsers:
                fields[name] = parsers[name](value)
            elif name in paging:
                page[name] = paging[name](value)
            else:
                names = sorted([*parsers, *paging, *repeated, "step"])
                problems.append(f"unknown parameter {name!r:.40}; known are {', '.join(names)}")
        except ValueError as error:
            problems.append(f"{name}={value!r:.60}: {error}")
    if problems:
        raise DataError("; ".join(problems[:10]))
    page["limit"] = max(1, min(MAX_ROWS, page.get("limit", 100)))
    page["offset"] = max(0, page.get("offset", 0))
    chosen = Filters(stop_reasons=tuple(repeated["stop_reason"]), tools=tuple(repeated["tool"]), **fields)
    return chosen, Page(**page)


def _integer(text: str) -> int:
    number = int(text)
    if abs(number) > 2**53:
        raise ValueError("out of range")
    return number


def _float(text: str) -> float:
    number = float(text)
    if number != number:
        raise ValueError("not a number")
    return number


def _text(text: str) -> str:
    return clean(text)[:MAX_SEARCH]


def _flag(text: str) -> bool:
    flags = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in flags:
        raise ValueError("expected 0 or 1")
    return flags[text.lower()]


def _kind(text: str) -> str:
    if text not in KINDS:
        raise ValueError("expected train or eval")
    return text


def _sort(text: str) -> str:
    if text.removeprefix("-") not in SORTS:
        raise ValueError(f"expected one of {', '.join(SORTS)}, or -name for the reverse")
    return text
