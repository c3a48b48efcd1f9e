"""Demonstrations tokenised in worker processes: the same rows, errors and images as in this process alone."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_r1.chat import ChatRenderer, HermesFormat
from agent_r1.data import DemonstrationWorkers, demonstration_workers, load_demonstrations
from agent_r1.data.demonstration_workers import OneTokenImages, pack, unpack
from agent_r1.data.demonstrations import CheckedDemonstration, RawDemonstration
from agent_r1.errors import AgentR1Error, DataError
from agent_r1.interrupts import RunInterrupted, stop_signals
from agent_r1.tools.workers.pool import WorkerPool
from recipes.quickstart.shop import demonstration, draw_basket


class FakeWorkers:
    """Calls in this process, or failures."""

    def __init__(self, failing: int | None = None, error: Exception | None = None) -> None:
        self.size, self.num_calls, self.is_closed = 2, 0, False
        self._failing, self._error = failing, error

    async def call(self, function: Callable[..., Any], *args: Any, timeout: float) -> Any:
        self.num_calls += 1
        if self.num_calls == self._failing and self._error is not None:
            raise self._error
        return function(*args)

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstration_workers, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(demonstration_workers, "NUM_COMPARED", 2)
    monkeypatch.setattr(demonstration_workers, "MAX_CHUNK", 3)


@pytest.fixture
def rows() -> list[Any]:
    rng = random.Random(7)
    return [demonstration(draw_basket(rng), rng) for _ in range(20)]


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def workers_of(workers: Any, warnings: list[str] | None = None, tool_format: str = "hermes") -> DemonstrationWorkers:
    return DemonstrationWorkers(
        workers=workers, tool_format=tool_format, warn=(warnings if warnings is not None else []).append
    )


def test_processes_give_the_rows_of_the_plain_loop_in_its_order(
    renderer: ChatRenderer, rows: list[Any], tmp_path: Path
) -> None:
    rows[4] = {"messages": [{"role": "user", "content": "<|pad|> ü 🙂"}, {"role": "assistant", "content": "6"}]}
    rows[5] = {**rows[4], "control_tokens": True}
    path, pool, shown, warnings = write(tmp_path / "rows.jsonl", rows), WorkerPool(2), list[int](), list[str]()

    def choose(number: int) -> list[int]:
        return [number - 1, 5, 4, *range(2, number - 1, 2), 5]

    def track(indices: Sequence[int]) -> Iterator[int]:
        for index in indices:
            yield index
            shown.append(index)

    alone = load_demonstrations([path], renderer, choose=choose)
    together = load_demonstrations([path], renderer, choose=choose, tracked=track, workers=workers_of(pool, warnings))
    assert together == alone
    assert alone[4] != alone[5]
    assert [index for index, made in enumerate(together) if made] == shown == sorted(set(choose(len(rows))))
    assert not warnings
    assert not pool.pids()


def test_errors_are_those_of_the_plain_loop(renderer: ChatRenderer, rows: list[Any], tmp_path: Path) -> None:
    rows[3] = "not json"
    rows[8] = {"messages": [{"role": "user", "content": "?"}]}
    rows[9] = {"messages": [{"role": "<|x|>", "content": "?"}, {"role": "assistant", "content": "6"}]}
    rows[10] = {"messages": [{"role": "of no template!", "content": "?"}, {"role": "assistant", "content": "6"}]}
    workers = FakeWorkers()
    for bad in ([9], [3], [3, 8, 9, 10]):
        path = write(tmp_path / "rows.jsonl", [row for i, row in enumerate(rows) if i in bad or i not in (3, 8, 9, 10)])
        with pytest.raises(DataError) as alone:
            load_demonstrations([path], renderer)
        with pytest.raises(DataError) as together:
            load_demonstrations([path], renderer, workers=workers_of(workers))
        assert str(together.value) == str(alone.value)
        assert str(alone.value).count("row ") == len(bad)
    assert workers.num_calls > 3


@pytest.mark.parametrize("error", [AgentR1Error("the worker process was killed"), BlockingIOError("no more processes")])
def test_what_dead_workers_leave_is_tokenised_here(
    renderer: ChatRenderer, rows: list[Any], tmp_path: Path, error: Exception
) -> None:
    path, workers, warnings = write(tmp_path / "rows.jsonl", rows), FakeWorkers(2, error), list[str]()
    together = load_demonstrations([path], renderer, workers=workers_of(workers, warnings))
    assert together == load_demonstrations([path], renderer)
    assert warnings == [f"demonstrations are tokenised by this process alone: {error}"]
    assert workers.is_closed


class OfARecipe(HermesFormat):
    """A format that no other process knows."""


def test_workers_start_only_where_they_write_the_same_and_save_seconds(
    renderer: ChatRenderer, rows: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, workers = write(tmp_path / "rows.jsonl", rows), FakeWorkers()
    alone = load_demonstrations([path], renderer)
    own = ChatRenderer(renderer.tokenizer)
    own.format = OfARecipe()
    assert load_demonstrations([path], own, workers=workers_of(workers)) == alone
    with monkeypatch.context() as patch:
        patch.setattr(demonstration_workers, "WORTH_SECONDS", 60.0)
        assert load_demonstrations([path], renderer, workers=workers_of(workers)) == alone
    with monkeypatch.context() as patch:
        patch.setattr(demonstration_workers, "pack", lambda *args, **named: ([(b"", b"")], []))
        assert load_demonstrations([path], renderer, workers=workers_of(workers)) == alone
    assert workers.num_calls == 0


def test_a_signal_ends_the_processes(renderer: ChatRenderer, rows: list[Any], tmp_path: Path) -> None:
    path, pool = write(tmp_path / "rows.jsonl", rows), WorkerPool(2)

    def interrupted(indices: Sequence[int]) -> Iterator[int]:
        for index in indices:
            yield index
            if index == 4:
                assert pool.pids()
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(RunInterrupted, match="SIGINT"), stop_signals():
        load_demonstrations([path], renderer, tracked=interrupted, workers=workers_of(pool))
    assert not pool.pids()


# Images


def picture_rows(folder: Path) -> list[Any]:
    from PIL import Image

    for number in range(4):
        Image.new("RGB", (40 + 8 * number, 30), (50 * number, 9, 9)).save(folder / f"{number}.png")
    asked = [
        {"role": "user", "content": "<image>Are <image> and <image> alike?"},
        {"role": "assistant", "content": "y"},
    ]
    then = [{"role": "user", "content": [{"type": "image", "image": "1.png"}]}, {"role": "assistant", "content": "no"}]
    text = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    several = {"messages": [*asked, *then], "images": ["0.png", "1.png", "0.png"]}
    return [several, {"messages": text}, {"messages": asked, "images": ["3.png", "2.png", "2.png"]}, several]


def test_images_become_their_own_tokens_and_are_known(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="pictures: pip install 'agent-r1[images]'")
    from agent_r1.images import image_store, is_image_id
    from tests.helpers.seeing import seeing_renderer

    renderer, pool = seeing_renderer(), WorkerPool(2)
    path = write(tmp_path / "rows.jsonl", picture_rows(tmp_path))
    together = load_demonstrations([path], renderer, workers=workers_of(pool))
    known = image_store()
    pixels = {
        (index, span.image.key): span.image.inputs["pixel_values"].sum()
        for index, [row] in enumerate(together)
        for span in known.spans(row.token_ids)
    }
    assert len({key for _, key in pixels}) == 4
    assert together == load_demonstrations([path], renderer)
    [first] = together[0]
    assert sum(map(is_image_id, first.token_ids)) > 4
    assert not any(is_image_id(first.token_ids[position]) for position in first.actions)


def test_an_image_beyond_a_limit_is_left_to_the_caller(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="pictures: pip install 'agent-r1[images]'")
    from tests.helpers.seeing import drawn, part, seeing_renderer

    seeing = seeing_renderer()
    assert seeing.processor is not None
    small = ChatRenderer(seeing.tokenizer, processor=OneTokenImages("<image>", seeing.processor.placeholder_id))  # type: ignore[arg-type]
    messages = [{"role": "user", "content": [part(drawn())]}, {"role": "assistant", "content": "red"}]
    row = RawDemonstration(where="row 0", content={"messages": messages}, folder=tmp_path)
    packed = pack(row, small, is_chosen=True)
    assert packed is not None
    assert unpack(packed, seeing) == CheckedDemonstration(
        messages=messages, tools=[], control_tokens=False
    ).tokenised(seeing)  # fmt: skip
    before, seeing.processor.max_pixels = seeing.processor.max_pixels, 10
    try:
        assert unpack(packed, seeing) is None
    finally:
        seeing.processor.max_pixels = before
