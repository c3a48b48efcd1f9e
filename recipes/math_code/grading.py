"""Is an answer the right one? `math-verify` decides; these functions run in worker processes.

`math-verify` reads LaTeX with a grammar and compares with sympy. It sets alarms, which only the main thread of a
process can do, and an alarm does not interrupt one long operation on integers: hence processes that can be killed
(`grader.py`).
"""

from __future__ import annotations

import importlib.util
import logging
import re
import resource
from collections.abc import Sequence

from agent_r1.errors import ConfigError

MAX_ANSWER_CHARS = 1000
"""A longer answer is wrong; no gold answer is nearly as long."""
CPU_SECONDS = 8
"""A pair that takes more processor time ends its process: math-verify's own alarms, of 5 s, do not stop everything."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")

if importlib.util.find_spec("math_verify") is None:
    raise ConfigError("math_code grades answers with math-verify: pip install 'agent-r1[math]'")


def boxed_answers(text: str) -> list[str]:
    r"""The contents of every `\boxed{}` that is closed, in order.

    >>> boxed_answers(r"So \boxed{\frac{1}{2}}, not \boxed{3")
    ['\\frac{1}{2}']
    """
    found, position = [], 0
    while mark := _BOX.search(text, position):
        depth, end = 1, mark.end()
        while end < len(text) and depth:
            if text[end] == "\\":
                end += 2  # a brace after a backslash is a character of the answer: \{1, 2\} is a set
                continue
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if depth:
            break
        found.append(text[mark.end() : end - 1].strip())
        position = end
    return found


def is_integer(text: str) -> bool:
    """Whether a text is an integer that is compared without algebra.

    >>> is_integer("-12"), is_integer("012"), is_integer("1,200")
    (True, False, False)
    """
    return _INTEGER.fullmatch(text) is not None


def quick_verdict(gold: str, answer: str) -> bool | None:
    """The verdict where it needs no algebra; None where it does.

    Texts that are equal are equal answers: rows whose gold answer math-verify does not accept as its own were left out.

    >>> quick_verdict("12", "12"), quick_verdict("12", "13"), quick_verdict("12", "24/2")
    (True, False, None)
    """
    if gold == answer:
        return True
    if not answer or len(answer) > MAX_ANSWER_CHARS:
        return False
    if is_integer(gold) and is_integer(answer):
        return int(gold) == int(answer)
    return None


def verdict(gold: str, answer: str) -> bool:
    """What math-verify says. Call it in the main thread of a process.

    Texts that differ only in the spaces around them are parsed once: parsing takes milliseconds, comparing next to
    nothing.
    """
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    gold, answer = gold.strip(), answer.strip()
    parsed = {text: parse(f"\\boxed{{{text}}}") for text in dict.fromkeys((gold, answer))}
    return bool(verify(parsed[gold], parsed[answer]))


def verdicts(pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """The verdict on each pair of gold answer and answer, in a worker process, which ends at the limit."""
    import math_verify  # noqa: F401 - before the time is limited

    found = []
    for gold, answer in pairs:
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + CPU_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        found.append(verdict(gold, answer))
    return found
