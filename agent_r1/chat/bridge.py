"""What a chat template writes between two turns: from the end of a sampled turn to where the next one begins.

The conversation is rendered with a marker in place of the sampled turn, and what the template writes after the marker
is kept. Templates that insist on a call before a tool's answer (GPT-OSS, Mistral) get the calls beside the marker; what
is kept then begins with the end of that turn.

A conversation of many turns would be rendered as many times, longer each time. What comes after a turn hardly ever
depends on the turns between the first prompt and it: where that has been seen to hold, the conversation is rendered
without them. Where the template has been seen to write the answers of tools as they are, it is not asked at all
(`stencils`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_r1.chat.delta_cache import TIMES_AGREED, Stencils
from agent_r1.errors import ChatTemplateError
from agent_r1.types import Action, Message

MARKER = "AGENTR1MARKER"

Template = Callable[[Sequence[Message], bool], str]
"""What a chat template writes for messages, with or without the words that begin the assistant's next turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A conversation as a chat template writes it, up to where the assistant's next turn begins."""

    skeleton: tuple[Message, ...]
    """Its messages, a marker in place of each sampled turn."""
    template_text: str
    """What the template writes for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnDelta(Rendered):
    """What comes after a sampled turn, and the whole conversation with it."""

    text: str
    """What the template writes after the sampled turn. It may begin with that turn's own end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedPrefix(Rendered):
    """The conversation that was rendered afresh last, and the turns since then in short."""

    num_turns: int = 0
    """Sampled turns since then."""
    thought: bool = False
    """Whether there is thinking in these."""

    def after(self, action: Action) -> RenderedPrefix:
        """The same with one more turn."""
        return replace(self, num_turns=self.num_turns + 1, thought=self.thought or "</think>" in action.text)


class DeltaFinder:
    """Finds deltas; what may be found without the turns between, or without the template, is learned by comparing, for
    each kind of turn and each doubling of the number of turns."""

    def __init__(self, ends: Sequence[str]) -> None:
        self._ends = ends
        self._agreed: dict[Any, int] = {}
        self._stencils = Stencils()

    def find(
        self, template: Template, so_far: Rendered, before: RenderedPrefix, action: Action, answers: Sequence[Message]
    ) -> TurnDelta | None:
        """The delta after `action`, answered by `answers`, in a conversation that began with `before`."""
        if any(answer["role"] != "tool" for answer in answers):
            return find_delta(template, so_far, action, answers, self._ends)
        kind, told = _kind(before, action, answers), so_far.template_text
        texts = [answer["content"] for answer in answers]
        if not all(isinstance(text, str) for text in texts):
            return self._ask(kind, template, so_far, before, action, answers)
        stencil_kind = (kind, *(answer.get("name") for answer in answers))
        known = self._stencils.text(stencil_kind, texts, told)
        if known is not None:
            return _marked(so_far, answers, known)

        def ask(others: Sequence[str], begin_turn: bool) -> str | None:
            changed = [_changed(answer, text) for answer, text in zip(answers, others, strict=True)]
            delta = find_delta(lambda asked, _: template(asked, begin_turn), so_far, action, changed, self._ends)
            return delta.text if delta is not None and delta == _marked(so_far, changed, delta.text) else None

        found = self._ask(kind, template, so_far, before, action, answers)
        is_settled = not before.num_turns or self._agreed.get(kind, 0) >= TIMES_AGREED
        if is_settled and found is not None and found == _marked(so_far, answers, found.text):
            self._stencils.learn(stencil_kind, texts, told, found.text, ask)
        return found

    def _ask(
        self,
        kind: Any,
        template: Template,
        so_far: Rendered,
        before: RenderedPrefix,
        action: Action,
        answers: Sequence[Message],
    ) -> TurnDelta | None:
        """What the template writes for the whole conversation, or without the turns between."""

        def after(written: Rendered) -> TurnDelta | None:
            return find_delta(template, written, action, answers, self._ends)

        agreed = self._agreed.get(kind, 0)
        if not before.num_turns or agreed < 0:
            return after(so_far)
        short = after(before)
        grown = short and TurnDelta(
            skeleton=(*so_far.skeleton, *short.skeleton[len(before.skeleton) :]),
            template_text=so_far.template_text + short.template_text[len(before.template_text) :],
            text=short.text,
        )
        if grown is not None and agreed >= TIMES_AGREED:
            return grown
        whole = after(so_far)
        self._agreed[kind] = agreed + 1 if whole == grown else -1
        return whole


def _marked(so_far: Rendered, answers: Sequence[Message], text: str) -> TurnDelta:
    """The delta of a template that writes nothing of its own before a sampled turn, and this text after it."""
    turn: Message = {"role": "assistant", "content": MARKER}
    return TurnDelta(
        skeleton=(*so_far.skeleton, turn, *answers), template_text=so_far.template_text + MARKER + text, text=text
    )


def _changed(answer: Message, text: str) -> Message:
    """Another answer of the same tool, to another call."""
    return {**answer, "content": text, **({"tool_call_id": "other0000"} if "tool_call_id" in answer else {})}


def _kind(before: RenderedPrefix, action: Action, answers: Sequence[Message]) -> Any:
    """What a template may look at: how many turns there are, thinking, calls, and the form of the answers."""
    forms = tuple((type(answer["content"]), bool(answer["content"]), *sorted(answer)) for answer in answers)
    thought = before.thought, "</think>" in action.text
    return before.num_turns.bit_length(), thought, len(action.tool_calls), action.parse_error is None, forms


def find_delta(
    template: Template, so_far: Rendered, action: Action, answers: Sequence[Message], ends: Sequence[str]
) -> TurnDelta | None:
    """The delta after `action`; None when the template writes the earlier turns differently now that there are later
    ones.

    A template that writes `<|role|>content<|end|>` gives, for a tool's answer "7", the text
    `<|end|><|tool|>7<|end|><|assistant|>`.
    """
    thought = _thought(action)
    turn: Message = {"role": "assistant", "content": thought + MARKER}
    try:
        text = template((*so_far.skeleton, turn, *answers), True)
    except ChatTemplateError:
        text = ""
    told = len(so_far.template_text)
    # Where the template itself begins the thinking, the sampled turn goes on after that.
    for spoken in (thought + MARKER, (thought + MARKER).removeprefix("<think>\n")):
        start = text.find(spoken, told)
        # What the template writes before the content (harmony's channel) must be what the model wrote there.
        if start >= 0 and text.startswith(so_far.template_text) and action.text.startswith(text[told:start]):
            after = text[start + len(spoken) :]
            return TurnDelta(skeleton=(*so_far.skeleton, turn, *answers), template_text=text, text=after)
    return _after_calls(template, so_far, action, answers, ends)


def _thought(action: Action) -> str:
    """Thinking for the marked turn, where the sampled one has some: a template that drops it must be caught at it."""
    return f"<think>\n{MARKER}\n</think>\n\n" if "</think>" in action.text else ""


def _after_calls(
    template: Template, so_far: Rendered, action: Action, answers: Sequence[Message], ends: Sequence[str]
) -> TurnDelta | None:
    calls = action.as_message().get("tool_calls")
    if not calls:
        return None
    thought = _thought(action)
    turn: Message = {"role": "assistant", "content": thought + MARKER, "tool_calls": calls}
    try:
        closed = template((*so_far.skeleton, turn), False)
        text = template((*so_far.skeleton, turn, *answers), True)
    except ChatTemplateError:
        return None
    told = len(so_far.template_text)
    end = max(closed.rfind(end) for end in ends)
    if end < told or not closed.startswith(so_far.template_text) or not text.startswith(closed):
        return None
    if thought.removeprefix("<think>\n") not in closed[told:]:
        return None
    return TurnDelta(skeleton=(*so_far.skeleton, turn, *answers), template_text=text, text=text[end:])
