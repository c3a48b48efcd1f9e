"""`TextStream`: the parts of a turn add up to its text, whatever the characters and however they arrive."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent_r1.chat import ChatRenderer, TextStream
from agent_r1.models.tiny import train_tokenizer

RENDERER = ChatRenderer(train_tokenizer([{"messages": [{"role": "user", "content": "What do 2 tea cost?"}]}]))


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30), st.data())
def test_the_parts_add_up_to_the_text_and_only_the_last_may_be_incomplete(text: str, data: Any) -> None:
    ids = list(RENDERER.encode(text))
    stream, parts = TextStream(RENDERER), []
    while ids:
        size = data.draw(st.integers(1, 3))
        parts.append(stream.add(ids[:size]))
        ids = ids[size:]
    parts.append(stream.add([RENDERER.stop_ids[0]], is_last=True))
    assert "".join(parts) == text


def test_a_character_of_four_bytes_is_given_once_and_whole() -> None:
    stream = TextStream(RENDERER)
    parts = [stream.add([token]) for token in RENDERER.encode("👩 x")]
    assert [part for part in parts if part] == ["👩", " ", "x"]


def test_a_turn_that_ends_inside_a_character_shows_that_it_does() -> None:
    stream = TextStream(RENDERER)
    cut = RENDERER.encode("a👩")[:-1]
    assert stream.add(cut) == ""
    assert stream.add([], is_last=True).startswith("a")
