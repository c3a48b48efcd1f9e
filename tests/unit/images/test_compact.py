"""Ids of image tokens in files: one entry per run, read back exactly."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1.images import FIRST_IMAGE_ID, MAX_IMAGE_TOKENS, compact_ids, expand_ids, image_token_ids, picture_numbers
from agent_r1.images.ids import image_number

RED, BLUE = image_token_ids("red", 64), image_token_ids("blue", 64)


def test_ids_of_text_are_the_same_object() -> None:
    ids = (1, 2, 3)
    assert compact_ids(ids) is ids
    assert expand_ids([1, 2, 3]) == ids


def test_an_image_is_one_entry_with_the_picture_it_shows() -> None:
    ids = (7, *RED, 8, *BLUE[:32], 9, *BLUE[32:])
    numbers = picture_numbers(ids, ["hash of red", "hash of blue", "hash of red"])
    assert compact_ids(ids, numbers) == [
        7,
        {"image": RED[0], "tokens": 64, "picture": "hash of red"},
        8,
        {"image": BLUE[0], "tokens": 32, "picture": "hash of blue"},
        9,
        {"image": BLUE[32], "tokens": 32, "picture": "hash of blue"},
    ]
    assert len(json.dumps(compact_ids(ids))) < 200


def test_the_same_image_twice_in_a_row_is_two_entries() -> None:
    entries = compact_ids((*RED, *RED))
    assert [entry["tokens"] for entry in entries] == [64, 64]
    assert expand_ids(entries) == (*RED, *RED)


def test_pictures_are_not_guessed_when_there_are_more_or_fewer_than_images() -> None:
    assert picture_numbers((*RED, *BLUE), ["one"]) == {}
    assert picture_numbers((1, 2), ["one"]) == {}
    assert picture_numbers(RED, ["one", "one"]) == {image_number(RED[0]): "one"}


pieces = st.one_of(
    st.integers(0, 200_000).map(lambda token: (token,)),
    st.tuples(st.text(max_size=3), st.integers(1, 200), st.integers(0, 199)).map(
        lambda image: image_token_ids(image[0], image[1])[image[2] :]
    ),
)


@pytest.mark.whole
@given(st.lists(pieces, max_size=12))
def test_all_ids_read_back_exactly_through_json(found: list[tuple[int, ...]]) -> None:
    ids = tuple(token for piece in found for token in piece)
    assert expand_ids(json.loads(json.dumps(compact_ids(ids)))) == ids


@pytest.mark.parametrize(
    "entry",
    [{}, {"image": FIRST_IMAGE_ID}, {"image": FIRST_IMAGE_ID, "tokens": MAX_IMAGE_TOKENS + 1},
     {"image": FIRST_IMAGE_ID, "tokens": 0}, {"image": "x", "tokens": 1}, {"image": True, "tokens": 1}],
)  # fmt: skip
def test_what_is_no_run_is_refused(entry: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is no run of image tokens"):
        expand_ids([entry])
