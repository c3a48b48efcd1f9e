"""Text while it is sampled: together it is the text of all ids, and no call is taken for content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1.chat import ChatRenderer, TextStream, TokenTexts, content_stream
from agent_r1.types import ToolCall
from tests.unit.chat.test_formats import FORMATS

WORDS = [
    "Hm. ",
    "1 < 2",
    "<tool",
    "_call>",
    " {",
    '"name"',
    "[TOOL",
    "\n",
    "<code>",
    "</tool_call>",
    "é🙂",
    "<think>",
    "x",
]


def pieces_of(tokenizer: Any, text: str) -> tuple[list[int], list[str]]:
    stream, ids = TextStream(ChatRenderer(tokenizer)), tokenizer.encode(text, add_special_tokens=False)
    return ids, [stream.add([token]) for token in ids]


@given(text=st.text(max_size=40))
def test_pieces_of_text_are_the_text(tokenizer: Any, text: str) -> None:
    ids, pieces = pieces_of(tokenizer, text)
    whole = tokenizer.decode(ids, skip_special_tokens=False)
    assert whole.startswith("".join(pieces))
    assert "\ufffd" in whole or "".join(pieces) == whole


def test_a_character_comes_with_its_last_byte(tokenizer: Any) -> None:
    ids, pieces = pieces_of(tokenizer, "a🙂b")
    assert "".join(pieces) == "a🙂b"
    assert "🙂" in pieces
    assert len(ids) > 3, "the character has several tokens"


@given(text=st.text(max_size=40))
def test_bytes_of_tokens_are_the_bytes_of_the_text(tokenizer: Any, text: str) -> None:
    texts, ids = TokenTexts(tokenizer), tokenizer.encode(text, add_special_tokens=False)
    decoded = tokenizer.decode(ids, skip_special_tokens=False)
    if "\ufffd" not in decoded:
        assert b"".join(texts.of(token)[1] for token in ids) == decoded.encode()


def stream_through(renderer: ChatRenderer, pieces: Sequence[str], *, has_tools: bool) -> tuple[str, str]:
    """What a client sees, and the content of the whole turn."""
    text, stream = "".join(pieces), content_stream(renderer, has_tools=has_tools)
    shown = "".join(map(stream.push, pieces))
    parsed = renderer.format.parse(text, truncated=False)
    calls = parsed.tool_calls if has_tools and parsed.parse_error is None else ()
    content = parsed.content if calls else text if parsed.history_text is None else parsed.history_text
    return shown + stream.rest(content), content


@pytest.mark.whole
@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_a_stream_of_any_format_shows_the_content_and_no_call(tokenizer: Any, name: str, data: st.DataObject) -> None:
    renderer = ChatRenderer(tokenizer, name)
    call = ToolCall(name="code_interpreter", arguments={"code": "print(1)"})
    texts = [*WORDS, renderer.format.call_text([call], ""), renderer.format.call_text([call], "I look.")]
    text = "".join(data.draw(st.lists(st.sampled_from(texts), max_size=6)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    shown, content = stream_through(renderer, pieces, has_tools=True)
    assert shown.lstrip() == content.lstrip()
    shown, content = stream_through(renderer, pieces, has_tools=False)
    assert shown == content


def test_text_before_a_call_is_shown_while_the_call_is_written(tokenizer: Any) -> None:
    stream = content_stream(ChatRenderer(tokenizer, "hermes"), has_tools=True)
    assert [stream.push(piece) for piece in ("I look", ".\n", "<tool", '_call>{"name"')] == ["I look", ".", "", ""]
