"""Reading `initial_state.pddl`: the facts of a problem and its goal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from agent_r1.errors import DataError

Fact = tuple[str, ...]
"""The predicate's arguments, in lower case."""

_FACT = re.compile(r"\(\s*([\w-]+)\s*([^()]*)\)")
_COMMENT = re.compile(r";[^\n]*")
_TYPE_SUFFIX = "type"


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A PDDL problem of ALFWorld. Fast Downward reads names in lower case, and so do we."""

    facts: Mapping[str, frozenset[Fact]]
    """The initial state: the arguments of each predicate's facts."""
    goal: str
    """The goal as it is written, in lower case and with single spaces."""

    def pairs(self, predicate: str) -> list[tuple[str, str]]:
        """The sorted facts of a predicate with two arguments."""
        return sorted((fact[0], fact[1]) for fact in self.facts.get(predicate, ()))

    def names(self, predicate: str) -> frozenset[str]:
        """The arguments of a predicate that has one."""
        return frozenset(fact[0] for fact in self.facts.get(predicate, ()))


def parse_problem(text: str) -> Problem:
    """A problem from its text.

    >>> parse_problem("(:init (openable Cabinet_bar_1)) (:goal (and (opened ?r)))").facts
    {'openable': frozenset({('cabinet_bar_1',)})}
    """
    text = _COMMENT.sub("", text).lower()
    start, end = text.find("(:init"), text.find("(:goal")
    if start < 0 or end < start:
        raise DataError("a PDDL problem needs (:init ...) and then (:goal ...); this one does not have them")
    facts: dict[str, set[Fact]] = {}
    for name, arguments in _FACT.findall(text, start + len("(:init"), end):
        facts.setdefault(name, set()).add(tuple(arguments.split()))
    return Problem(facts={name: frozenset(found) for name, found in facts.items()}, goal=" ".join(text[end:].split()))


def replace_goal(text: str, goal: str) -> str:
    """The problem with another goal, which is written as `(and ...)`."""
    return f"{text[: text.index('(:goal')]}(:goal {goal}))\n"


def type_name(text: str) -> str:
    """The name of a type.

    >>> type_name("sinkbasintype")
    'sinkbasin'
    """
    return text.removesuffix(_TYPE_SUFFIX)
