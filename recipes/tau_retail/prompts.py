"""What the model of tau_retail reads first: the policy, and the customer's request.

`short` is the policy of tau-bench in a third of its tokens, with what decides whether a change is right. `full` is the
file `policy.md` of the data folder, which is tau-bench's own text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from agent_r1.errors import ConfigError

Policy = Literal["short", "full"]
POLICY_FILE = "policy.md"

SHORT = """You serve one customer of an online shop with tools.
- First find the user id by e-mail, or by name and zip code, even if the customer tells it. Serve only this customer.
- Make one tool call per turn, without other text. Use only what the customer and the tools say.
- Look at an order before you change it. A pending order can be cancelled (reason: "no longer needed" or "ordered by \
mistake"), or its address, payment method or items changed. Items of a delivered order can be returned or exchanged. \
Orders of any other status cannot be changed.
- An item is replaced only by an available item of the same product. Options that the customer does not name stay as \
they are.
- Items of an order can be modified, exchanged or returned only once, so put all of them into one call. After its \
items were modified, nothing else of an order can be changed: change address and payment method before.
- The price difference goes to or from a payment method of the customer. A gift card must cover what is due. A new \
payment method must differ from the old one. A refund of a return goes to the order's payment method or to a gift card.
- Transfer to a human agent only what these tools cannot do."""
SOLO = """
- The customer agreed to all changes and cannot answer. "You" in the request is the customer. Do all that is asked, \
then write one message with what was done and what the customer wants to know."""
TALK = """
- Before a change, list its details and wait for the customer's yes. Before items are changed, ask whether these are \
all. When you write to the customer, make no call."""


def system_text(policy: Policy, *, solo: bool, folder: str) -> str:
    """The system message. Neither policy tells solo mode apart, so its last rule does."""
    text = SHORT if policy == "short" else read_policy(folder)
    return text + (SOLO if solo else TALK if policy == "short" else "")


@lru_cache(maxsize=4)
def read_policy(folder: str) -> str:
    """The whole policy."""
    try:
        return (Path(folder) / POLICY_FILE).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(
            f"env.policy=full needs {Path(folder) / POLICY_FILE} ({error.strerror}), which the data script writes"
        ) from error


def first_messages(system: str, request: str) -> list[dict[str, Any]]:
    """The messages that an episode begins with."""
    return [{"role": "system", "content": system}, {"role": "user", "content": request}]


def call_message(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a model says that calls a tool."""
    function = {"name": tool, "arguments": dict(arguments)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00000", "type": "function", "function": function}],
    }


def answer_text(outputs: Sequence[str]) -> str:
    """The last message of a gold plan.

    >>> answer_text(["829.43"])
    'All is done. You asked for: 829.43.'
    """
    return "All is done." + (f" You asked for: {'; '.join(outputs)}." if outputs else "")
