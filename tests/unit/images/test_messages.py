"""Pictures in messages: every form becomes one, and what needs no change stays the same object."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agent_r1.errors import ImageError
from agent_r1.images import (
    Picture,
    needs_reading,
    normal_observation,
    picture_messages,
    pictures_in,
    read_picture,
    with_images,
)
from agent_r1.types import Observation

DOT = Image.new("RGB", (3, 2), (9, 8, 7))
PICTURE = read_picture(DOT)
TEXT = {"type": "text", "text": "What is this?"}


def png() -> bytes:
    file = io.BytesIO()
    DOT.save(file, format="PNG")
    return file.getvalue()


URL = f"data:image/png;base64,{base64.b64encode(png()).decode()}"


def user(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts), **more}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
        {"type": "image_url", "image_url": URL},
        {"type": "input_image", "image_url": URL},
        {"type": "image", "image": DOT},
        {"type": "image", "image": png()},
        {"type": "image", "image": {"bytes": png(), "path": None}},
        {"type": "image", "image": np.asarray(DOT)},
        {"type": "image", "image": "dots/dot.png"},
        {"type": "image", "path": "dots/dot.png"},
        {"type": "image", "url": "dots/dot.png"},
        {"type": "image", "image": PICTURE, "text": None},
        {"image": DOT},
    ],
    ids=lambda part: f"{part.get('type')}: {', '.join(key for key in part if key != 'type')}",
)
def test_every_form_of_an_image_becomes_one(part: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "dots").mkdir()
    DOT.save(tmp_path / "dots" / "dot.png")
    assert picture_messages((user(TEXT, part),), folder=tmp_path) == (user(TEXT, {"type": "image", "image": PICTURE}),)


def test_messages_without_images_and_those_in_their_one_form_stay_the_same_objects() -> None:
    messages = ({"role": "user", "content": "an image"}, user(TEXT), user({"type": "image", "image": PICTURE}))
    observation = Observation(messages=messages)
    assert picture_messages(messages) is messages
    assert normal_observation(observation) is observation
    assert not needs_reading(observation)
    assert needs_reading(Observation(messages=(user({"type": "image", "image": DOT}),)))
    assert needs_reading(Observation(messages=messages, images=(DOT,)))
    assert needs_reading(Observation(messages=({"role": "user", "content": "?", "images": [DOT]},)))


def test_images_beside_messages_fill_empty_parts_in_order_and_are_appended_otherwise() -> None:
    other = Image.new("RGB", (1, 1))
    messages = (
        user({"type": "image"}, TEXT),
        {"role": "tool", "content": "seen"},
        {"role": "assistant", "content": "a"},
    )
    first, tool, said = picture_messages(messages, [DOT, other])
    assert [part.get("image") for part in first["content"]] == [PICTURE, None]
    assert tool["content"] == [{"type": "text", "text": "seen"}, {"type": "image", "image": read_picture(other)}]
    assert said is messages[2]
    assert list(pictures_in((first, tool, said))) == [PICTURE, read_picture(other)]


def test_images_of_a_message_follow_its_text() -> None:
    [message] = picture_messages([{"role": "user", "content": "What?", "images": [DOT]}])
    assert message == user({"type": "text", "text": "What?"}, {"type": "image", "image": PICTURE})


def test_an_observation_has_its_images_in_its_messages() -> None:
    seen = Observation(messages=({"role": "user", "content": "What?"},), images=(DOT,), anchor="a")
    normal = normal_observation(seen)
    assert (normal.images, normal.anchor) == ((), "a")
    assert normal.messages == ({"role": "user", "content": with_images("What?", [PICTURE])},)
    raw = Observation(text="<image>", images=(DOT,))
    assert normal_observation(raw) is raw


@pytest.mark.parametrize(
    ("messages", "images", "problem"),
    [
        ((user(TEXT, {"type": "image", "image": b"png"}),), (), "message 0, part 1 is no image"),
        ((user(TEXT), user({"type": "image"})), (), "message 1, part 0 is an image without content"),
        ((user({"type": "image_url", "image_url": {"url": "http://x/y.png"}}),), (), "nothing is downloaded"),
        ((user({"type": "image", "image": "../y.png"}),), (), "is the path '../y.png'"),
        (({"role": "user", "content": "?", "images": [DOT, 3]},), (), "message 0, image 1 is of type int"),
        (({"role": "assistant", "content": "?"},), (DOT,), "no message that they could belong to"),
        ((user(TEXT),), (b"",), "an image beside the messages is empty"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(messages: Any, images: Any, problem: str) -> None:
    with pytest.raises(ImageError, match=problem):
        picture_messages(messages, images)


def test_video_stays_as_it_is_for_the_renderer_to_refuse() -> None:
    messages = (user({"type": "video", "video": "y.mp4"}),)
    assert picture_messages(messages) is messages


def test_messages_with_pictures_are_compared_by_their_content() -> None:
    again = Picture.lazy(PICTURE.content_hash, 3, 2, png)
    assert user({"type": "image", "image": again}) == user({"type": "image", "image": PICTURE})
    assert user({"type": "image", "image": PICTURE}) != user(
        {"type": "image", "image": read_picture(DOT.resize((4, 4)))}
    )
