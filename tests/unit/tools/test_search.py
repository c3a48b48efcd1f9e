"""Indexes of passages, the tool `search`, and the commands `index` and `search`."""

from __future__ import annotations

import asyncio
import gzip
import importlib
import importlib.util
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1.errors import ConfigError, DataError, MissingExtraError, StorageError
from agent_r1.tools import BaseTool, CallOutcome, SearchTool, ToolInputError, run_call
from agent_r1.tools.base import ToolContext
from agent_r1.tools.builtin.search import BM25Index, DenseIndex, Hit, Passage, PassageFields, open_index, read_passages
from agent_r1.tools.builtin.search.answers import shorten
from agent_r1.tools.builtin.search.tool import INDEX_VARIABLE
from agent_r1.types import Task, ToolCall
from benchmarks.common.reference_search import best
from benchmarks.speed import search as search_benchmark
from tests.helpers.fuzzing import cases

ROOT = Path(__file__).parents[3]

CORPUS = [
    ("tea", "Tea", "Tea is a drink made of leaves."),
    ("coffee", "Coffee", "Coffee is a drink made of beans."),
    ("köln", "Köln", "Köln is a city on the Rhine. The Köln cathedral is tall."),
    ("bonn", "Bonn", "Bonn is a city on the Rhine, south of Köln."),
    ("kyoto", "京都", "京都は日本の都市。"),
    ("twin-1", "Twin", "The same words."),
    ("twin-2", "Twin", "The same words."),
    ("twin-3", "Twin", "The same words."),
]


def passages(rows: Iterable[tuple[str, str, str]] = CORPUS) -> list[Passage]:
    return [Passage(passage_id=number, title=title, text=text) for number, title, text in rows]


@pytest.fixture
def index(tmp_path: Path) -> BM25Index:
    return BM25Index.build(passages(), tmp_path / "index")


def found(index: BM25Index, query: str, k: int = 10) -> list[str]:
    [hits] = index.search([query], k)
    return [hit.passage.passage_id for hit in hits]


def write_rows(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# Ranking


def test_scores_are_those_of_the_formula(tmp_path: Path) -> None:
    rows = [("0", "", "red red tea"), ("1", "", "tea cup"), ("2", "", "blue cup plate saucer")]
    [[first, second]] = BM25Index.build(passages(rows), tmp_path / "index").search(["red tea"], 5)
    average = (3 + 2 + 4) / 3

    def weight(times: int, length: int, num_with_word: int) -> float:
        rarity = np.log(1 + (3 - num_with_word + 0.5) / (num_with_word + 0.5))
        return float(rarity * times / (times + 1.5 * (1 - 0.75 + 0.75 * length / average)))

    assert (first.passage.passage_id, second.passage.passage_id) == ("0", "1")
    assert first.score == pytest.approx(weight(2, 3, 1) + weight(1, 3, 2))
    assert second.score == pytest.approx(weight(1, 2, 2))


def test_more_shared_words_rank_higher_and_none_is_not_found(index: BM25Index) -> None:
    assert found(index, "drink leaves") == ["tea", "coffee"]
    assert found(index, "cathedral Köln") == ["köln", "bonn"]
    assert found(index, "volcano") == []


def test_the_title_is_searched_too(tmp_path: Path) -> None:
    index = BM25Index.build(passages([("a", "Volcano", "It is hot."), ("b", "", "It is cold.")]), tmp_path / "index")
    assert found(index, "volcano") == ["a"]


def test_equal_scores_keep_the_order_of_the_passages(index: BM25Index) -> None:
    assert found(index, "same words") == ["twin-1", "twin-2", "twin-3"]
    assert found(index, "same words", k=2) == ["twin-1", "twin-2"]


def test_fewer_results_are_the_first_of_more(index: BM25Index) -> None:
    everything = found(index, "city drink same")
    assert len(everything) == 7
    assert [found(index, "city drink same", k) for k in range(1, 8)] == [everything[:k] for k in range(1, 8)]


def test_a_ranking_without_passages_is_that_of_the_search(index: BM25Index) -> None:
    [hits] = index.search(["city drink same"], 5)
    numbers = {number: place for place, (number, _, _) in enumerate(CORPUS)}
    assert index.rank("city drink same", 5) == [(numbers[hit.passage.passage_id], hit.score) for hit in hits]


@pytest.mark.parametrize("query", ["", "   ", "?!", "the of and", "\x00", "\ud800"])
def test_query_without_a_word_finds_nothing(index: BM25Index, query: str) -> None:
    assert found(index, query) == []


def test_case_and_form_of_unicode_do_not_matter(index: BM25Index) -> None:
    queries = ["köln", "KÖLN", unicodedata.normalize("NFD", "Köln"), "ＫÖＬＮ"]
    assert [found(index, query) for query in queries] == [["köln", "bonn"]] * 4


def test_scripts_without_spaces_are_found_by_character(index: BM25Index) -> None:
    assert found(index, "日本の京都") == ["kyoto"]


def test_single_letters_and_digits_are_words(tmp_path: Path) -> None:
    rows = [("x", "", "Malcolm X spoke"), ("y", "", "Malcolm Y spoke"), ("7", "", "Apollo 7")]
    index = BM25Index.build(passages(rows), tmp_path / "index")
    assert found(index, "malcolm x")[0] == "x"
    assert found(index, "7") == ["7"]


def test_batch_is_the_same_as_one_by_one(index: BM25Index) -> None:
    queries = ["drink", "", "city on the Rhine", "same words", "drink"]
    assert index.search(queries, 3) == [index.search([query], 3)[0] for query in queries]
    assert index.search([], 3) == []


@settings(deadline=None, max_examples=cases(200))
@given(scores=st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), max_size=12), k=st.integers(1, 14))
def test_best_agrees_with_sorting_everything(scores: list[float], k: int) -> None:
    everything = sorted((place for place, score in enumerate(scores) if score > 0), key=lambda p: (-scores[p], p))
    assert best(np.array(scores, dtype=np.float32), k).tolist() == everything[:k]


# On disk


@pytest.mark.whole
def test_reloaded_index_gives_identical_results_also_in_another_process(index: BM25Index, tmp_path: Path) -> None:
    queries = ["drink", "city Köln", "same words", "京都"]
    before = index.search(queries, 5)
    again = open_index(tmp_path / "index")
    assert again.search(queries, 5) == before
    assert len(again) == len(index) == len(CORPUS)
    code = (
        "import sys, json; from agent_r1.tools.builtin.search import open_index; from pathlib import Path\n"
        "found = open_index(Path(sys.argv[1])).search(json.loads(sys.argv[2]), 5)\n"
        "print(json.dumps([[[h.passage.passage_id, h.score] for h in hits] for hits in found]))"
    )
    seen = python(code, str(tmp_path / "index"), json.dumps(queries), PYTHONHASHSEED="7")
    assert json.loads(seen.stdout) == [[[h.passage.passage_id, h.score] for h in hits] for hits in before]


def test_passages_come_back_as_they_were(tmp_path: Path) -> None:
    odd = [
        ("a", "line\nbreak", 'quote " and \\'),
        ("b", "", "\u2028 separator \x85 tea"),
        ("c", "emoji 🍵", "tea " * 1000),
    ]
    index = BM25Index.build(passages(odd), tmp_path / "index")
    kept = {hit.passage.passage_id: hit.passage for hit in index.search(["tea quote"], 5)[0]}
    assert kept == {passage.passage_id: passage for passage in passages(odd)}


def test_building_again_replaces_the_index(index: BM25Index, tmp_path: Path) -> None:
    BM25Index.build(passages([("only", "", "tea")]), tmp_path / "index")
    assert found(BM25Index.load(tmp_path / "index"), "tea") == ["only"]
    assert found(index, "drink") == ["tea", "coffee"], "an index in use goes on with what it had"
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_build_that_fails_leaves_the_old_index(index: BM25Index, tmp_path: Path) -> None:
    def breaking() -> Iterable[Passage]:
        yield from passages()
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="went away"):
        BM25Index.build(breaking(), tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert found(BM25Index.load(tmp_path / "index"), "drink") == ["tea", "coffee"]


@pytest.mark.whole
def test_killed_build_leaves_no_index_and_the_next_one_succeeds(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from agent_r1.tools.builtin.search import BM25Index, Passage\n"
        "def killed(stage, done):\n"
        "    if stage == 'scoring words': os.kill(os.getpid(), signal.SIGKILL)\n"
        "BM25Index.build([Passage(passage_id='1', title='', text='tea')], sys.argv[1], progress=killed)"
    )
    result = python(code, str(tmp_path / "index"), check=False)
    assert result.returncode == -signal.SIGKILL
    [partial] = [path.name for path in tmp_path.iterdir()]
    assert re.fullmatch(r"\.index\.\w+\.partial", partial)
    with pytest.raises(ConfigError, match="does not exist"):
        open_index(tmp_path / "index")
    BM25Index.build(passages(), tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_two_builds_of_one_index_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    def interrupted() -> Iterable[Passage]:
        yield from passages()
        BM25Index.build(passages([("other", "", "tea")]), tmp_path / "index")
        assert found(BM25Index.load(tmp_path / "index"), "tea") == ["other"]

    BM25Index.build(interrupted(), tmp_path / "index")
    assert found(BM25Index.load(tmp_path / "index"), "drink") == ["tea", "coffee"]
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_passages_that_cannot_be_read_are_not_called_an_index_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match=r"a\.jsonl\.gz is truncated, or not compressed"):
        BM25Index.build(read_passages([tmp_path / "a.jsonl.gz"]), tmp_path / "index")


def test_an_index_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/index cannot be written"):
        BM25Index.build(passages(), tmp_path / "file" / "index")


def test_a_folder_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="exists and is not a search index"):
        BM25Index.build(passages(), tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("rows", [[], [("a", "", "..."), ("b", "", "the")]])
def test_nothing_to_index_is_refused(tmp_path: Path, rows: list[tuple[str, str, str]]) -> None:
    with pytest.raises(DataError, match=r"no passages|has a word"):
        BM25Index.build(passages(rows), tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


def change_manifest(folder: Path, **changes: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **changes}))


def test_wrong_folders_say_what_is_wrong_and_how_to_build(index: BM25Index, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    (tmp_path / "empty").mkdir()
    assert message(tmp_path / "empty") == (
        f"there is no search index: {tmp_path / 'empty'} has no manifest.json. "
        f"Build it: agent-r1 index PASSAGES.jsonl --out {tmp_path / 'empty'}"
    )
    change_manifest(folder, kind="dense")
    with pytest.raises(ConfigError, match="it is of kind 'dense', not 'bm25'"):
        BM25Index.load(folder)
    change_manifest(folder, kind="magic")
    assert "kind 'magic'" in message(folder)
    change_manifest(folder, kind="bm25", format=99)
    assert "its format is 99, this version reads 1" in message(folder)
    change_manifest(folder, format=1)
    with (folder / "passages.jsonl").open("ab") as file:
        file.truncate(20)
    assert "passages.jsonl should have" in message(folder)
    (folder / "passages.jsonl").unlink()
    assert "found nothing" in message(folder)
    (folder / "manifest.json").write_text("{")
    assert "cannot be read" in message(folder)


def message(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        open_index(folder)
    return str(caught.value)


# Reading


def test_every_form_of_file_gives_the_same_passages(tmp_path: Path) -> None:
    rows = [{"id": 4, "title": "Tea", "text": "Köln"}, {"id": 5, "title": None, "text": "b"}]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows) + "\n"
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    expected = passages([("4", "Tea", "Köln"), ("5", "", "b")])
    for form in ("jsonl", "jsonl.gz", "jsonl.xz", "parquet"):
        assert list(read_passages([tmp_path / f"a.{form}"])) == expected


def test_fields_can_have_other_names_and_ids_are_counted_over_files(tmp_path: Path) -> None:
    first = write_rows(tmp_path / "1.jsonl", [{"body": "one"}, {"body": "two", "head": "Two"}])
    second = write_rows(tmp_path / "2.jsonl", [{"body": "three"}])
    fields = PassageFields(text="body", title="head")
    assert list(read_passages([first, second], fields)) == passages(
        [("0", "", "one"), ("1", "Two", "two"), ("2", "", "three")]
    )


def test_all_bad_rows_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "fine"}\n{"txt": "x"}\n[1]\n{oops\n{"text": 3}\n')
    with pytest.raises(DataError) as caught:
        list(read_passages([file]))
    assert "row 1: the field 'text' is missing. Did you mean 'txt'?" in str(caught.value)
    assert all(f"row {number}: " in str(caught.value) for number in (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.txt", b"x", "is neither .parquet nor .jsonl"),
        ("a.jsonl.gz", b"not gzip", "is truncated, or not compressed"),
        ("a.jsonl.xz", b"not xz", "is truncated, or not compressed"),
        ("a.jsonl", b"\xff\xfe", "not UTF-8 text"),
        ("a.parquet", b"not parquet", "is not a parquet file"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=problem):
        list(read_passages([tmp_path / name]))


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write_rows(tmp_path / "wiki.jsonl", [])
    with pytest.raises(DataError, match=r"Did you mean 'wiki\.jsonl'"):
        list(read_passages([tmp_path / "wik.jsonl"]))


# The tool


CONTEXT = ToolContext(task=Task(task_id="t", prompt=()))


def call(made: BaseTool, **arguments: Any) -> str:
    return asyncio.run(made.execute(arguments, context=CONTEXT))[0].text


def test_answer_is_numbered_with_title_and_text(index: BM25Index, tmp_path: Path) -> None:
    made = SearchTool(index=tmp_path / "index", k=2)
    assert call(made, query="drink leaves") == (
        "[1] Tea\nTea is a drink made of leaves.\n\n[2] Coffee\nCoffee is a drink made of beans."
    )
    assert call(made, query="volcano") == "No passage matches."
    assert call(made, query="drink leaves", k=1) == "[1] Tea\nTea is a drink made of leaves."


def test_several_queries_are_answered_in_their_order(index: BM25Index, tmp_path: Path) -> None:
    made = SearchTool(index=tmp_path / "index", k=1)
    response, reward, info = asyncio.run(made.execute({"query": ["leaves", "volcano"]}, context=CONTEXT))
    assert response.text == (
        'Results for "leaves":\n[1] Tea\nTea is a drink made of leaves.\n\nResults for "volcano":\nNo passage matches.'
    )
    assert (reward, info) == (None, {"passages": [["tea"], []]})


@pytest.mark.parametrize(("characters", "num_passages"), [(4000, 6), (1200, 6), (500, 4), (150, 2), (10, 2)])
def test_an_answer_keeps_to_its_length_titles_included(tmp_path: Path, characters: int, num_passages: int) -> None:
    """Two queries, three passages each: of 500 characters six would have next to nothing."""
    passages = [
        Passage(passage_id=f"{name}{n}", title=f"{name} {n}", text=f"{name} " + "word " * 100)
        for name in ("tea", "rice")
        for n in range(3)
    ]
    BM25Index.build(passages, tmp_path / "long")
    text = call(SearchTool(index=tmp_path / "long", k=3, characters=characters), query=["tea", "rice"])
    assert len(re.findall(r"^\[\d\] (?:tea|rice) \d$", text, re.MULTILINE)) == num_passages
    assert len(text) <= max(characters, 100)


@settings(deadline=None)
@given(text=st.text(max_size=40), characters=st.integers(1, 50))
def test_shortened_text_fits_and_is_a_beginning(text: str, characters: int) -> None:
    short = shorten(text, characters)
    assert len(short) <= characters
    assert short == text or text.startswith(short.removesuffix("…").rstrip())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "query: must be text or a list of texts"),
        ({"query": 3}, "query: must be text or a list of texts"),
        ({"query": ["a", 3]}, "query: must be text or a list of texts"),
        ({"query": " "}, "query: must not be empty"),
        ({"query": []}, "query: must not be empty"),
        ({"query": ["a"] * 9}, "query: at most 8 at once, found 9"),
        ({"query": "a", "k": 0}, "k: must be a whole number between 1 and 20"),
        ({"query": "a", "k": True}, "k: must be a whole number"),
        ({"query": "a", "k": "many", "top": 1}, "k: must be a whole number between 1 and 20; top: there is no such"),
    ],
)
def test_wrong_arguments_are_explained(
    index: BM25Index, tmp_path: Path, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ToolInputError, match=problem):
        call(SearchTool(index=tmp_path / "index"), **arguments)


def test_batch_of_calls_is_the_same_as_one_by_one_and_one_bad_call_spoils_no_other(
    index: BM25Index, tmp_path: Path
) -> None:
    made = SearchTool(index=tmp_path / "index", k=2)
    calls: list[dict[str, Any]] = [{"query": "drink"}, {"query": ["city", "same"], "k": 3}, {"query": "city", "k": 1}]

    async def run() -> None:
        one_by_one = [await made.execute(args, context=CONTEXT) for args in calls]
        first, bad, second, third = await made.batch_execute([calls[0], {"k": 1}, *calls[1:]])
        assert [first, second, third] == one_by_one
        assert isinstance(bad, ToolInputError)
        assert str(bad) == "wrong arguments for search: query: must be text or a list of texts"
        assert len(await made.batch_execute([{}])) == 1

    asyncio.run(run())


def test_searching_does_not_hold_up_the_event_loop(
    index: BM25Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    class Watched:
        def __len__(self) -> int:
            return 1

        def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            threads.append(threading.current_thread().name)
            return [[] for _ in queries]

    monkeypatch.setattr("agent_r1.tools.builtin.search.answers.shared_index", lambda folder: Watched())
    call(SearchTool(index=tmp_path / "index"), query="tea")
    assert threads != [threading.current_thread().name]


def test_calls_of_many_episodes_at_one_moment_are_one_search(
    index: BM25Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[int] = []

    class Watched:
        def __len__(self) -> int:
            return len(index)

        def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            searches.append(len(queries))
            return index.search(queries, k)

    monkeypatch.setattr("agent_r1.tools.builtin.search.answers.shared_index", lambda folder: Watched())
    entry = {"name": "search", "index": str(tmp_path / "index"), "k": 1}

    async def one(arguments: Mapping[str, Any]) -> CallOutcome:
        tools = {made.name: made for made in BaseTool.find(entry)}
        return await run_call(tools, ToolCall(name="search", arguments=arguments), CONTEXT)

    async def all_at_once() -> list[CallOutcome]:
        queries = [f"drink made of leaves {number}" for number in range(20)]
        return await asyncio.gather(one({"k": 1}), *(one({"query": query}) for query in queries))

    bad, *good = asyncio.run(all_at_once())
    assert searches == [20]
    assert {(found.status, found.response.text.splitlines()[0]) for found in good} == {("ok", "[1] Tea")}
    assert (bad.status, bad.response.text[:39]) == ("invalid", "Error: wrong arguments for search: quer")


def test_the_folder_comes_from_the_arguments_or_the_environment(
    index: BM25Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INDEX_VARIABLE, str(tmp_path / "index"))
    assert call(SearchTool(), query="leaves", k=1).startswith("[1] Tea")
    monkeypatch.delenv(INDEX_VARIABLE)
    entry = {"name": "search", "index": str(tmp_path / "index"), "k": 1}
    [made], [again] = BaseTool.find(entry), BaseTool.find(dict(entry))
    assert call(made, query="drink").count("[") == 1
    assert made is again, "calls of different episodes meet in one tool, else they could not be batched"


def test_missing_index_says_the_command_that_builds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INDEX_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=r"Build it: agent-r1 index PASSAGES\.jsonl --out FOLDER"):
        SearchTool()
    monkeypatch.setenv(INDEX_VARIABLE, str(tmp_path / "none"))
    command = re.escape(f"Build it: agent-r1 index PASSAGES.jsonl --out {tmp_path / 'none'}")
    with pytest.raises(ConfigError, match=command):
        SearchTool()


def test_index_that_is_built_anew_is_opened_anew(index: BM25Index, tmp_path: Path) -> None:
    made = SearchTool(index=tmp_path / "index")
    assert call(made, query="same words").startswith("[1] Twin")
    BM25Index.build(passages([("new", "New", "The same words.")]), tmp_path / "index")
    assert call(made, query="same words").startswith("[1] New")


def test_wrong_settings_of_the_tool_are_refused(index: BM25Index, tmp_path: Path) -> None:
    for settings_, problem in (({"k": 0}, "k=0"), ({"characters": 0}, "characters=0"), ({"top": 3}, "top")):
        with pytest.raises(ConfigError, match=problem):
            BaseTool.find({"name": "search", "index": str(tmp_path / "index"), **settings_})
    with pytest.raises(ConfigError, match="needs a 'name'"):
        BaseTool.find({"index": "x"})
    with pytest.raises(ConfigError, match="'calculate' takes no arguments"):
        BaseTool.find({"name": "calculate", "digits": 3})


def test_run_call_gives_the_model_the_passages(index: BM25Index, tmp_path: Path) -> None:
    made = SearchTool(index=tmp_path / "index", k=1)
    asked = ToolCall(name="search", arguments={"query": "beans"})
    outcome = asyncio.run(run_call({"search": made}, asked, CONTEXT))
    assert (outcome.status, outcome.response.text) == ("ok", "[1] Coffee\nCoffee is a drink made of beans.")


# Dense


class Letters:
    """Counts of a, b and c: as good an encoder as a test needs."""

    def encode(self, texts: list[str]) -> list[list[float]]:
        return [[float(text.count(letter)) for letter in "abc"] for text in texts]


def test_dense_index_ranks_by_angle_and_reloads(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    rows = [("0", "", "aaab"), ("1", "", "bbb"), ("2", "", "ab"), ("3", "", "ab")]
    index = DenseIndex.build(passages(rows), tmp_path / "index", model="letters", encoder=Letters())
    [hits, nothing] = index.search(["a", " "], 4)
    assert [hit.passage.passage_id for hit in hits] == ["0", "2", "3", "1"]
    assert hits[0].score == pytest.approx(3 / 10**0.5)
    assert nothing == []
    assert DenseIndex.load(tmp_path / "index", encoder=Letters()).search(["a", " "], 4) == [hits, []]


def test_dense_index_without_its_packages_names_the_extra(tmp_path: Path) -> None:
    if importlib.util.find_spec("faiss") is not None:
        pytest.skip("faiss is installed")
    with pytest.raises(MissingExtraError, match=r"pip install 'agent-r1\[dense\]'"):
        DenseIndex.build(passages(), tmp_path / "index", model="any")


# Commands


def python(code: str, *arguments: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, "-c", code, *arguments], check, variables)


def agent_r1(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, "-m", "agent_r1.cli", *arguments], check, {"COLUMNS": "200"})


def _run(command: list[str], check: bool, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not check or result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.mark.whole
def test_commands_build_and_search(tmp_path: Path) -> None:
    rows = [{"key": number, "head": title, "body": text} for number, title, text in CORPUS]
    file = write_rows(tmp_path / "wiki.jsonl", rows)
    names = ("--id-field", "key", "--title-field", "head", "--text-field", "body")
    built = agent_r1("index", str(file), "--out", str(tmp_path / "index"), *names)
    assert "8 passages" in built.stdout
    asked = agent_r1("search", str(tmp_path / "index"), "drink of leaves", "-k", "1")
    assert "Tea is a drink made of leaves." in asked.stdout
    assert "Coffee" not in asked.stdout
    missing = agent_r1("search", str(tmp_path / "none"), "tea", check=False)
    assert missing.returncode == 2
    assert "agent-r1 index PASSAGES.jsonl --out" in missing.stderr


@pytest.mark.whole
def test_importing_the_tools_loads_no_index_library() -> None:
    code = "import sys, agent_r1.tools; print([m for m in ('numpy', 'bm25s', 'faiss', 'mcp') if m in sys.modules])"
    assert python(code).stdout.strip() == "[]"


@pytest.mark.whole
def test_searching_does_not_start_jax_which_would_take_the_memory_of_the_gpu(index: BM25Index, tmp_path: Path) -> None:
    (tmp_path / "path" / "jax").mkdir(parents=True)
    (tmp_path / "path" / "jax" / "__init__.py").write_text("A_STAND_IN = True")
    (tmp_path / "path" / "jax" / "lax.py").write_text("raise SystemExit('jax was started')")
    code = (
        "from agent_r1.tools.builtin.search import BM25Index; import sys;"
        "BM25Index.load(sys.argv[1]).search(['tea'], 1);"
        "import bm25s, jax; assert jax.A_STAND_IN"
    )
    python(code, str(tmp_path / "index"), PYTHONPATH=os.pathsep.join([str(tmp_path / "path"), *sys.path]))


def test_benchmark_measures_a_small_corpus(tmp_path: Path) -> None:
    measured = search_benchmark.main(
        [
            str(write_rows(tmp_path / "a.jsonl", [{"title": title, "text": text} for _, title, text in CORPUS])),
            *("--num-queries", "64", "--askers", "16", "--repeats", "1", "--workers", "0"),
            *("--json", str(tmp_path / "figures.json")),
        ]
    )
    assert json.loads((tmp_path / "figures.json").read_text()) == measured
    assert (measured["passages"], measured["calls"], measured["same_as_reference"]) == (8, 64, True)
    names = [(row["searcher"], row["queries"]) for row in measured["rows"]]
    assert names == [(who, kind) for who in ("reference", "0 workers") for kind in ("distinct", "repeated")]
    assert all(0 < row["p50_ms"] <= row["p99_ms"] and row["queries_per_second"] > 0 for row in measured["rows"])


def test_a_tool_whose_library_is_missing_is_refused_when_it_is_made(
    index: BM25Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'agent-r1\[search\]'"):
        SearchTool(index=tmp_path / "index")
