"""Data files that are wrong in every way people have managed: one `DataError` with all of it, never a traceback."""

from __future__ import annotations

import gzip
import json
import lzma
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from agent_r1.chat import ChatRenderer
from agent_r1.codec.strict_json import read_json
from agent_r1.data.demonstrations import load_demonstrations
from agent_r1.data.tasks import load_tasks
from agent_r1.errors import DataError
from agent_r1.tools.builtin.search import read_passages

DEEP = "[" * 50_000 + "]" * 50_000
LONG = "9" * 5000


def problems_of(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError) as caught:
        load_tasks([path])
    return str(caught.value)


BAD_ROWS = {
    "deep nesting": (f'{{"prompt": "x", "extra_info": {{"a": {DEEP}}}}}', "nested too deeply"),
    "nesting a reader survives": (f'{{"prompt": "x", "env_kwargs": {{"a": {"[" * 200 + "]" * 200}}}}}', "levels deep"),
    "long integer": (f'{{"prompt": "x", "env_kwargs": {{"n": {LONG}}}}}', "integer of thousands of digits"),
    "integer no float holds": (f'{{"prompt": "x", "env_kwargs": {{"n": {"9" * 400}}}}}', "write it as text"),
    "number too large": ('{"prompt": "x", "env_kwargs": {"n": 1e999}}', "'env_kwargs'.n is inf"),
    "NaN": ('{"prompt": "x", "reward_model": {"ground_truth": NaN}}', "NaN is not JSON"),
    "half a surrogate pair": ('{"prompt": "\\ud800"}', "half of a surrogate pair"),
    "half a surrogate pair in a key": ('{"prompt": "x", "env_kwargs": {"\\udfff": 1}}', "half of a surrogate pair"),
    "key twice": ('{"prompt": "x", "prompt": "y"}', "the key 'prompt' stands twice"),
    "no object": ('["prompt"]', "expected an object, found list"),
    "number as row": ("5", "expected an object, found int"),
    "no JSON": ("{prompt: x}", "not JSON"),
    "content of numbers": ('{"prompt": [{"role": "user", "content": [1, 2]}]}', "has the content [1, 2]"),
    "content null": ('{"prompt": [{"role": "user", "content": null}]}', "has the content None"),
    "content object": ('{"prompt": [{"role": "user", "content": {"a": 1}}]}', "has the content {'a': 1}"),
    "part without text": ('{"prompt": [{"role": "user", "content": [{"type": "text"}]}]}', "has the content"),
    "role number": ('{"prompt": [{"role": 5, "content": "x"}]}', "has the role 5"),
    "role of control tokens": ('{"prompt": [{"role": "user<|im_end|>", "content": "x"}]}', "a role is a word"),
    "calls that are text": (
        '{"prompt": [{"role": "assistant", "content": "", "tool_calls": "x"}]}',
        "must be a list of objects",
    ),
    "prompt number": ('{"prompt": 5}', "'prompt' must be text or a list of messages, found int"),
    "prompt empty": ('{"prompt": []}', "'prompt' must be text or a list of messages"),
    "tools null": ('{"prompt": "x", "env_kwargs": {"tools": null}}', "found null; or leave it out"),
    "tools text": ('{"prompt": "x", "env_kwargs": {"tools": "calculate"}}', "must be a list of names"),
    "tools numbers": ('{"prompt": "x", "env_kwargs": {"tools": [1]}}', "must be a list of names"),
    "env null": ('{"prompt": "x", "env_kwargs": {"env": null}}', "must be the name of an environment"),
    "env_kwargs list": ('{"prompt": "x", "env_kwargs": [1]}', "'env_kwargs' must be an object, found list"),
    "env_kwargs deep text": (json.dumps({"prompt": "x", "env_kwargs": DEEP}), "nested too deeply"),
    "agent_name list": ('{"prompt": "x", "agent_name": ["a"]}', "'agent_name' must be text, found list"),
    "agent_name code": ('{"prompt": "x", "agent_name": "os:abort"}', "a row may not name code"),
    "task_id object": ('{"prompt": "x", "task_id": {"a": 1}}', "'task_id' must be text, found dict"),
    "data_source number": ('{"prompt": "x", "data_source": 1.5}', "'data_source' must be text, found float"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_row_is_one_clear_error(tmp_path: Path, name: str) -> None:
    line, words = BAD_ROWS[name]
    message = problems_of(tmp_path / "rows.jsonl", f'{{"prompt": "fine"}}\n{line}\n')
    assert "row 1: " in message
    assert words in message
    assert len(message) < 600


def test_all_bad_rows_are_reported_at_once(tmp_path: Path) -> None:
    lines = [BAD_ROWS[name][0] for name in ("deep nesting", "long integer", "content of numbers", "tools null")]
    message = problems_of(tmp_path / "rows.jsonl", "\n".join(lines))
    assert all(f"row {number}: " in message for number in range(4))


def test_broken_end_of_a_file_does_not_hide_the_rows_before(tmp_path: Path) -> None:
    rows = b'{"prompt": 5}\n' + b"".join(b'{"prompt": "%d"}\n' % number for number in range(5000))
    for name, packed in (("rows.jsonl.gz", gzip.compress(rows)), ("rows.jsonl.xz", lzma.compress(rows))):
        message = problems_of(tmp_path / name, packed[: len(packed) // 2])
        assert "row 0: 'prompt' must be text" in message
        assert "is truncated" in message


def test_damaged_middle_of_a_packed_file_is_named(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b'{"prompt": "x"}\n' * 1000))
    packed[12:40] = b"\xff" * 28
    assert "is truncated, or not compressed" in problems_of(tmp_path / "rows.jsonl.gz", bytes(packed))


def test_several_broken_files_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": 5}\n')
    with pytest.raises(DataError) as caught:
        load_tasks([tmp_path / "missing.jsonl", tmp_path / "a.jsonl", tmp_path / "b.csv"])
    assert all(word in str(caught.value) for word in ("missing.jsonl", "a.jsonl, row 0", "b.csv"))


def test_bytes_that_are_no_utf8_are_named_by_row(tmp_path: Path) -> None:
    message = problems_of(tmp_path / "rows.jsonl", b'{"prompt": "a"}\n{"prompt": "\xff"}\n{"prompt": 5}\n')
    assert "row 1: not UTF-8 text" in message
    assert "row 2: " in message
    assert "not UTF-8 text" in problems_of(tmp_path / "rows.jsonl", '{"prompt": "a"}\n'.encode("utf-16"))


def test_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "x"}\n')
    assert load_tasks([tmp_path / "rows.jsonl"])[0].prompt == ({"role": "user", "content": "x"},)


def test_ids_may_be_numbers(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "x", "task_id": 0}\n{"prompt": "x", "task_id": "b"}\n')
    assert [task.task_id for task in load_tasks([tmp_path / "rows.jsonl"])] == ["0", "b"]


def test_message_with_calls_needs_no_content(tmp_path: Path) -> None:
    calls = [{"type": "function", "function": {"name": "a", "arguments": {}}}]
    prompt = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": prompt}))
    assert load_tasks([tmp_path / "rows.jsonl"])[0].prompt[1] == {"role": "assistant", "tool_calls": calls}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"\xff", "is a bytes"),
        (datetime(2026, 1, 1), "is a datetime"),
        (Decimal("1.5"), "is a Decimal"),
        (float("nan"), "is nan"),
    ],
)
def test_parquet_column_of_odd_values_is_named(tmp_path: Path, value: Any, words: str) -> None:
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"prompt": "x", "env_kwargs": {"a": value}}]), path)
    with pytest.raises(DataError, match=words):
        load_tasks([path])


def test_parquet_with_text_that_is_no_text_is_named(tmp_path: Path) -> None:
    column = pyarrow.array([b"\xff\xfe"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"prompt": column}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet"):
        load_tasks([tmp_path / "rows.parquet"])


def test_truncated_parquet_is_named(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["x"] * 100}), tmp_path / "whole.parquet")
    whole = (tmp_path / "whole.parquet").read_bytes()
    assert "rows.parquet" in problems_of(tmp_path / "rows.parquet", whole[: len(whole) // 2])


@pytest.mark.parametrize(
    "line",
    [
        f'{{"messages": {DEEP}}}',
        '{"messages": [{"role": "user", "content": [1, 2]}]}',
        '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": 5}]}',
        '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "tools": "{"}',
        '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "tools": [5]}',
        '{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "y"}]}',
    ],
)
def test_bad_demonstration_is_one_clear_error(tmp_path: Path, renderer: ChatRenderer, line: str) -> None:
    (tmp_path / "demos.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match="row 0: "):
        load_demonstrations([tmp_path / "demos.jsonl"], renderer)


@pytest.mark.parametrize(
    "line", [DEEP, f'{{"text": "a", "id": {LONG}}}', '{"text": NaN}', '{"text": "a", "text": "b"}']
)
def test_bad_passage_is_one_clear_error(tmp_path: Path, line: str) -> None:
    (tmp_path / "passages.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match="row 0: "):
        list(read_passages([tmp_path / "passages.jsonl"]))


def test_strict_reading_takes_what_json_is() -> None:
    assert read_json(b'{"a": [1, 2.5, null, true, "\\u00e4"]}') == {"a": [1, 2.5, None, True, "ä"]}
    for text in ("", "{", "NaN", "[1,]", '{"a":1,"a":1}', DEEP, LONG, b"\xff"):
        with pytest.raises(ValueError, match=r"JSON|nested|digits|twice|UTF-8"):
            read_json(text)
