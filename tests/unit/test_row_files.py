"""Rows of files: the same rows from every form, numbered, and files that cannot be read."""

from __future__ import annotations

import gzip
import lzma
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


def test_a_folder_is_no_data_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is a folder, not a data file; name the \.jsonl or \.parquet files in it"):
        iterate_rows(tmp_path)


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").touch()
    with pytest.raises(DataError, match=r"there is no data file .*Did you mean 'train\.jsonl'"):
        iterate_rows(tmp_path / "trian.jsonl")
