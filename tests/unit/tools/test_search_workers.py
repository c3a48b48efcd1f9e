"""Search under load: ranking equal to the reference, worker processes that die, equal requests, the cache."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1.errors import ConfigError
from agent_r1.tools import BaseTool, SearchTool, ToolRunner, cores
from agent_r1.tools.base import ToolContext
from agent_r1.tools.builtin.search import BM25Index, Passage, answers, open_index, postings, searcher
from agent_r1.tools.builtin.search.answers import SearchAnswer, SearchRequest, index_version
from agent_r1.tools.builtin.search.cache import AnswerCache, SearchKey
from agent_r1.tools.builtin.search.searcher import Searcher, close_searchers, searcher_of_loop
from agent_r1.types import Task, ToolCall
from benchmarks.common.reference_search import ReferenceIndex, ReferenceTool
from tests.helpers.fuzzing import cases

CONTEXT = ToolContext(task=Task(task_id="t", prompt=()))
WORDS = ("tea", "cup", "red", "köln", "rhine", "x", "京")


def build(texts: Sequence[str], folder: Path) -> Path:
    BM25Index.build([Passage(passage_id=str(n), title="", text=text) for n, text in enumerate(texts)], folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build(
        [f"{first} {second} passage {n % 5}" for n, first in enumerate(WORDS) for second in WORDS], tmp_path / "i"
    )


def request(query: str, k: int = 3) -> SearchRequest:
    return SearchRequest((query,), k, 4000)


def finish(work: Awaitable[Any]) -> Any:
    """The result of a coroutine; its loop's workers end with it."""

    async def run() -> Any:
        try:
            return await asyncio.wait_for(work, 60)
        finally:
            await close_searchers()

    return asyncio.run(run())


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


# Ranking


@pytest.mark.whole
@settings(deadline=None, max_examples=cases(40))
@given(
    texts=st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join), min_size=1, max_size=25),
    queries=st.lists(st.lists(st.sampled_from((*WORDS, "volcano")), max_size=9).map(" ".join), min_size=1, max_size=6),
    k=st.integers(1, 30),
)
def test_passages_order_ties_and_scores_are_those_of_the_reference(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], queries: list[str], k: int
) -> None:
    folder = build(texts, tmp_path_factory.mktemp("index") / "i")
    assert open_index(folder).search(queries, k) == ReferenceIndex(folder).search(queries, k)


def test_few_postings_among_many_passages_rank_as_the_reference_does(tmp_path: Path) -> None:
    folder = build(
        [f"filler{n}" + " rare" * (n % 400 == 7) + " twin" * (n % 300 < 2) for n in range(1500)], tmp_path / "i"
    )
    queries = ["rare", "twin rare", "twin", "filler7 twin rare", "filler9", "rare rare twin"]
    for k in (1, 3, 20):
        assert open_index(folder).search(queries, k) == ReferenceIndex(folder).search(queries, k)


HOSTILE = [
    "",
    " ",
    "\x00",
    "tea\x00cup",
    "\ud800",
    "tea \udfff cup",
    ("x" * 1000 + " tea cup ") * 1000,
    "🍵" * 1000,
    "tea" * 100_000,
    "\n\t",
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_queries_are_answered_as_by_the_reference(folder: Path, number: int) -> None:
    query = HOSTILE[number]
    assert open_index(folder).search([query], 5) == ReferenceIndex(folder).search([query], 5)


def test_threads_that_rank_at_once_do_not_disturb_each_other(folder: Path) -> None:
    index, reference = open_index(folder), ReferenceIndex(folder)
    found: dict[int, Any] = {}

    def search(number: int) -> None:
        found[number] = [index.search([WORDS[number], "tea cup red"], 4) for _ in range(50)]

    threads = [threading.Thread(target=search, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert found[number] == [reference.search([WORDS[number], "tea cup red"], 4)] * 50


def test_a_long_query_is_added_up_in_pieces_with_the_same_result(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = [" ".join(WORDS) * 3, "tea", "passage tea passage cup"]
    many = build([f"filler{n}" + " rare twin" * (n % 100 == 7) for n in range(2000)], tmp_path / "many")
    monkeypatch.setattr(postings, "_MAX_CHUNK", 16)
    assert open_index(folder).search(queries, 7) == ReferenceIndex(folder).search(queries, 7)
    assert open_index(many).search(["rare twin"], 7) == ReferenceIndex(many).search(["rare twin"], 7)


# Worker processes


async def with_workers(folder: Path, count: int) -> Searcher:
    """A searcher whose workers have started."""
    searching = searcher_of_loop(count)
    await searching.answer(folder, [request("start")])
    await searching.wait_until_started()
    assert len(searching.pids()) == count
    return searching


def expected(folder: Path, queries: Sequence[str]) -> list[SearchAnswer]:
    return answers.answer_requests(str(folder), [request(query) for query in queries])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.whole
def test_workers_that_are_killed_are_replaced_no_call_is_lost_and_closing_leaves_no_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = [f"{first} {second} {third}" for first in WORDS for second in WORDS for third in WORDS[:4]]
    calls = [ToolCall(name="search", arguments={"query": query}) for query in queries]

    async def run() -> None:
        tool, reference = SearchTool(folder, workers=2), ReferenceTool(folder, k=3, characters=4000)
        async with ToolRunner() as runner:
            searching = await with_workers(folder, 2)
            first = searching.pids()
            for pid in first:  # so that they die with a batch in hand
                os.kill(pid, signal.SIGSTOP)
            asked = [asyncio.create_task(runner.call({"search": tool}, call, CONTEXT)) for call in calls]
            await until(lambda: searching._num_asked == 2)
            for pid in first:
                os.kill(pid, signal.SIGKILL)
            outcomes = await asyncio.gather(*asked)
            expected_results = await reference.batch_execute([call.arguments for call in calls])
            assert [outcome.response.text for outcome in outcomes] == [one.text for one, _, _ in expected_results]
            assert {outcome.status for outcome in outcomes} == {"ok"}
            second = searching.pids()
            assert len(second) == 2
            assert not set(first) & set(second)
            monkeypatch.delattr(Searcher, "_run_here")
            answer = await searching.answer(folder, [request("after the deaths")])
            assert answer == expected(folder, ["after the deaths"]), "a worker answers, not a thread"
        await until(lambda: not any(map(is_alive, [*first, *second])))

    finish(run())


@pytest.mark.whole
def test_a_worker_that_hangs_is_killed_and_its_queries_are_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        searching = await with_workers(folder, 1)
        [hanging] = searching.pids()
        os.kill(hanging, signal.SIGSTOP)
        monkeypatch.setattr(searcher, "WORKER_SECONDS", 0.2)
        assert await searching.answer(folder, [request("tea")]) == expected(folder, ["tea"])
        await until(lambda: not is_alive(hanging))

    finish(run())


@pytest.mark.whole
def test_an_index_that_is_rebuilt_is_opened_again_and_one_that_vanishes_is_named_although_workers_search(
    folder: Path,
) -> None:
    async def run() -> None:
        searching = await with_workers(folder, 1)
        await searching.answer(folder, [request("tea")])
        version = index_version(folder)
        await until(lambda: time.time_ns() > version + 20_000_000)  # file systems count time in ticks
        build(["tea alone"], folder)
        [answer] = await searching.answer(folder, [request("tea")])
        assert answer.text == "[1] 0\ntea alone"
        manifest = (folder / "manifest.json").read_text()
        (folder / "manifest.json").unlink()
        with pytest.raises(ConfigError, match="there is no search index"):
            await searching.answer(folder, [request("tea")])
        (folder / "passages.jsonl").unlink()
        (folder / "manifest.json").write_text(manifest)
        with pytest.raises(ConfigError, match=r"passages\.jsonl should have"):
            await searching.answer(folder, [request("tea")])

    finish(run())


def test_workers_start_only_when_searches_keep_threads_busy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(Searcher, "_start_workers", lambda self, name: started.append(name))

    async def run() -> None:
        searching = Searcher(None)
        for number in range(20):
            await searching.answer(folder, [request(f"tea {number}")])
        assert started == []
        searching._seconds_in_threads = 1.0
        await searching.answer(folder, [request("cup")])
        assert started == [str(folder)]
        none = Searcher(0)
        none._seconds_in_threads = 1.0
        await none.answer(folder, [request("cup")])
        assert len(started) == 1

    finish(run())


def test_workers_that_cannot_start_are_reported_once_and_threads_search(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pool: Any) -> Any:
        raise OSError("no more processes")

    monkeypatch.setattr("agent_r1.tools.workers.pool.WorkerPool._start", refuse)

    async def run() -> None:
        searching = Searcher(2)
        for query in ("tea", "cup", "red"):
            assert await searching.answer(folder, [request(query)]) == expected(folder, [query])
            await searching.wait_until_started()

    with pytest.warns(UserWarning, match=r"search has no worker processes .*no more processes") as warned:
        finish(run())
    assert len(warned) == 1


def test_a_number_of_workers_that_makes_no_sense_is_refused(folder: Path) -> None:
    for workers in (-1, 1000, 1.5, "many"):
        with pytest.raises(ConfigError, match="workers="):
            BaseTool.find({"name": "search", "index": str(folder), "workers": workers})


def test_default_workers_are_the_cores_that_may_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    quota = tmp_path / "cpu.max"
    counts = {}
    for text in ("max 100000", "150000 100000", "900000 100000", "10000 100000", "nonsense", ""):
        quota.write_text(text)
        counts[text] = cores.num_cores(quota)
    assert list(counts.values()) == [6, 2, 6, 1, 6, 6]
    assert cores.num_cores(tmp_path / "none") == 6
    monkeypatch.setattr(cores, "num_cores", lambda: 64)
    assert searcher.default_workers() == 8
    for rollout_workers, expected in (("16", 4), ("48", 0), ("100", 0)):
        monkeypatch.setenv(cores.ROLLOUT_WORKERS, rollout_workers)
        assert searcher.default_workers() == expected


# Equal requests


class Slow:
    """Stands in for `answer_requests`: notes what is searched for, and waits."""

    def __init__(self) -> None:
        self.searched: list[str] = []
        self.may_answer = threading.Event()
        self.problems: list[Exception] = []

    def __call__(self, folder: str, requests: Sequence[SearchRequest]) -> list[SearchAnswer]:
        self.searched += [one.queries[0] for one in requests]
        assert self.may_answer.wait(30)
        if self.problems:
            raise self.problems.pop()
        return [SearchAnswer(f"about {one.queries[0]}", [[]]) for one in requests]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    made = Slow()
    monkeypatch.setattr(searcher, "answer_requests", made)
    return made


def test_equal_requests_are_searched_for_once_also_while_the_first_is_under_way(folder: Path, slow: Slow) -> None:
    async def run() -> None:
        searching = Searcher(0)
        first = asyncio.create_task(searching.answer(folder, [request("tea"), request("cup"), request("tea")]))
        await until(lambda: slow.searched)
        second = asyncio.create_task(searching.answer(folder, [request("tea")]))
        third = asyncio.create_task(searching.answer(folder, [request("red"), request("cup")]))
        await asyncio.sleep(0)
        slow.may_answer.set()
        assert [answer.text for answer in await first] == ["about tea", "about cup", "about tea"]
        assert [answer.text for answer in await second] == ["about tea"]
        assert [answer.text for answer in await third] == ["about red", "about cup"]
        assert (await searching.answer(folder, [request("tea")]))[0].text == "about tea"
        assert sorted(slow.searched) == ["cup", "red", "tea"]
        await searching.answer(folder, [request("tea", k=4)])
        assert len(slow.searched) == 4

    finish(run())


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_a_search_that_ends_without_an_answer_takes_no_other_with_it(folder: Path, slow: Slow, how: str) -> None:
    async def run() -> None:
        searching = Searcher(0)
        first = asyncio.create_task(searching.answer(folder, [request("tea")]))
        await until(lambda: slow.searched)
        second = asyncio.create_task(searching.answer(folder, [request("tea")]))
        await asyncio.sleep(0)
        if how == "cancelled":
            first.cancel()
        else:
            slow.problems.append(ValueError("broken"))
        slow.may_answer.set()
        with pytest.raises((asyncio.CancelledError, ValueError)):
            await first
        assert (await second)[0].text == "about tea"
        assert slow.searched == ["tea", "tea"]

    finish(run())


def test_the_cache_forgets_what_was_used_least_recently_and_never_grows_past_its_room() -> None:
    cache = AnswerCache(max_characters=20_000)
    keys = [SearchKey(Path("i"), 1, request(f"query {number}")) for number in range(100)]
    for key in keys:
        cache.keep(key, SearchAnswer("x" * 400, [[]]))
        assert cache.get(keys[0]) is not None
    assert 15 <= len(cache) <= 25
    assert cache.get(keys[1]) is None
    assert cache.get(keys[-1]) is not None
    large = SearchKey(Path("i"), 1, request("q" * 10_000))
    cache.keep(large, SearchAnswer("x", [[]]))
    assert cache.get(large) is None


def test_an_answer_that_is_changed_by_its_reader_is_not_changed_for_others(folder: Path) -> None:
    async def run() -> None:
        tool = SearchTool(folder, workers=0)
        _, _, info = await tool.execute({"query": "tea"})
        info["passages"][0].clear()
        _, _, again = await tool.execute({"query": "tea"})
        assert len(again["passages"][0]) == 3

    finish(run())
