"""Conditions in an instruction: what a customer says only when it is asked, or when something is not possible.

    "If removing one item is not possible, cancel the whole order."    -> after a refusal: "Cancel the whole order."
    "If the agent asks for confirmation, only exchange the desk lamp." -> when asked to confirm: "Only exchange ..."

Other conditions ("if multiple colors are available, you prefer silver") are for the agent to look up: they are said.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_CLAUSE = (
    r"you\b|you'd|just\b|only\b|say\b|mention\b|ask\b|cancel\b|see\b|exchange\b|change\b|return\b|no\b|it\b|try\b|do\b"
    r"|threaten\b|forget\b|provide\b|transfer\b|\w+ is\b"
)
_CONDITION = re.compile(
    r"^(?:But |And )?(?:If and only if|If|When|In case)\s+(?P<condition>.+?),\s*(?:then\s+)?"
    rf"(?P<then>(?:{_CLAUSE}).+)$",
    re.IGNORECASE | re.DOTALL,
)
_ASKED = re.compile(
    r"^(?:the agent |the customer service agent |it |they |you are )?ask(?:s|ed)\b(?: you)?"
    r"(?: (?:for|about|to|which|whether|why))*\s*(?P<topic>.*)$",
    re.IGNORECASE,
)
_FAILED = re.compile(r"\b(?:no|not|cannot|impossible|unable|refuses?|fails?)\b|n't\b", re.IGNORECASE)
_FACT = re.compile(r"\b(?:shipped|delivered|arrived|received|returned)\b")
_INNER = re.compile(
    r"[,.]?\s*(?:\(|\bbut |\band )(?=if (?:it|this|that|the agent|not)\b[^,]*(?:\bnot?\b|cannot|impossible|n't))"
)
_SPOKEN = re.compile(
    r"^(?:you(?:'d| would)? )?(?:say|mention|provide|tell (?:the agent|them|it))\s+(?:that\s+)?", re.IGNORECASE
)
_IDENTITY = re.compile(r"\b(?:zip|e-?mail|name)\b")
_WORD = re.compile(r"[a-z]{4,}")
_COMMON = frozenset(("agent", "that", "this", "your", "with", "have", "possible", "just", "available", "exact", "any"))
_CONFIRMS = re.compile(r"confirm|double check")

REFUSED = re.compile(
    r"\b(?:cannot|unable|impossible|sorry|unfortunately|not (?:possible|allowed|able|available|permitted|supported)"
    r"|no longer|isn't|aren't|doesn't|won't|refused?)\b|\bcan(?:'|no)?t\b|\bcan not\b",
    re.IGNORECASE,
)
"""A message that says that something is not possible."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """A sentence that is said under a condition."""

    kind: Literal["asked", "refused"]
    """What must have happened."""
    topic: str
    """What was asked for or refused, in lower case; "" for anything."""
    then: str
    """What is said then."""
    sentence: str
    """All of it, with the condition."""

    @property
    def confirms(self) -> bool:
        """Whether it answers a question for a yes."""
        return self.kind == "asked" and _CONFIRMS.search(self.topic) is not None

    def is_about(self, text: str) -> bool:
        """Whether a message in lower case has a word of the topic; one without words is about anything."""
        if self.kind == "asked" and re.match(r"(?:the )?order (?:id|number)", self.topic):
            return re.search(r"\border (?:id|number)|\bwhich order", text) is not None
        words = {word.rstrip("s") for word in _WORD.findall(self.topic)} - _COMMON
        return not words or any(word in text for word in words)


def split_conditions(sentence: str) -> list[str]:
    """A sentence, with a condition that stands at its end as a sentence of its own.

    >>> split_conditions("You want to pay with your GC, but if it is impossible, PayPal is fine.")
    ['You want to pay with your GC.', 'If it is impossible, PayPal is fine.']
    """
    before, *after = _INNER.split(sentence, maxsplit=1)
    if not after or not before.strip():
        return [sentence]
    rest = after[0].strip()
    if "(" in sentence[len(before) : len(before) + 3] and ")" in rest:
        inside, _, outside = rest.partition(")")
        return [before.rstrip() + (outside if outside[:1] not in ("", ".") else "."), _capital(inside) + "."]
    return [before.rstrip() + ".", _capital(rest)]


def read_condition(sentence: str) -> Condition | None:
    """The condition of a sentence that is not simply said; None for any other sentence.

    >>> read_condition("If the agent asks for which laptop, it is 15-inch.").then
    'It is 15-inch.'
    """
    match = _CONDITION.match(sentence.strip())
    if match is None:
        return None
    condition, then = match["condition"].strip(), _capital(_SPOKEN.sub("", match["then"].strip()))
    asked = _ASKED.match(condition)
    if asked is not None and _IDENTITY.search(asked["topic"].lower()):
        return None
    if asked is not None:
        return Condition(kind="asked", topic=asked["topic"].lower(), then=then, sentence=sentence)
    if _FAILED.search(condition) is None or _FACT.search(condition) is not None:
        return None
    topic = "" if re.match(r"(?:it|that|this|not|so)\b", condition, re.IGNORECASE) else condition.lower()
    return Condition(kind="refused", topic=topic, then=then, sentence=sentence)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
