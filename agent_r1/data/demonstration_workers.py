"""Demonstrations that are checked and tokenised in worker processes: rendering a turn takes Python about a millisecond.

A worker imports neither `transformers` nor torch. It has the model's tokenizer without them, and no image processor: an
image is one token in what it returns, in whose place the caller puts the image's own tokens. Workers are used after
they would have returned the same for some of the rows, and where they save seconds. A row that a worker cannot do is
left to the caller, whose error is then the one to report.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import tempfile
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, cast

from agent_r1.chat import ChatRenderer, Tokenizer, portable_tokenizer
from agent_r1.data.demonstrations import CheckedDemonstration, DemonstrationRow, RawDemonstration, Tracked
from agent_r1.errors import AgentR1Error
from agent_r1.event_loop import callable_in_event_loop, run_cancelling
from agent_r1.images import FIRST_IMAGE_ID, ImageProcessor, Picture, image_token_ids, pictures_in
from agent_r1.types import TokenIds

NUM_COMPARED = 32
"""Rows that are tokenised in both ways, and timed, before workers are used."""
WORTH_SECONDS = 4.0
"""How long all rows must take in one process. Workers need about a second to start."""
CHUNK_SECONDS = 0.25
"""About how long a worker is busy with one call."""
MAX_CHUNK = 512
MAX_WORKERS = 16
"""More would wait for the caller, who reads the rows and puts the tokens together."""
CALL_TIMEOUT = 1800.0

PackedRow = tuple[bytes, bytes]
"""Token ids and positions of actions, as arrays of 64-bit numbers."""
PackedPicture = tuple[str, int, int, bytes]
"""Content hash, width, height and PNG."""
Packed = tuple[Sequence[PackedRow], Sequence[PackedPicture]]
"""A conversation as plain data; without rows if it was only checked."""


class Workers(Protocol):
    """Runs functions in other processes; `agent_r1.tools.workers.pool.WorkerPool` is one."""

    size: int

    async def call(self, function: Callable[..., Any], *args: Any, timeout: float) -> Any:
        """What `function(*args)` returns, plain data; an `AgentR1Error` when it raises or its process ends."""
        ...

    async def close(self) -> None:
        """End the processes."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RendererSetup:
    """What a worker makes its renderer of."""

    tokenizer: Tokenizer
    tool_format: str
    stop_ids: TokenIds
    placeholder: tuple[str, int] | None
    """The text and the id of the token that stands for an image; None for a model that reads text only."""

    @classmethod
    def of(cls, renderer: ChatRenderer, tool_format: str) -> RendererSetup | None:
        """The setup of an equal renderer; None when a worker could not make one."""
        tokenizer = portable_tokenizer(renderer, tool_format, ())
        # A format of a recipe is not known in a worker.
        if tokenizer is None or type(renderer.format).__module__.partition(".")[0] != "agent_r1":
            return None
        processor = renderer.processor
        placeholder = None if processor is None else (processor.placeholder, processor.placeholder_id)
        return cls(tokenizer=tokenizer, tool_format=tool_format, stop_ids=renderer.stop_ids, placeholder=placeholder)

    def make(self) -> ChatRenderer:
        """The renderer of a worker."""
        processor = None if self.placeholder is None else cast(ImageProcessor, OneTokenImages(*self.placeholder))
        return ChatRenderer(self.tokenizer, self.tool_format, stop_ids=self.stop_ids, processor=processor)


class OneTokenImages:
    """In place of an image processor: every image is one token, made from its content."""

    def __init__(self, placeholder: str, placeholder_id: int) -> None:
        self.placeholder, self.placeholder_id = placeholder, placeholder_id

    def encode(self, picture: Picture) -> Picture:
        """The picture itself: it is encoded in the driver."""
        return picture

    def prompt_ids(self, picture: Picture) -> TokenIds:
        """The one token that stands for the picture."""
        return (_stand_in(picture),)


@dataclass(frozen=True, kw_only=True, slots=True)
class DemonstrationWorkers:
    """Checks and tokenises demonstrations in worker processes: one call for every chunk of rows, in order, as many at a
    time as there are workers."""

    workers: Workers
    """Closed at the end; no process is started where they are not worth it."""
    tool_format: str
    """The name of the renderer's format."""
    warn: Callable[[str], None]
    """Gets a line when workers fail. The caller then tokenises what is missing."""

    def tokenise(
        self, rows: Sequence[RawDemonstration], chosen: Sequence[int], renderer: ChatRenderer, tracked: Tracked
    ) -> dict[int, list[DemonstrationRow]]:
        """By index, the tokens of chosen rows, and nothing for others that are in order. Rows that are missing have
        errors, or were too few to be worth a worker: the caller looks at them."""
        setup = RendererSetup.of(renderer, self.tool_format) if self.workers.size > 1 and chosen else None
        pickled = None if setup is None else _pickle_setup(setup)
        if setup is None or pickled is None:
            return {}
        tokenised, seconds_per_row = _compare(rows, chosen, renderer, setup.make())
        if seconds_per_row is None or seconds_per_row * len(chosen) < WORTH_SECONDS:
            return tokenised
        num_rows = max(1, min(MAX_CHUNK, int(CHUNK_SECONDS / seconds_per_row)))
        with tempfile.TemporaryDirectory(prefix="agent_r1_tokenise_") as folder:
            file = Path(folder) / "renderer.pickle"
            file.write_bytes(pickled)
            run = _Run(self, str(file), rows, frozenset(chosen), renderer, num_rows)
            run.tokenise(chosen, tracked)
        return tokenised | run.done


class _Run:
    """The calls of one file of demonstrations."""

    def __init__(
        self,
        owner: DemonstrationWorkers,
        setup_file: str,
        rows: Sequence[RawDemonstration],
        chosen: frozenset[int],
        renderer: ChatRenderer,
        num_rows: int,
    ) -> None:
        self.done: dict[int, list[DemonstrationRow]] = {}
        self._owner, self._setup_file, self._rows, self._chosen = owner, setup_file, rows, chosen
        self._renderer, self._num_rows = renderer, num_rows
        self._has_failed = False

    def tokenise(self, chosen: Sequence[int], tracked: Tracked) -> None:
        """Tokenise the chosen rows into `done`."""
        callable_in_event_loop(run_cancelling)(lambda: self._collect(chosen, tracked))

    async def _collect(self, chosen: Sequence[int], tracked: Tracked) -> None:
        results = self._results()
        try:
            last = -1
            for index in tracked(chosen):
                while last < index:
                    last = self._keep(*await anext(results))
            async for result in results:
                self._keep(*result)
        finally:
            await results.aclose()  # type: ignore[attr-defined]
            await self._owner.workers.close()

    def _keep(self, index: int, packed: Packed | None) -> int:
        conversation = None if packed is None else unpack(packed, self._renderer)
        if conversation is not None:
            self.done[index] = conversation
        return index

    async def _results(self) -> AsyncIterator[tuple[int, Packed | None]]:
        """What was made of every row, in order, with a few calls ahead of the one that is waited for."""
        calls: deque[tuple[range, asyncio.Task[Sequence[Packed | None]]]] = deque()
        chunks: Iterator[range] = (
            range(first, min(first + self._num_rows, len(self._rows)))
            for first in range(0, len(self._rows), self._num_rows)
        )
        try:
            while True:
                while len(calls) < 2 * self._owner.workers.size and (chunk := next(chunks, None)) is not None:
                    calls.append((chunk, asyncio.create_task(self._call(chunk))))
                if not calls:
                    return
                for index, packed in zip(calls[0][0], await calls[0][1], strict=True):
                    yield index, packed
                calls.popleft()
        finally:
            for _, call in calls:
                call.cancel()
            await asyncio.gather(*(call for _, call in calls), return_exceptions=True)

    async def _call(self, chunk: range) -> Sequence[Packed | None]:
        no_results: list[Packed | None] = [None] * len(chunk)
        if self._has_failed:
            return no_results
        rows = [(self._rows[index], index in self._chosen) for index in chunk]
        try:
            packed: Sequence[Packed | None] = await self._owner.workers.call(
                tokenise_chunk, self._setup_file, rows, timeout=CALL_TIMEOUT
            )
        except (AgentR1Error, OSError, TypeError) as error:  # OSError: no process can be started
            if not self._has_failed:
                self._has_failed = True
                self._owner.warn(f"demonstrations are tokenised by this process alone: {error}")
            return no_results
        return packed


def _compare(
    rows: Sequence[RawDemonstration], chosen: Sequence[int], renderer: ChatRenderer, other: ChatRenderer
) -> tuple[dict[int, list[DemonstrationRow]], float | None]:
    """Some of the chosen rows, and the seconds that one takes; None when `other` writes one of them otherwise."""
    tokenised: dict[int, list[DemonstrationRow]] = {}
    seconds = 0.0
    for index in chosen[:: -(-len(chosen) // NUM_COMPARED)]:
        start = time.perf_counter()
        try:
            tokenised[index] = rows[index].checked().tokenised(renderer)
        except ValueError:  # the caller reports it
            continue
        seconds += time.perf_counter() - start
        packed = pack(rows[index], other, is_chosen=True)
        if packed is None or unpack(packed, renderer) != tokenised[index]:
            return tokenised, None
    return tokenised, seconds / len(tokenised) if tokenised else None


def _pickle_setup(setup: RendererSetup) -> bytes | None:
    """The setup as it is sent; None where the tokenizer has parts in Python, which `tokenizers` does not send."""
    try:
        return pickle.dumps(setup, protocol=5)
    except Exception:  # noqa: BLE001 - `tokenizers` raises a plain Exception
        return None


def tokenise_chunk(setup_file: str, rows: Sequence[tuple[RawDemonstration, bool]]) -> list[Packed | None]:
    """Called in a worker: each row checked and, where its flag is set, tokenised; None for one that has an error."""
    # One text at a time: the threads that the tokenizer would start have nothing to do.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    renderer = _renderer(setup_file)
    return [pack(row, renderer, is_chosen=is_chosen) for row, is_chosen in rows]


@cache
def _renderer(setup_file: str) -> ChatRenderer:
    setup: RendererSetup = pickle.loads(Path(setup_file).read_bytes())
    return setup.make()


def pack(row: RawDemonstration, renderer: ChatRenderer, *, is_chosen: bool) -> Packed | None:
    """A row as plain data; None for one that has an error."""
    try:
        demonstration = row.checked()
        tokenised = demonstration.tokenised(renderer) if is_chosen else []
    except Exception:  # noqa: BLE001 - the caller meets the same error, and reports it
        return None
    pictures = _pictures(demonstration) if tokenised and renderer.sees_images else ()
    return [(array("q", one.token_ids).tobytes(), array("q", one.actions).tobytes()) for one in tokenised], pictures


def _pictures(demonstration: CheckedDemonstration) -> list[PackedPicture]:
    distinct = dict.fromkeys(pictures_in(demonstration.messages))
    return [(picture.content_hash, picture.width, picture.height, picture.png()) for picture in distinct]


def unpack(packed: Packed, renderer: ChatRenderer) -> list[DemonstrationRow] | None:
    """The rows of a conversation, its images known to the renderer's processor; None when that refuses one."""
    rows, packed_pictures = packed
    pictures = {}
    for content_hash, width, height, png in packed_pictures:
        picture = Picture(content_hash=content_hash, width=width, height=height, png=png)
        pictures[_stand_in(picture)] = picture
    try:
        return [_unpack_row(*row, pictures, renderer) for row in rows]
    except ValueError:  # an image beyond a limit
        return None


def _unpack_row(
    ids: bytes, positions: bytes, pictures: Mapping[int, Picture], renderer: ChatRenderer
) -> DemonstrationRow:
    token_ids, actions = tuple(array("q", ids)), tuple(array("q", positions))
    if not pictures:
        return DemonstrationRow(token_ids=token_ids, actions=actions)
    assert renderer.processor is not None
    places = [place for place, token in enumerate(token_ids) if token >= FIRST_IMAGE_ID]
    images = [renderer.processor.prompt_ids(renderer.processor.encode(pictures[token_ids[place]])) for place in places]
    expanded, start = list[int](), 0
    for place, image in zip(places, images, strict=True):
        expanded += token_ids[start:place]
        expanded += image
        start = place + 1
    # An action moves by what the images before it are longer than one token.
    moved_by = list(accumulate((len(image) - 1 for image in images), initial=0))
    return DemonstrationRow(
        token_ids=(*expanded, *token_ids[start:]),
        actions=tuple(position + moved_by[bisect_left(places, position)] for position in actions),
    )


def _stand_in(picture: Picture) -> int:
    """The one token that an image is in a worker."""
    return image_token_ids(picture.content_hash, 1)[0]
