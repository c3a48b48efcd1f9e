"""Customers: who speaks to the model.

* `solo`: the instruction is the request; nothing more is said.
* `rules`: tells the request sentence by sentence, says who it is and what it knows when asked, and agrees to every
  change that it is asked to confirm. What its instruction says under a condition ("if that is not possible, ...", "if
  the agent asks for ..., ...") it says when the condition is met. It knows the instruction alone.
* `openai`: a model behind an OpenAI-compatible server plays the customer.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from agent_r1.errors import ConfigError
from agent_r1.types import Action

from .conditions import REFUSED, Condition
from .wording import Request, read_request

CUSTOMERS = ("solo", "rules", "openai")
MAX_REPEATS = 3
"""How often a customer by rules repeats what it already said before it gives up."""

_THINKING = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)


def said_text(action: Action) -> str:
    """What the customer reads of a message: no thoughts."""
    text = action.text if action.final_answer is None else action.final_answer
    return _THINKING.sub("", text).strip()


class Customer(ABC):
    """One customer in one episode."""

    @abstractmethod
    async def begin(self) -> str:
        """What the customer says first."""

    @abstractmethod
    async def reply(self, text: str) -> str | None:
        """The answer to a message; None: the customer leaves."""

    async def close(self) -> None:  # noqa: B027 - optional for subclasses
        """Release what the customer holds."""


class SoloCustomer(Customer):
    """Says the instruction and leaves after the first message."""

    def __init__(self, instruction: str) -> None:
        self._instruction = instruction

    async def begin(self) -> str:
        """The instruction."""
        return self._instruction

    async def reply(self, text: str) -> str | None:
        """None."""
        return None


_IDENTITY = re.compile(r"\be-?mail|\bzip|\bname\b|\bverify|\bidentity|\bauthenticat|\buser id|\bwho you are")
_CONFIRM = re.compile(
    r"\bconfirm|\bproceed|\bgo ahead|\byes\b|\b(is|are) (this|that|these|everything) (correct|right)"
    r"|\b(shall|should) i\b|\b(would you like|do you want) me to\b|\bdo you agree"
)
_FINISHED = re.compile(
    r"\b(done|cancell?ed|requested|changed|updated|modified|exchanged|returned|refund\w*|transferred|processed|complete\w*"
    r"|sorry|unable|cannot|can't|not possible|welcome|goodbye|thank)\b"
)
_ELSE = re.compile(
    r"\banything else|\bsomething else|\bother (request|item|change)|\bany other|\bfurther\b|\bmore items?\b"
    r"|\b(is|are) (this|that|these|those) all\b|\ball (of )?(the|your) items\b"
)
_TOPICS = (
    (re.compile(r"\breason|\bwhy\b"), re.compile(r"because|no longer|mistake|reason", re.IGNORECASE)),
    (
        re.compile(r"\bpay|\bcard\b|\brefund|\bmethod"),
        re.compile(r"paypal|credit|gift|card|payment|refund|\bvia\b", re.IGNORECASE),
    ),
    (re.compile(r"\baddress"), re.compile(r"address|street|avenue|suite|live|move", re.IGNORECASE)),
    (re.compile(r"\border (id|number)|\bwhich order"), re.compile(r"#W\d|order", re.IGNORECASE)),
    (
        re.compile(r"\bitem|\boption|\bcolou?r|\bsize|\bproduct|\bwhich\b|\bprefer"),
        re.compile(r"[{]|\bto\b|prefer|want"),
    ),
)


class RulesCustomer(Customer):
    """Tells its instruction in turns.

    A message is read as a question for who the customer is, as one that meets a condition of the instruction, as a
    question for a yes, as a question about a topic, or as none of these; then the next sentence of the request follows.
    After the last one the customer leaves when the message says that something was done or is not possible.
    """

    def __init__(self, instruction: str) -> None:
        self._request: Request = read_request(instruction)
        self._told: set[int] = set()
        self._conditions = list(self._request.conditions)
        self._repeats = 0

    async def begin(self) -> str:
        """The first sentence of the request."""
        return "Hello. " + (self._tell_next() or "I need help with an order.")

    async def reply(self, text: str) -> str | None:
        """The answer to what was asked."""
        asked = text.lower()
        is_question = "?" in asked or "please" in asked or "provide" in asked
        if is_question and _IDENTITY.search(asked) and not _CONFIRM.search(asked):
            return self._again(self._request.identity)
        under = self._condition(asked, is_question=is_question)
        if under is not None:
            return under.then
        agrees = "Yes, please." if is_question and _CONFIRM.search(asked) else ""
        if is_question and _ELSE.search(asked):
            return self._add(agrees, finished=bool(_FINISHED.search(asked)))
        if agrees:
            return self._again(agrees, free=True)
        if is_question:
            for question, sentence in _TOPICS:
                if question.search(asked):
                    numbers = [n for n, part in enumerate(self._request.parts) if sentence.search(part)]
                    if numbers:
                        new = [number for number in numbers if number not in self._told]
                        self._told.update(numbers)
                        return self._again(" ".join(self._request.parts[n] for n in new or numbers), free=bool(new))
        following = self._tell_next()
        if following is None and is_question and self._conditions:
            return self._conditions.pop(0).sentence
        if following is None and is_question:
            return self._again("I do not know. Please look it up, and do what I asked for.")
        if following is None and not _FINISHED.search(asked):
            return self._again("Fine, I wait.")
        return following

    def _condition(self, asked: str, *, is_question: bool) -> Condition | None:
        """What is said under a condition that this message meets; once each. Of several refusals the first one counts
        first."""
        refusal = next((entry for entry in self._conditions if entry.kind == "refused"), None)
        for condition in self._conditions:
            if condition.kind == "asked":
                is_met = is_question and bool(
                    _CONFIRM.search(asked) if condition.confirms else condition.is_about(asked)
                )
            else:
                is_last = len(self._told) == len(self._request.parts)
                is_met = condition is refusal and bool(REFUSED.search(asked)) and (is_last or condition.is_about(asked))
            if is_met:
                self._conditions.remove(condition)
                return condition
        return None

    def _add(self, agrees: str, *, finished: bool) -> str | None:
        """The next sentence, or that there is none; None when there is none and the request was dealt with."""
        following = self._tell_next()
        if following is None and finished and not agrees:
            return None
        return self._again(f"{agrees} {following or 'That is all.'}".strip(), free=bool(following or agrees))

    def _tell_next(self) -> str | None:
        for number, part in enumerate(self._request.parts):
            if number not in self._told:
                self._told.add(number)
                return part
        return None

    def _again(self, text: str, *, free: bool = False) -> str | None:
        """The text; None when the customer has repeated itself too often."""
        self._repeats += not free
        return text if self._repeats <= MAX_REPEATS else None


def make_customer(kind: str, instruction: str, server: Mapping[str, Any]) -> Customer:
    """The customer of an episode."""
    if kind == "openai":
        from .model_customer import ModelCustomer

        return ModelCustomer(instruction, server)
    if kind not in CUSTOMERS:
        raise ConfigError(f"env.user={kind} must be one of {', '.join(CUSTOMERS)}")
    return SoloCustomer(instruction) if kind == "solo" else RulesCustomer(instruction)
