"""Strict JSON, records as JSON and back, and rows of JSONL and parquet files."""

from agent_r1.codec.checks import Check, WireError, each, flag, integer, mapping, number, optional, text
from agent_r1.codec.records import (
    image_from_json,
    image_to_json,
    messages_to_json,
    observation_from_json,
    observation_to_json,
)
from agent_r1.codec.row_files import COMPRESSED, FileRow, iterate_rows
from agent_r1.codec.strict_json import is_deeper_than, read_json, write_json, write_json_line

__all__ = [
    "COMPRESSED",
    "Check",
    "FileRow",
    "WireError",
    "each",
    "flag",
    "image_from_json",
    "image_to_json",
    "integer",
    "is_deeper_than",
    "iterate_rows",
    "mapping",
    "messages_to_json",
    "number",
    "observation_from_json",
    "observation_to_json",
    "optional",
    "read_json",
    "text",
    "write_json",
    "write_json_line",
]
