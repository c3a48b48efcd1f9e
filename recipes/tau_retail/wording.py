"""An instruction of tau-bench as what a customer says: who the customer is, and the request sentence by sentence.

read_request("Your name is Omar Lopez and your zip code is 80218. You are shy. You want to return the tablet.")
-> identity "My name is Omar Lopez and my zip code is 80218.", parts ("I want to return the tablet.",)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from .conditions import Condition, read_condition, split_conditions

_SENTENCE = re.compile(r"(?<=[.!?;])\s+(?=[A-Z])")
_CHARACTER = re.compile(r"You(?: are|'re) (?:an? )?[\w-]+(?:(?:, and |, | and )(?:an? )?[\w-]+)*(?: person)?[.;]?")
_IDENTITY = re.compile(r"\b(e-?mail|zip|[Yy]our? name|user id)\b|@|^You are [A-Z]|^You are \w+_\w+_\d+|\b\d{5}\b")
_REQUEST_AFTER = re.compile(r"[,.]? and (?=you (?:want|would|wish|need|also|just|like|recently))", re.IGNORECASE)

_PERSON = (
    (r"\bYou name is\b", "My name is"),
    (r"\b[Yy]ou are\b", "I am"),
    (r"\b[Yy]ou were\b", "I was"),
    (r"\b[Yy]ou're\b", "I'm"),
    (r"\b[Yy]ou('ve|'d|'ll)", r"I\1"),
    (r"\byourself\b", "myself"),
    (r"\byours\b", "mine"),
    (r"\bYour\b", "My"),
    (r"\byour\b", "my"),
    (
        r"\b(to|for|from|with|by|of|at|than|tells?|gives?|asks?|helps?|lets?|allows?|offers?|charges?|told|gave) you\b",
        r"\1 me",
    ),
    (r"\b[Yy]ou\b", "I"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a customer has to say."""

    identity: str
    """Who it is."""
    parts: tuple[str, ...]
    """The request, a sentence each."""
    conditions: tuple[Condition, ...] = ()
    """What is said only when it is asked for, or when something is not possible."""


def first_person(text: str) -> str:
    """An instruction as the customer would say it.

    >>> first_person("You've received your order, and you're sad. Ask the agent to help you.")
    "I've received my order, and I'm sad. Ask the agent to help me."
    """
    for pattern, replacement in _PERSON:
        text = re.sub(pattern, replacement, text)
    return text


def read_request(instruction: str) -> Request:
    """The parts of an instruction. A sentence about the customer's character is not said."""
    identity: list[str] = []
    parts: list[str] = []
    conditions: list[Condition] = []
    for number, whole in enumerate(_SENTENCE.split(" ".join(instruction.split()))):
        said = split_conditions(whole)
        found = [read_condition(text) for text in said]
        conditions += [_in_first_person(condition) for condition in found if condition is not None]
        sentence = " ".join(text for text, condition in zip(said, found, strict=True) if condition is None)
        if not sentence:
            continue
        if _CHARACTER.fullmatch(sentence) and not _IDENTITY.search(sentence):
            continue
        if _IDENTITY.search(sentence) and number < 2 and "#W" not in sentence:
            who, *rest = _REQUEST_AFTER.split(sentence, maxsplit=1)
            identity.append(first_person(who).rstrip(".,;") + ".")
            parts += [_capital(first_person(text)) for text in rest]
        else:
            parts.append(_capital(first_person(sentence)))
    return Request(
        identity=" ".join(identity) or "I told you all that I know.", parts=tuple(parts), conditions=tuple(conditions)
    )


def _in_first_person(condition: Condition) -> Condition:
    then, sentence = (_capital(first_person(text)) for text in (condition.then, condition.sentence))
    return replace(condition, then=then, sentence=sentence)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
