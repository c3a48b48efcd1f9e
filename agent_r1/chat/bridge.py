"""Finds what a chat template writes between two turns: from the end of a sampled turn to the start of the next one.

The conversation is rendered with a marker in place of the sampled turn; the delta is what the template writes after the
marker. Templates that require a call before a tool's answer (GPT-OSS, Mistral) get the calls beside the marker; their
delta begins with the end of that turn.

Rendering the whole conversation every turn would take longer with every turn. The delta hardly ever depends on the
turns between the first prompt and the last turn: once that has been checked, the conversation is rendered without them.
Once the template has been seen to copy tool answers unchanged, it is not rendered at all (`delta_cache`).
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from agent_r1.chat.control_tokens import SPLIT
from agent_r1.chat.delta_cache import TIMES_AGREED, DeltaCache
from agent_r1.chat.pictures import forms_of
from agent_r1.errors import ChatTemplateError
from agent_r1.images import Picture
from agent_r1.types import Action, Message, Observation, TokenIds

MARKER = "AGENTR1MARKER"
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")

Template = Callable[[Sequence[Message], bool], str]
"""The chat template: from messages to text, with or without the generation prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A conversation as the chat template renders it, up to where the assistant's next turn begins."""

    skeleton: tuple[Message, ...]
    """Its messages, with a marker in place of each sampled turn."""
    template_text: str
    """What the template writes for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnDelta(Rendered):
    """The text that the template writes after a sampled turn, and the whole conversation with it."""

    text: str
    """What the template writes after the sampled turn. It may begin with the end of that turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedPrefix(Rendered):
    """The conversation as it was last rendered from scratch, and a summary of the turns since then."""

    num_turns: int = 0
    """Sampled turns since then."""
    has_thinking: bool = False
    """Whether any of them contains thinking."""

    def after(self, action: Action) -> RenderedPrefix:
        """The prefix with one more sampled turn."""
        has_thinking = self.has_thinking or "</think>" in action.text
        return replace(self, num_turns=self.num_turns + 1, has_thinking=has_thinking)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One model input, and what the bridge to the next turn needs."""

    observation: Observation
    """What was rendered."""
    token_ids: TokenIds
    """The prompt."""
    skeleton: tuple[Message, ...] = ()
    """The messages, with a marker in place of each turn whose sampled ids were bridged over; control tokens in them are
    cut (see `control_tokens`)."""
    template_text: str | None = None
    """What the chat template wrote for the skeleton, cuts included; None for raw text or ids."""
    bridged: bool = False
    """The ids continue the previous step's prompt and sampled ids."""
    before: RenderedPrefix | None = None
    """What was last rendered from scratch, and the turns since then; None for raw text or ids."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A prompt whose text is not encoded yet."""

    text: str
    """The text whose ids are missing."""
    prompt: Callable[[TokenIds], Prompt]
    """The prompt with these ids."""
    pictures: tuple[Picture, ...] = ()
    """The images whose placeholders are in the text."""

    @property
    def most_tokens(self) -> int:
        """At least as many as its ids, without encoding: a token is at least a byte of the text, as the tokenizer may
        normalise it, but for one that it may put in front of each piece."""
        if self.pictures:
            return sys.maxsize
        others = _NOT_ASCII.findall(self.text)
        return len(self.text) - len(others) + sum(map(_most_bytes, others)) + self.text.count(SPLIT) + 1


@lru_cache(maxsize=1 << 16)
def _most_bytes(character: str) -> int:
    """Bytes of a character in its longest normal form.

    >>> _most_bytes("é"), _most_bytes("½")
    (3, 5)
    """
    forms = character, *(unicodedata.normalize(form, character) for form in ("NFD", "NFKD"))
    return max(len(form.encode("utf-8", "surrogatepass")) for form in forms)


class DeltaFinder:
    """Finds deltas. It learns, by comparing with whole renderings, when the turns between or the template itself can be
    left out: separately for each kind of turn and each doubling of the number of turns."""

    def __init__(self, ends: Sequence[str]) -> None:
        """`ends` are the texts of the tokens that end a turn."""
        self._ends = ends
        self._agreed: dict[Any, int] = {}
        self._cache = DeltaCache()

    def find(
        self, template: Template, so_far: Rendered, before: RenderedPrefix, action: Action, answers: Sequence[Message]
    ) -> TurnDelta | None:
        """The delta after `action`, answered by `answers`, in a conversation that began with `before`."""
        if any(answer["role"] != "tool" for answer in answers):
            return find_delta(template, so_far, action, answers, self._ends)
        kind, rendered = _kind(before, action, answers), so_far.template_text
        texts = [answer["content"] for answer in answers]
        if not all(isinstance(text, str) for text in texts):
            return self._render(kind, template, so_far, before, action, answers)
        cache_key = (kind, *(answer.get("name") for answer in answers))
        cached = self._cache.text(cache_key, texts, rendered)
        if cached is not None:
            return _delta_after_marker(so_far, answers, cached)

        def render_answers(other_texts: Sequence[str], begin_turn: bool) -> str | None:
            others = [_with_content(answer, text) for answer, text in zip(answers, other_texts, strict=True)]
            delta = find_delta(lambda messages, _: template(messages, begin_turn), so_far, action, others, self._ends)
            return (
                delta.text if delta is not None and delta == _delta_after_marker(so_far, others, delta.text) else None
            )

        delta = self._render(kind, template, so_far, before, action, answers)
        is_trusted = not before.num_turns or self._agreed.get(kind, 0) >= TIMES_AGREED
        if is_trusted and delta is not None and delta == _delta_after_marker(so_far, answers, delta.text):
            self._cache.learn(cache_key, texts, rendered, delta.text, render_answers)
        return delta

    def _render(
        self,
        kind: Any,
        template: Template,
        so_far: Rendered,
        before: RenderedPrefix,
        action: Action,
        answers: Sequence[Message],
    ) -> TurnDelta | None:
        """The delta by the template, from the whole conversation or without the turns between."""

        def delta_after(conversation: Rendered) -> TurnDelta | None:
            return find_delta(template, conversation, action, answers, self._ends)

        agreed = self._agreed.get(kind, 0)
        if not before.num_turns or agreed < 0:
            return delta_after(so_far)
        short = delta_after(before)
        extended = short and TurnDelta(
            skeleton=(*so_far.skeleton, *short.skeleton[len(before.skeleton) :]),
            template_text=so_far.template_text + short.template_text[len(before.template_text) :],
            text=short.text,
        )
        if extended is not None and agreed >= TIMES_AGREED:
            return extended
        whole = delta_after(so_far)
        self._agreed[kind] = agreed + 1 if whole == extended else -1
        return whole


def _delta_after_marker(so_far: Rendered, answers: Sequence[Message], text: str) -> TurnDelta:
    """The delta of a template that writes nothing before the sampled turn's content, and `text` after it."""
    turn: Message = {"role": "assistant", "content": MARKER}
    return TurnDelta(
        skeleton=(*so_far.skeleton, turn, *answers), template_text=so_far.template_text + MARKER + text, text=text
    )


def _with_content(answer: Message, text: str) -> Message:
    """Another answer of the same tool, to another call."""
    return {**answer, "content": text, **({"tool_call_id": "other0000"} if "tool_call_id" in answer else {})}


def _kind(before: RenderedPrefix, action: Action, answers: Sequence[Message]) -> Any:
    """What a template may depend on: the number of turns, thinking, calls, and the form of the answers."""
    forms = tuple(
        (type(answer["content"]), bool(answer["content"]), *forms_of(answer["content"]), *sorted(answer))
        for answer in answers
    )
    thinking = before.has_thinking, "</think>" in action.text
    return before.num_turns.bit_length(), thinking, len(action.tool_calls), action.parse_error is None, forms


def find_delta(
    template: Template, so_far: Rendered, action: Action, answers: Sequence[Message], ends: Sequence[str]
) -> TurnDelta | None:
    """The delta after `action`; None when later messages change how the template writes the earlier turns.

    For a template that writes `<|role|>content<|end|>` and the tool answer "7" the text is
    `<|end|><|tool|>7<|end|><|assistant|>`.
    """
    thinking = _marked_thinking(action)
    turn: Message = {"role": "assistant", "content": thinking + MARKER}
    try:
        text = template((*so_far.skeleton, turn, *answers), True)
    except ChatTemplateError:
        text = ""
    turn_start = len(so_far.template_text)
    # Where the template itself opens the thinking, the sampled turn continues after that.
    for content in (thinking + MARKER, (thinking + MARKER).removeprefix("<think>\n")):
        start = text.find(content, turn_start)
        # What the template writes before the content (harmony's channel) must be what the model wrote there.
        if start >= 0 and text.startswith(so_far.template_text) and action.text.startswith(text[turn_start:start]):
            after = text[start + len(content) :]
            return TurnDelta(skeleton=(*so_far.skeleton, turn, *answers), template_text=text, text=after)
    return _delta_after_calls(template, so_far, action, answers, ends)


def _marked_thinking(action: Action) -> str:
    """Thinking for the marked turn if the sampled turn has some, so that a template that drops it is noticed."""
    return f"<think>\n{MARKER}\n</think>\n\n" if "</think>" in action.text else ""


def _delta_after_calls(
    template: Template, so_far: Rendered, action: Action, answers: Sequence[Message], ends: Sequence[str]
) -> TurnDelta | None:
    calls = action.as_message().get("tool_calls")
    if not calls:
        return None
    thinking = _marked_thinking(action)
    turn: Message = {"role": "assistant", "content": thinking + MARKER, "tool_calls": calls}
    try:
        closed_text = template((*so_far.skeleton, turn), False)
        text = template((*so_far.skeleton, turn, *answers), True)
    except ChatTemplateError:
        return None
    turn_start = len(so_far.template_text)
    end = max(closed_text.rfind(end) for end in ends)
    if end < turn_start or not closed_text.startswith(so_far.template_text) or not text.startswith(closed_text):
        return None
    if thinking.removeprefix("<think>\n") not in closed_text[turn_start:]:
        return None
    return TurnDelta(skeleton=(*so_far.skeleton, turn, *answers), template_text=text, text=text[end:])
