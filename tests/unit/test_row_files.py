"""Rows of files: the same rows from every form, numbered, and files that cannot be read."""

from __future__ import annotations

import gzip
import json
import lzma
import os
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from agent_r1.codec import FileRow, iterate_rows
from agent_r1.errors import DataError

ROWS = [{"text": "Köln", "meta": {"year": 1}}, {"text": "b", "meta": {"page": 2}}]
LINES = '{"text": "Köln", "meta": {"year": 1}}\n{"text": "b", "meta": {"page": 2}}\n'.encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", LINES),
        ("rows.ndjson", LINES),
        ("rows.jsonl.gz", gzip.compress(LINES, mtime=0)),
        ("rows.jsonl.xz", lzma.compress(LINES)),
    ],
)
def test_every_form_gives_the_same_rows(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert [row.value for row in iterate_rows(tmp_path / name)] == ROWS


def test_parquet_rows_lose_the_keys_that_only_other_rows_have(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    assert list(iterate_rows(tmp_path / "rows.parquet")) == [
        FileRow(number=0, value=ROWS[0]),
        FileRow(number=1, value=ROWS[1]),
    ]


def test_blank_lines_count_as_lines_and_not_as_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"\xef\xbb\xbf1\n\n  \n2\n")
    assert list(iterate_rows(tmp_path / "rows.jsonl")) == [
        FileRow(number=0, line=1, value=1),
        FileRow(number=1, line=4, value=2),
    ]


def test_a_line_that_is_not_json_is_a_row_with_a_problem(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("1\n{oops\n3\n")
    first, second, third = iterate_rows(tmp_path / "rows.jsonl")
    assert (first.problem, third.value, third.number) == (None, 3, 2)
    assert second.problem is not None
    assert second.problem.startswith("not JSON")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("rows.csv", b"x", "is neither .parquet nor .jsonl"),
        ("rows.jsonl.gz", b"not gzip", "is truncated, or not compressed as its name says"),
        ("rows.jsonl.gz", gzip.compress(LINES, mtime=0)[:30], "is truncated"),
        ("rows.jsonl.xz", b"not xz", "is truncated, or not compressed as its name says"),
        ("rows.parquet", b"not parquet", "is not a parquet file that can be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} {problem}"):
        list(iterate_rows(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "content"),
    [("rows.jsonl", b'{"text": "' + b"a" * 2000), ("rows.jsonl.gz", gzip.compress(b" " * 2000, mtime=0))],
)
def test_a_line_longer_than_the_limit_is_refused_before_it_is_read(
    tmp_path: Path, name: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_r1.codec.row_files._MAX_LINE_BYTES", 1000)
    (tmp_path / name).write_bytes(b"1\n" + content if name.endswith("l") else content)
    with pytest.raises(DataError, match=rf"{name}, line \d is longer than \d+ MB; write one row per line"):
        list(iterate_rows(tmp_path / name))


@pytest.mark.parametrize(("rows", "told"), [(ROWS, r"jq -c '\.\[\]' rows\.json"), (ROWS[0], r"jq -c '\.' rows\.json")])
def test_json_over_several_lines_says_how_to_make_rows_of_it(tmp_path: Path, rows: object, told: str) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(rows, indent=1))
    with pytest.raises(DataError, match=rf"one JSON value over several lines; .*{told}"):
        list(iterate_rows(tmp_path / "rows.json"))


def test_two_parquet_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet has several columns of the name 'text'"):
        list(iterate_rows(tmp_path / "rows.parquet"))


def test_a_pipe_is_no_data_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(DataError, match=r"rows\.jsonl is a pipe or a device, .*write the rows to a file"):
        iterate_rows(tmp_path / "rows.jsonl")


def test_a_folder_is_no_data_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is a folder, not a data file; name the \.jsonl or \.parquet files in it"):
        iterate_rows(tmp_path)


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").touch()
    with pytest.raises(DataError, match=r"there is no data file .*Did you mean 'train\.jsonl'"):
        iterate_rows(tmp_path / "trian.jsonl")
