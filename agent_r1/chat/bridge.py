"""What a chat template writes between two turns: from the end of a sampled turn to where the next one begins.

The conversation is rendered with a marker in place of the sampled turn, and what the template writes after the marker
is kept. Templates that insist on a call before a tool's answer (GPT-OSS, Mistral) get the calls beside the marker; what
is kept then begins with the end of that turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent_r1.errors import ChatTemplateError
from agent_r1.types import Action, Message

MARKER = "AGENTR1MARKER"

Template = Callable[[Sequence[Message], bool], str]
"""What a chat template writes for messages, with or without the words that begin the assistant's next turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """What comes after a sampled turn."""

    skeleton: tuple[Message, ...]
    """The whole conversation, a marker in place of each sampled turn."""
    template_text: str
    """What the template writes for the skeleton."""
    text: str
    """What it writes after the sampled turn. It may begin with that turn's own end."""


def find_delta(
    template: Template,
    skeleton: tuple[Message, ...],
    template_text: str,
    action: Action,
    new_messages: Sequence[Message],
    ends: Sequence[str],
) -> Delta | None:
    """The delta after `action`, which followed `template_text`, what the template wrote for `skeleton`; None when the
    template writes the earlier turns differently now that there are later ones.

    A template that writes `<|role|>content<|end|>` gives, for a tool's answer "7", the text
    `<|end|><|tool|>7<|end|><|assistant|>`.
    """
    thought = _thought(action)
    turn: Message = {"role": "assistant", "content": thought + MARKER}
    try:
        text = template((*skeleton, turn, *new_messages), True)
    except ChatTemplateError:
        text = ""
    # Where the template itself begins the thinking, the sampled turn goes on after that.
    for spoken in (thought + MARKER, (thought + MARKER).removeprefix("<think>\n")):
        start = text.find(spoken, len(template_text))
        # What the template writes before the content (harmony's channel) must be what the model wrote there.
        if start >= 0 and text.startswith(template_text) and action.text.startswith(text[len(template_text) : start]):
            after = text[start + len(spoken) :]
            return Delta(skeleton=(*skeleton, turn, *new_messages), template_text=text, text=after)
    return _after_calls(template, skeleton, template_text, action, new_messages, ends)


def _thought(action: Action) -> str:
    """Thinking for the marked turn, where the sampled one has some: a template that drops it must be caught at it."""
    return f"<think>\n{MARKER}\n</think>\n\n" if "</think>" in action.text else ""


def _after_calls(
    template: Template,
    skeleton: tuple[Message, ...],
    template_text: str,
    action: Action,
    new_messages: Sequence[Message],
    ends: Sequence[str],
) -> Delta | None:
    calls = action.as_message().get("tool_calls")
    if not calls:
        return None
    thought = _thought(action)
    turn: Message = {"role": "assistant", "content": thought + MARKER, "tool_calls": calls}
    try:
        closed = template((*skeleton, turn), False)
        text = template((*skeleton, turn, *new_messages), True)
    except ChatTemplateError:
        return None
    end = max(closed.rfind(end) for end in ends)
    if end < len(template_text) or not closed.startswith(template_text) or not text.startswith(closed):
        return None
    if thought.removeprefix("<think>\n") not in closed[len(template_text) :]:
        return None
    return Delta(skeleton=(*skeleton, turn, *new_messages), template_text=text, text=text[end:])
