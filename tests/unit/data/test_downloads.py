"""The public files of recipes: found in a folder, or fetched once from a real server."""

from __future__ import annotations

import gzip
import json
import lzma
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent_r1.data.downloads import download, find_files, locate, read_raw
from agent_r1.errors import DataError
from agent_r1.paths import cache_dir

ROWS = [{"question": "2 + 2?", "answer": "#### 4"}, {"question": "é?", "answer": "#### 5"}]
TEXT = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


class Server(ThreadingHTTPServer):
    """Gives `/train.jsonl` whole, `/cut.jsonl` half, and nothing else; remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.asked: list[str] = []

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append(self.path)
        body = TEXT.encode()
        if self.path not in ("/train.jsonl", "/cut.jsonl"):
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.path == "/train.jsonl" else body[:10])

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_R1_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AGENT_R1_DATA", raising=False)


def write(folder: Path, name: str) -> Path:
    """ROWS in the form that a file's name says."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), file)
    else:
        packed = {".xz": lzma.compress, ".gz": gzip.compress}.get(file.suffix, bytes)
        file.write_bytes(packed(TEXT.encode()))
    return file


# --- files in a folder -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["train.jsonl", "train.jsonl.xz", "train.jsonl.gz", "train.parquet", "train-00000-of-00001.parquet"]
)
def test_rows_are_read_in_every_form_people_have_them_in(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / "mine", name)
    found = locate("gsm8k", {"train": ["http://nowhere.invalid/train.jsonl"]}, tmp_path / "mine")
    assert found == {"train": [file]}
    assert list(read_raw(found["train"])) == ROWS


def test_all_parts_of_a_file_are_found_in_order(tmp_path: Path) -> None:
    second, first = (write(tmp_path, f"train-0000{n}-of-00002.parquet") for n in (1, 0))
    assert find_files(tmp_path, "train") == [first, second]
    assert len(list(read_raw([first, second]))) == 4


def test_the_variable_names_a_folder_with_a_folder_for_each_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "data" / "gsm8k", "test.jsonl.xz")
    monkeypatch.setenv("AGENT_R1_DATA", str(tmp_path / "data"))
    assert locate("gsm8k", {"test": []}) == {"test": [file]}


def test_a_folder_given_by_hand_comes_before_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "mine", "test.jsonl")
    monkeypatch.setenv("AGENT_R1_DATA", str(tmp_path / "not_there"))
    assert locate("gsm8k", {"test": []}, tmp_path / "mine") == {"test": [file]}


def test_a_variable_without_the_task_says_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hotpotqa").mkdir()
    monkeypatch.setenv("AGENT_R1_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"has no folder 'gsm8k'\. Found: hotpotqa\. .* unset AGENT_R1_DATA"):
        locate("gsm8k", {"test": []})


def test_a_folder_without_the_file_says_what_is_there(tmp_path: Path) -> None:
    write(tmp_path, "train.csv.gz")
    with pytest.raises(DataError, match=r"has none of train\.jsonl, .*\. Found: train\.csv\.gz"):
        find_files(tmp_path, "train")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no folder .*elsewhere"):
        find_files(tmp_path / "elsewhere", "train")


@pytest.mark.parametrize(
    ("line", "words"), [("[1]", "expected an object, found list"), ("{", r"not JSON \(Expecting property name")]
)
def test_a_row_that_is_none_is_named_by_its_number(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "train.jsonl").write_text(TEXT + line + "\n")
    with pytest.raises(DataError, match=rf"train\.jsonl, row 2: {words}"):
        list(read_raw([tmp_path / "train.jsonl"]))


@pytest.mark.parametrize("suffix", [".xz", ".gz"])
def test_a_packed_file_that_was_cut_is_an_error(tmp_path: Path, suffix: str) -> None:
    file = write(tmp_path, f"train.jsonl{suffix}")
    file.write_bytes(file.read_bytes()[:-12])
    with pytest.raises(DataError, match="is truncated"):
        list(read_raw([file]))


# --- files from a server ---------------------------------------------------------------------------------------------


def test_a_file_is_fetched_once_and_kept(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = server.address("/train.jsonl")
    [file] = locate("gsm8k", {"train": [address]})["train"]
    assert list(read_raw([file])) == ROWS
    assert f"downloading {address}" in capsys.readouterr().err
    assert locate("gsm8k", {"train": [address]}) == {"train": [file]}
    assert server.asked == ["/train.jsonl"]
    assert file.is_relative_to(cache_dir("data"))
    assert cache_dir("data") == tmp_path / "cache" / "data"


def test_files_of_one_name_from_two_places_do_not_meet(server: Server) -> None:
    address = server.address("/train.jsonl")
    found = locate("gsm8k", {"train": [address, address], "test": [address]})
    assert len({file for files in found.values() for file in files}) == 3


@pytest.mark.parametrize(
    ("path", "reason"), [("/gone.jsonl", "HTTP Error 404"), ("/cut.jsonl", r"the response ended after 10 of \d+ bytes")]
)
def test_what_cannot_be_fetched_leaves_nothing_and_says_the_other_ways(server: Server, path: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        locate("gsm8k", {"train": [server.address(path)]})
    assert "--local_dataset_path FOLDER" in str(caught.value)
    assert "AGENT_R1_DATA=FOLDER" in str(caught.value)
    assert not [file for file in cache_dir("data").rglob("*") if file.is_file()]


def test_without_a_server_the_other_ways_are_said() -> None:
    with Server() as gone:
        address = gone.address("/train.jsonl")
    with pytest.raises(DataError, match=r"train of gsm8k could not be downloaded .* AGENT_R1_DATA=FOLDER"):
        locate("gsm8k", {"train": [address]})


def test_a_broken_download_leaves_the_file_that_was_there(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text("whole")
    with pytest.raises(OSError, match="ended after 10"):
        download(server.address("/cut.jsonl"), file)
    assert file.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [file]
