"""Read rows from JSONL files (plain, gzip or xz) and parquet files, one at a time."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from agent_r1.codec.strict_json import read_json
from agent_r1.errors import DataError, did_you_mean

COMPRESSED = {".gz": gzip.open, ".xz": lzma.open}
"""Suffixes of compressed files and what opens them."""
JSON_LINES = (".jsonl", ".ndjson", ".json")
"""Suffixes of files with one JSON value per line."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PARQUET_BATCH = 1024
_MAX_LINE_BYTES = 256 * 2**20
"""Longest line that is read. A compressed file of a few kilobytes can hold one that fills any memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRow:
    """One row of a file."""

    number: int
    """Counted from 0; blank lines do not count."""
    value: Any = None
    """What the row holds, usually an object; None when it is not JSON."""
    problem: str | None = None
    """Why the row is not JSON."""
    line: int | None = None
    """The line in the (decompressed) file, counted from 1; None for parquet."""


def iterate_rows(path: Path) -> Iterator[FileRow]:
    """The rows of one `.jsonl` (`.jsonl.gz`, `.jsonl.xz`) or `.parquet` file, in order.

    A line that is not JSON is a row with a `problem`, so that a caller can report all bad rows at once. A file that is
    missing, of another kind, truncated or damaged raises `DataError`.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder, not a data file; name the .jsonl or .parquet files in it")
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is a pipe or a device, and data are read more than once; write the rows to a file")
    if not path.is_file():
        nearby = [file.name for file in path.parent.glob("*") if file.is_file()] if path.parent.is_dir() else []
        raise DataError(f"there is no data file {path}. {did_you_mean(path.name, nearby)}")
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    if (path.with_suffix("") if path.suffix in COMPRESSED else path).suffix in JSON_LINES:
        return _json_rows(path)
    raise DataError(f"{path} is neither .parquet nor .jsonl (nor .jsonl.xz, .jsonl.gz); write its rows as one of them")


def _json_rows(path: Path) -> Iterator[FileRow]:
    number = 0
    try:
        with _open_bytes(path) as file:
            for line, data in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES + 1), b""), start=1):
                if len(data) > _MAX_LINE_BYTES:
                    raise DataError(
                        f"{path}, line {line} is longer than {_MAX_LINE_BYTES // 2**20} MB; write one row per line"
                    )
                text = (data.removeprefix(_BYTE_ORDER_MARK) if line == 1 else data).strip()
                if not text:
                    continue
                try:
                    row = FileRow(number=number, line=line, value=read_json(text))
                except ValueError as error:
                    if number == 0 and text in (b"[", b"{"):
                        raise DataError(
                            f"{path} is one JSON value over several lines; write one row per line, such as with: "
                            f"jq -c '{'.[]' if text == b'[' else '.'}' {path.name} > {path.stem}.jsonl"
                        ) from None
                    row = FileRow(number=number, line=line, problem=str(error))
                yield row
                number += 1
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is truncated, or not compressed as its name says: {error}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _open_bytes(path: Path) -> IO[bytes]:
    opener: Any = COMPRESSED.get(path.suffix, open)
    file: IO[bytes] = opener(path, "rb")
    return file


def _parquet_rows(path: Path) -> Iterator[FileRow]:
    import pyarrow.parquet

    number = 0
    try:
        # Batch by batch: the first rows of a large file do not need the others in memory.
        with pyarrow.parquet.ParquetFile(path) as file:
            repeated = [name for name, count in Counter(file.schema_arrow.names).items() if count > 1]
            if repeated:
                raise DataError(f"{path} has several columns of the name '{repeated[0]}'; keep one of them")
            for batch in file.iter_batches(batch_size=_PARQUET_BATCH):
                for value in batch.to_pylist():
                    yield FileRow(number=number, value=_without_nulls(value))
                    number += 1
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} is not a parquet file that can be read: {error}") from error
    except (UnicodeDecodeError, ValueError, OverflowError) as error:
        raise DataError(f"{path} has a column with values that Python cannot hold: {error}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _without_nulls(value: Any) -> Any:
    """Drop keys without a value: parquet gives every struct every key of its column."""
    if isinstance(value, dict):
        return {key: _without_nulls(entry) for key, entry in value.items() if entry is not None}
    return [_without_nulls(entry) for entry in value] if isinstance(value, list) else value
