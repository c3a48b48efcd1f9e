"""The rows of BFCL v4, single turn, in two layouts.

* packed: `bfcl_v4_single_turn.jsonl` (also `.jsonl.xz`): id, category, messages, tools, ground_truth;
* official: `BFCL_v4_<category>.json` and `possible_answer/BFCL_v4_<category>.json` of the package `bfcl_eval`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_r1.data import DATA_VARIABLE, locate, read_raw
from agent_r1.errors import DataError

COMMIT = "6ea57973"
_ADDRESS = (
    f"https://raw.githubusercontent.com/ShishirPatil/gorilla/{COMMIT}/berkeley-function-call-leaderboard/bfcl_eval/data"
)
CATEGORIES = (
    *("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
)
WITHOUT_CALLS = ("irrelevance",)
"""Categories in which no function fits the request; they have no file of answers."""
_PACKED = ("bfcl_v4_single_turn.jsonl", "bfcl_v4_single_turn.jsonl.xz")


def bfcl_rows(folder: Path | None = None) -> list[dict[str, Any]]:
    """The rows, from `folder`, else from what AGENT_R1_DATA names, else downloaded."""
    parent = os.environ.get(DATA_VARIABLE)
    given = folder or (Path(parent).expanduser() / "bfcl" if parent else None)
    packed = [given / name for name in _PACKED if (given / name).is_file()] if given is not None else []
    if packed:
        return [_checked(row) for row in read_raw(packed[:1])]
    return [_checked(row) for row in official_rows(given)]


def official_rows(folder: Path | None) -> Iterator[dict[str, Any]]:
    """The official files as packed rows."""
    for category in CATEGORIES:
        name = f"BFCL_v4_{category}"
        asked = locate("bfcl", {name: [f"{_ADDRESS}/{name}.json"]}, folder)[name]
        answers: dict[str, Any] = {}
        if category not in WITHOUT_CALLS:
            own = None if folder is None else folder / "possible_answer"
            address = f"{_ADDRESS}/possible_answer/{name}.json"
            found = locate("bfcl/possible_answer", {name: [address]}, own)[name]
            answers = {row["id"]: row["ground_truth"] for row in read_raw(found)}
        for row in read_raw(asked):
            truth = [] if category in WITHOUT_CALLS else answers.get(row.get("id", ""))
            question = row.get("question") or [None]
            yield {
                "id": row.get("id"),
                "category": category,
                "messages": question[0],
                "tools": row.get("function"),
                "ground_truth": truth,
            }


def _checked(row: Mapping[str, Any]) -> dict[str, Any]:
    expected = {"id": str, "category": str, "messages": list, "tools": list, "ground_truth": list}
    wrong = [key for key, kind in expected.items() if not isinstance(row.get(key), kind)]
    wrong += [] if wrong or all(_is_call(call) for call in row["ground_truth"]) else ["ground_truth"]
    if wrong:
        raise DataError(f"row {row.get('id')!r} of BFCL has no usable {wrong[0]}; found {row.get(wrong[0])!r:.120}")
    return dict(row)


def _is_call(call: Any) -> bool:
    return isinstance(call, Mapping) and len(call) == 1 and all(isinstance(given, Mapping) for given in call.values())
