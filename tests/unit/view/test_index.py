"""The index of trajectories: what is in it, how it follows the files, and that nothing in a run folder misleads it."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1.errors import StorageError
from agent_r1.types import StopReason
from agent_r1.view import INDEX_NAME, TrajectoryIndex
from agent_r1.view.index import scan
from agent_r1.view.index.query import rows_of
from agent_r1.view.index.scan import decode, decode_short, entry_of, lines_of, shorten
from tests.helpers.viewed_runs import HOSTILE, WrittenRun, make_group, make_trajectory, shop_run


def rows(index: TrajectoryIndex) -> list[dict[str, Any]]:
    with index.reading() as connection:
        ids = [row[0] for row in connection.execute("SELECT id FROM trajectories ORDER BY step, kind DESC, line")]
        return rows_of(connection, ids)


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    return WrittenRun(tmp_path / "run")


def add(run: WrittenRun, step: int | str, *texts: str, **fields: Any) -> Path:
    return run.write(step, make_group(0, [make_trajectory(*(texts or ("hello",)), **fields)]))


def test_a_row_has_what_the_trajectory_says(run: WrittenRun) -> None:
    add(run, 3, "let me look", "it is 3", task="t", reward=0.5, reward_parts={"success": 1.0}, num_retries=2)
    index = TrajectoryIndex(run.path)
    assert index.update()
    [row] = rows(index)
    assert row == {
        "key": "3-1",
        "step": 3,
        "kind": "train",
        "task_id": "t",
        "group_id": 0,
        "member": 0,
        "reward": 0.5,
        "process_reward": 0.0,
        "success": 1.0,
        "stop_reason": "done",
        "failed": False,
        "retries": 2,
        "num_steps": 2,
        "tool_calls": 1,
        "tools": ["price"],
        "tokens": 6,
        "data_source": "default",
        "repairs": 0,
        "parse_errors": 0,
        "preview": "it is 3",
        "question": "What does an egg cost?",
    }


def test_success_without_a_part_of_its_name_is_a_reward_of_one(run: WrittenRun) -> None:
    members = [make_trajectory("x", member=member, reward=reward) for member, reward in enumerate((0.9, 1.0))]
    run.write(1, make_group(0, members))
    index = TrajectoryIndex(run.path)
    index.update()
    assert [row["success"] for row in rows(index)] == [0.0, 1.0]


def test_evaluations_have_the_step_of_their_policy(run: WrittenRun) -> None:
    add(run, "after")
    index = TrajectoryIndex(run.path)
    index.update()
    assert [(row["key"], row["kind"], row["step"]) for row in rows(index)] == [("eval_after-1", "eval", 0)]


# --- following the files ---------------------------------------------------------------------------------------------


def test_only_new_files_are_read(run: WrittenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    add(run, 1)
    index = TrajectoryIndex(run.path)
    index.update()
    assert not index.update()
    add(run, 2)
    read: list[bytes] = []

    def decode_short(line: bytes) -> dict[str, Any]:
        read.append(line)
        return decode(line)

    monkeypatch.setattr("agent_r1.view.index.writer.decode_short", decode_short)
    assert index.update()
    assert len(read) == 1
    assert [row["step"] for row in rows(index)] == [1, 2]


def test_a_file_that_a_resumed_run_rewrites_replaces_its_rows(run: WrittenRun) -> None:
    add(run, 1, "first version")
    index = TrajectoryIndex(run.path)
    index.update()
    path = add(run, 1, "second version, longer")
    os.utime(path, ns=(1, 1))
    assert index.update()
    assert [row["preview"] for row in rows(index)] == ["second version, longer"]
    with index.reading() as connection:
        [(kept,)] = connection.execute("SELECT count(*) FROM previews")
    assert kept == 1


def test_a_file_that_a_resumed_run_deletes_takes_its_rows_along(run: WrittenRun) -> None:
    add(run, 1)
    add(run, 2).unlink()
    add(run, 3)
    index = TrajectoryIndex(run.path)
    index.update()
    run.folder.step_trajectories(3).unlink()
    assert index.update()
    assert [row["step"] for row in rows(index)] == [1]


def test_an_index_of_an_earlier_process_is_used_again(run: WrittenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    add(run, 1)
    TrajectoryIndex(run.path).update()
    monkeypatch.setattr("agent_r1.view.index.writer.decode_short", None)
    index = TrajectoryIndex(run.path)
    index.update()
    assert index.state.trajectories == 1


def test_several_viewers_index_one_run_at_once(tmp_path: Path) -> None:
    run = shop_run(tmp_path / "run")
    indexes = [TrajectoryIndex(run.path) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(TrajectoryIndex.update, indexes))
    assert [index.state.trajectories for index in indexes] == [20] * 4
    assert len(rows(indexes[0])) == 20


# --- damage ----------------------------------------------------------------------------------------------------------


def test_lines_that_cannot_be_read_are_counted_and_the_others_are_there(run: WrittenRun) -> None:
    path = add(run, 1)
    good = path.read_text()
    bad = ["not json", "[1, 2]", '{"steps": 3}', '{"steps": [1]}', '{"a": ' * 100_000, good[:200], "\xff"]
    path.write_bytes("\n".join([*bad, good]).encode("latin-1"))
    index = TrajectoryIndex(run.path)
    index.update()
    assert index.state.corrupt_lines == len(bad)
    assert [row["key"] for row in rows(index)] == [f"1-{len(bad) + 1}"]


def test_a_line_that_is_too_long_is_counted_and_skipped(run: WrittenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    path = add(run, 1)
    good = path.read_bytes()
    monkeypatch.setattr(scan, "MAX_LINE_BYTES", len(good))
    monkeypatch.setattr(scan, "_CHUNK_BYTES", len(good))
    path.write_bytes(b"x" * (5 * len(good)) + b"\n" + good)
    index = TrajectoryIndex(run.path)
    index.update()
    assert (index.state.corrupt_lines, index.state.trajectories) == (1, 1)
    with index.reading() as connection:
        [(start, length)] = connection.execute("SELECT start, length FROM trajectories")
    assert index.read_line("1.jsonl", start, length) == good.rstrip(b"\n")


def test_odd_values_do_not_stop_the_index(run: WrittenRun) -> None:
    path = add(run, 1)
    record = json.loads(path.read_text())
    odd = {
        "task_id": 5,
        "group_id": "x",
        "outcome_reward": "high",
        "reward_parts": [1],
        "process_reward": 10**400,
        "member": 2**80,
        "stop_reason": None,
        "prompt": "text",
    }
    path.write_text(json.dumps({**record, **odd}) + "\n" + json.dumps({"steps": [{"text": 3, "tool_calls": [4]}]}))
    index = TrajectoryIndex(run.path)
    index.update()
    assert index.state.trajectories == 2
    assert [(row["reward"], row["member"], row["task_id"]) for row in rows(index)] == [(None, 0, ""), (None, 0, "")]


def test_hostile_text_is_indexed_and_found_again(run: WrittenRun) -> None:
    path = add(run, 1, HOSTILE, task=HOSTILE, question=HOSTILE)
    assert b"\\ud800" in path.read_bytes()
    index = TrajectoryIndex(run.path)
    index.update()
    [row] = rows(index)
    assert "<script>alert(1)</script>" in row["preview"]
    assert "\x00" not in row["preview"]
    json.dumps(row).encode()


def test_a_damaged_index_is_made_again(run: WrittenRun) -> None:
    add(run, 1)
    TrajectoryIndex(run.path).update()
    for content in (b"", b"not a database" * 1000, (run.path / INDEX_NAME).read_bytes()[:5000]):
        (run.path / INDEX_NAME).write_bytes(content)
        index = TrajectoryIndex(run.path)
        index.update()
        assert [row["step"] for row in rows(index)] == [1]


def test_an_index_that_is_deleted_while_it_is_used_is_made_again(run: WrittenRun) -> None:
    add(run, 1)
    index = TrajectoryIndex(run.path)
    index.update()
    for file in run.path.glob(f"{INDEX_NAME}*"):
        file.unlink()
    with pytest.raises(StorageError, match="being made again"):
        rows(index)
    index.update()
    assert len(rows(index)) == 1


def test_an_index_that_somebody_else_made_is_not_used(run: WrittenRun) -> None:
    add(run, 1)
    TrajectoryIndex(run.path).update()
    connection = sqlite3.connect(run.path / INDEX_NAME)
    connection.execute("CREATE TRIGGER t AFTER INSERT ON files BEGIN DELETE FROM files; END")
    connection.commit()
    connection.close()
    index = TrajectoryIndex(run.path)
    index.update()
    with index.reading() as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'").fetchone()[0] == 0
    assert len(rows(index)) == 1


def test_an_index_cannot_name_a_file_outside_of_the_run(run: WrittenRun, tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_text("secret")
    add(run, 1)
    index = TrajectoryIndex(run.path)
    index.update()
    for name in ("../secret.jsonl", "../../secret.jsonl", str(tmp_path / "secret.jsonl"), "", "..", "1.jsonl\0"):
        with pytest.raises(FileNotFoundError):
            index.read_line(name, 0, 100)


def test_links_are_not_followed(run: WrittenRun, tmp_path: Path) -> None:
    add(run, 1)
    (tmp_path / "outside.jsonl").write_bytes(run.folder.step_trajectories(1).read_bytes())
    (run.folder.trajectories / "2.jsonl").symlink_to(tmp_path / "outside.jsonl")
    os.mkfifo(run.folder.trajectories / "3.jsonl")
    index = TrajectoryIndex(run.path)
    index.update()
    assert [row["step"] for row in rows(index)] == [1]
    assert "2.jsonl is a link" in index.state.problems[0]


def test_a_folder_of_trajectories_behind_a_link_is_not_read(run: WrittenRun, tmp_path: Path) -> None:
    other = WrittenRun(tmp_path / "other")
    add(other, 1)
    run.folder.trajectories.symlink_to(other.folder.trajectories)
    index = TrajectoryIndex(run.path)
    index.update()
    assert rows(index) == []
    assert "is a link" in index.state.problems[0]


def test_an_index_that_is_a_link_is_not_written_through(
    run: WrittenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    (run.path / INDEX_NAME).symlink_to(precious)
    add(run, 1)
    index = TrajectoryIndex(run.path)
    index.update()
    assert precious.read_text() == "keep me"
    assert len(rows(index)) == 1
    assert list((tmp_path / "cache" / "agent-r1" / "view").glob("*.sqlite"))


def test_a_run_folder_that_cannot_be_written_has_its_index_in_the_cache(
    run: WrittenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (run.path / INDEX_NAME).mkdir()  # also root cannot make a file there
    add(run, 1)
    index = TrajectoryIndex(run.path)
    index.update()
    assert len(rows(index)) == 1


# --- reading lines without decoding all of them ----------------------------------------------------------------------

texts = st.text(max_size=30) | st.sampled_from(
    [HOSTILE, '"action_ids": [1, 2', '], "anchor": null', ', "timings": {', '"token_ids": ', '\\"prompt_ids\\": [']
)
arguments = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            texts | st.sampled_from(["action_ids", "prompt_ids", "token_ids", "anchor", "timings", "next_prompt_ids"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(texts=st.lists(texts, min_size=1, max_size=3), arguments=arguments, info=arguments)
def test_a_shortened_line_gives_the_same_entry_whatever_the_texts_are(
    texts: list[str], arguments: Any, info: Any
) -> None:
    record = recorded(texts, arguments, info)
    for line in (json.dumps(record).encode(), json.dumps(record, separators=(",", ":")).encode()):
        assert entry_of(decode_short(line)) == entry_of(decode(line))


def recorded(texts: list[str], arguments: Any, info: Any) -> dict[str, Any]:
    step = {
        "shared": 0,
        "prompt_ids": [1, 2, 3],
        "messages": [{"role": "user", "content": texts[0]}],
        "prompt_text": "",
        "token_ids": None,
        "images": [],
        "tools": [{"type": "function", "function": {"parameters": arguments}}],
        "anchor": texts[-1],
        "text": texts[-1],
        "content": texts[0],
        "tool_calls": [{"name": texts[0], "arguments": arguments, "call_id": ""}],
        "parse_error": None,
        "repairs": [],
        "action_ids": [4, 5],
        "rollout_logprobs": [-0.5, -1e-05],
        "reward": 0.0,
        "policy_versions": [0, 0],
        "info": info,
        "timings": {"generate": 0.1},
    }
    return {"task_id": texts[0], "stop_reason": "done", "next_prompt_ids": [1] * 9, "steps": [step, step]}


def test_a_line_is_decoded_without_its_token_arrays(run: WrittenRun) -> None:
    written = add(run, 1, "a", "b").read_bytes()
    record = json.loads(written)
    for line in (written, json.dumps(record).encode(), json.dumps(record, separators=(",", ":")).encode()):
        short = json.loads(shorten(line))
        assert [step["action_ids"] for step in short["steps"]] == [3, 3]
        assert all("rollout_logprobs" not in step and step["token_ids"] is None for step in short["steps"])


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line), max_size=8), st.integers(1, 40))
def test_lines_are_found_where_they_are_whatever_the_chunks(lines: list[bytes], chunk: int) -> None:
    import io

    content = b"\n".join(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_CHUNK_BYTES", chunk)
        found = list(lines_of(io.BytesIO(content)))
    assert [line for _, _, line in found] == [line for line in lines if line.strip()]
    assert all(content[start : start + length] == line for start, length, line in found)


def test_failures_are_those_of_the_stop_reason(run: WrittenRun) -> None:
    for step, reason in enumerate(StopReason, start=1):
        add(run, step, stop_reason=reason)
    index = TrajectoryIndex(run.path)
    index.update()
    assert {row["stop_reason"]: row["failed"] for row in rows(index)} == {str(r): r.is_failure for r in StopReason}


def test_a_run_that_was_deleted_is_not_made_again(run: WrittenRun) -> None:
    add(run, 1, "one")
    index = TrajectoryIndex(run.path)
    index.update()
    shutil.rmtree(run.path)
    for _ in range(2):
        with pytest.raises(StorageError):
            rows(index)
        with pytest.raises(StorageError, match="is gone"):
            index.update()
    assert not run.path.exists()
