"""Pictures between rollout workers and the process with the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agent_r1.engines import ScriptedEngine
from agent_r1.errors import ImageError
from agent_r1.images import Picture
from agent_r1.rollout.workers.connection import Connection
from agent_r1.rollout.workers.messages import EngineAnswer, EngineRequest, ToWorker
from agent_r1.rollout.workers.proxy_engine import SentPictures
from agent_r1.types import Observation, SamplingParams, TokenIds
from tests.helpers.seeing import drawn, part, seeing_renderer


def prompt_with(*pictures: Picture) -> TokenIds:
    observation = Observation(messages=({"role": "user", "content": [part(picture) for picture in pictures]},))
    return seeing_renderer().render(observation).token_ids


def test_a_picture_travels_with_the_first_prompt_that_has_it() -> None:
    sent, red, dark = SentPictures(), drawn(210), drawn(20)
    assert sent.new_in(prompt_with(red, red)) == (red,)
    assert sent.new_in(prompt_with(red, dark)) == (dark,)
    assert sent.new_in(prompt_with(dark, red)) == ()
    assert sent.new_in((1, 2, 3)) == ()


def test_a_picture_that_was_not_used_for_long_is_sent_again() -> None:
    red, dark, green = drawn(210), drawn(20), drawn(90)
    sent = SentPictures(max_bytes=len(red.png()) + len(dark.png()))
    assert sent.new_in(prompt_with(red, dark)) == (red, dark)
    assert sent.new_in(prompt_with(red)) == ()
    assert sent.new_in(prompt_with(green)) == (green,)
    assert sent.new_in(prompt_with(dark)) == (dark,)


class Handle:
    """Keeps what is sent to the worker."""

    def __init__(self) -> None:
        self.messages: list[ToWorker] = []

    def deliver(self, batch: int, messages: Sequence[ToWorker]) -> None:
        self.messages += messages


class Processor:
    """Notes which pictures were encoded, and refuses one."""

    def __init__(self, refused: Picture) -> None:
        self.refused, self.known, self.prepared = refused, list[Picture](), list[Picture]()

    def encode(self, picture: Picture) -> None:
        if picture == self.refused:
            raise ImageError("too large")
        self.known.append(picture)

    def is_prepared(self, picture: Picture) -> bool:
        return picture in self.prepared

    def prepare(self, picture: Picture) -> None:
        self.prepared.append(picture)


@pytest.mark.parametrize("is_refused", [False, True])
def test_pictures_are_known_before_the_next_request_is_read(is_refused: bool) -> None:
    async def main() -> tuple[Processor, list[Any]]:
        handle, processor = Handle(), Processor(drawn(20))
        connection = Connection(handle, ScriptedEngine([[7]]), lambda error: None, processor)  # type: ignore[arg-type]
        picture = drawn(20 if is_refused else 210)
        request = EngineRequest(number=3, sampling=SamplingParams(), prompt_ids=(1,), pictures=(picture,))
        connection.request(request)
        assert processor.known == ([] if is_refused else [picture])
        async with asyncio.timeout(5):
            while not handle.messages:
                await asyncio.sleep(0.005)
        return processor, handle.messages

    processor, [answer] = asyncio.run(main())
    assert isinstance(answer, EngineAnswer)
    assert processor.prepared == processor.known
    if is_refused:
        assert (answer.number, answer.is_refusal) == (3, True)
        assert "too large" in str(answer.error)
    else:
        assert answer.completion is not None
        assert answer.completion.token_ids == (7,)
