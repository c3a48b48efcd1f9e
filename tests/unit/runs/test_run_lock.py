"""The lock of a run's folder: one live process, across hosts; and the names that runs may have."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from agent_r1.cli import app
from agent_r1.errors import ConfigError, RunLockedError
from agent_r1.runs import lock as run_lock
from agent_r1.runs.lock import STALE_SECONDS, FolderLock, is_locked, lock_folder
from agent_r1.runs.names import name_problem
from tests.helpers import commands
from tests.helpers.tiny_runs import tiny_overrides
from tests.integration.test_runs import ROOT, score_variety

HOLDS = """
import sys, time
from pathlib import Path
from agent_r1.runs.lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    """A process that has the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def lock_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def pretend(folder: Path, age: float = 0.0, **changes: Any) -> None:
    """The lock file of another process."""
    holder = {"host": "elsewhere", "pid": 4711, "process_start": "1", "boot": "b", "since": "noon", "token": "t"}
    lock_file(folder).write_text(json.dumps({**holder, **changes}))
    then = time.time() - age
    os.utime(lock_file(folder), (then, then))


@pytest.mark.whole
def test_a_lock_refuses_with_host_and_process_until_it_is_released(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = hold(folder)
    try:
        with pytest.raises(RunLockedError) as caught, lock_folder(folder):
            pass
        assert f"process {process.pid} on host {os.uname().nodename}" in str(caught.value)
    finally:
        process.kill()
        process.communicate()


def test_a_folder_is_locked_while_a_process_uses_it(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "run")
    with lock_folder(tmp_path / "run"):
        assert is_locked(tmp_path / "run")
    assert not is_locked(tmp_path / "run")


@pytest.mark.whole
def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path: Path) -> None:
    process = hold(tmp_path / "run")
    process.send_signal(signal.SIGKILL)  # nobody has waited for it: it is a zombie
    while FolderLock(tmp_path / "run").try_acquire() is not None:
        time.sleep(0.01)
    process.communicate()


@pytest.mark.whole
def test_a_suspended_process_keeps_its_lock(tmp_path: Path) -> None:
    process = hold(tmp_path / "run")
    process.send_signal(signal.SIGSTOP)
    old = time.time() - 10 * STALE_SECONDS
    os.utime(lock_file(tmp_path / "run"), (old, old))
    try:
        assert FolderLock(tmp_path / "run").try_acquire() is not None
    finally:
        process.kill()
        process.communicate()


def test_nothing_is_left_of_a_lock_that_was_released(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "run") as lock:
        assert lock.path == lock_file(tmp_path / "run")
        assert [path.name for path in tmp_path.iterdir()] == [".run.lock"]
    assert list(tmp_path.iterdir()) == []


def test_a_process_cannot_have_the_same_lock_twice(tmp_path: Path) -> None:
    with (
        lock_folder(tmp_path / "run"),
        pytest.raises(RunLockedError, match="this process uses it"),
        lock_folder(tmp_path / "run"),
    ):
        pass
    with lock_folder(tmp_path / "run"):
        pass


def test_two_ways_to_one_folder_are_one_lock(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "b").symlink_to(tmp_path / "runs" / "a")
    with lock_folder(tmp_path / "runs" / "a"):
        for other in (tmp_path / "link" / "a", tmp_path / "runs" / "b", tmp_path / "link" / ".." / "runs" / "a"):
            assert FolderLock(other).try_acquire() is not None


def test_another_hosts_lock_counts_until_it_is_old(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    pretend(folder, age=STALE_SECONDS / 2)
    with (
        pytest.raises(RunLockedError, match=r"process 4711 on host elsewhere uses it since noon.*10 minutes") as caught,
        lock_folder(folder),
    ):
        pass
    assert str(lock_file(folder)) in str(caught.value)
    pretend(folder, age=STALE_SECONDS + 60)
    with lock_folder(folder):
        pass


def test_another_boot_of_a_host_of_this_name_is_another_host(tmp_path: Path) -> None:
    pretend(tmp_path / "run", host=os.uname().nodename, pid=os.getpid())
    assert FolderLock(tmp_path / "run").try_acquire() is not None


def test_a_process_id_that_was_given_out_again_is_not_the_holder(tmp_path: Path) -> None:
    mine = run_lock._this_process()
    pretend(tmp_path / "run", host=mine.host, pid=mine.pid, boot=mine.boot, process_start="1")
    with lock_folder(tmp_path / "run"):
        pass


@pytest.mark.parametrize("content", ["", "not json", "[]", '{"pid": 1}'])
def test_a_lock_file_that_cannot_be_read_blocks_only_for_a_moment(tmp_path: Path, content: str) -> None:
    file = lock_file(tmp_path / "run")
    file.write_text(content)
    with pytest.raises(RunLockedError), lock_folder(tmp_path / "run"):
        pass
    old = time.time() - 60
    os.utime(file, (old, old))
    with lock_folder(tmp_path / "run"):
        pass


def test_a_lock_is_refreshed_while_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "HEARTBEAT_SECONDS", 0.01)
    with lock_folder(tmp_path / "run") as lock:
        old = time.time() - 1000
        os.utime(lock.path, (old, old))
        deadline = time.monotonic() + 10
        while lock.path.stat().st_mtime < old + 500 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert lock.path.stat().st_mtime > old + 500


def test_a_lock_that_was_taken_over_is_noticed_and_left_to_its_new_holder(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "run") as lock:
        lock.ensure_held()
        pretend(tmp_path / "run")
        with pytest.raises(RunLockedError, match="was taken over while this run was live"):
            lock.ensure_held()
    assert json.loads(lock_file(tmp_path / "run").read_text())["pid"] == 4711


def test_a_lock_file_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "run") as lock:
        lock.path.unlink()
        lock.ensure_held()
        assert FolderLock(tmp_path / "run").try_acquire() is not None
    assert not lock.path.exists()


@pytest.mark.whole
@pytest.mark.parametrize("has_links", [True, False])
def test_of_many_at_once_one_has_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    if not has_links:

        def refuse(source: Path, target: Path) -> None:
            raise PermissionError(1, "links are not supported")

        monkeypatch.setattr(os, "link", refuse)
    inside, most = [0], [0]

    def work(number: int) -> None:
        with lock_folder(tmp_path / "run", wait=True):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.002)
            inside[0] -= 1

    pretend(tmp_path / "run", age=STALE_SECONDS + 60)  # all of them find a stale lock first
    with ThreadPoolExecutor(8) as together:
        list(together.map(work, range(16)))
    assert most == [1]
    assert list(tmp_path.iterdir()) == []


def test_those_who_wait_are_told_for_whom_once(tmp_path: Path) -> None:
    told: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with lock_folder(tmp_path / "run"):
            entered.set()
            leave.wait()

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    threading.Timer(0.3, leave.set).start()
    with lock_folder(tmp_path / "run", wait=True, on_wait=told.append):
        pass
    thread.join()
    assert len(told) == 1
    assert "waiting for" in told[0]


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, model_folder: Path) -> list[str]:
    return tiny_overrides(tmp_path, model_folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> tuple[list[str], Path]:
    """The overrides and the folder of a finished run, for tests that must not change it."""
    folder = tmp_path_factory.mktemp("finished")
    run = tiny_overrides(folder, model_folder)
    row = {"messages": [{"role": "user", "content": "2 egg?"}, {"role": "assistant", "content": "6"}]}
    (folder / "demonstrations.jsonl").write_text(json.dumps(row) + "\n")
    commands.train(*run, "trainer.steps=1", quiet=True, reward=score_variety)
    return run, folder


@pytest.mark.parametrize("verb", ["train", "sft"])
def test_a_run_in_a_live_runs_folder_is_refused_and_changes_nothing(
    finished: tuple[list[str], Path], verb: str
) -> None:
    run, folder = finished
    before = sorted(str(path) for path in folder.rglob("*"))
    with lock_folder(folder / "tiny"), pytest.raises(RunLockedError, match="this process"):
        getattr(commands, verb)(
            *run, "run.resume=never", "sft.steps=1", f"sft.data=[{folder}/demonstrations.jsonl]", quiet=True
        )
    assert sorted(str(path) for path in folder.rglob("*")) == before


@pytest.mark.whole
def test_a_second_run_of_the_same_name_is_refused_while_the_first_is_live(run: list[str], tmp_path: Path) -> None:
    refused: list[str] = []

    def starts_another(task: Any, episode: Any) -> float:
        if not refused:
            try:
                commands.train(*run, quiet=True)
            except RunLockedError as error:
                refused.append(str(error))
        return score_variety(task, episode)

    commands.train(*run, "trainer.steps=1", quiet=True, reward=starts_another)
    assert "is locked: this process uses it" in refused[0]
    assert not (tmp_path / "tiny.1").exists()


@pytest.mark.whole
def test_a_run_whose_folder_was_taken_over_stops_and_writes_nothing_more(run: list[str], tmp_path: Path) -> None:
    asked: list[int] = []

    def lets_go(task: Any, episode: Any) -> float:
        asked.append(1)
        if len(asked) == 8 + 1:
            pretend(tmp_path / "tiny")
        return score_variety(task, episode)

    with pytest.raises(RunLockedError, match="taken over while this run was live: process 4711 on host elsewhere"):
        commands.train(*run, quiet=True, reward=lets_go)
    assert [path.name for path in (tmp_path / "tiny" / "checkpoints").iterdir()] == ["step_1"]
    assert len((tmp_path / "tiny" / "metrics.jsonl").read_text().splitlines()) == 1


# --- names ------------------------------------------------------------------------------------------------------------

BAD_NAMES = ["", " ", ".", "..", "../x", "../../x", "a/b", "/x", "a\\b", ".hidden", "a\n", "a\x00b", " a", "x" * 201]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_not_one_folder_is_refused(name: str) -> None:
    assert name_problem(name) is not None


@pytest.mark.parametrize("name", ["a", "grpo-1", "seed=1", "x.1", "läuft", "a b", "-x", "x" * 200])
def test_a_name_that_is_one_folder_is_fine(name: str) -> None:
    assert name_problem(name) is None


@given(st.text(max_size=300))
def test_a_good_name_is_one_folder_inside_its_parent(name: str) -> None:
    if name_problem(name) is None:
        path = Path("/runs") / name
        assert path.parent == Path("/runs")
        assert path.name == name
        assert len(os.fsencode(f".{name}.lock")) <= 255


@pytest.mark.parametrize("override", ["run.name=", "run.name=../../x", "run.folder=", "sft.folder=..", "sft.folder=''"])
def test_a_bad_name_is_refused_at_a_dry_run_and_leaves_everything(
    finished: tuple[list[str], Path], override: str
) -> None:
    run, folder = finished
    before = sorted(str(path) for path in folder.rglob("*"))
    demonstrations = f"sft.data=[{folder}/tasks.jsonl]"
    result = CliRunner().invoke(app, ["train", *run, demonstrations, override, "--dry-run"])
    assert result.exit_code == 2
    assert override.partition("=")[0] in result.output
    with pytest.raises(ConfigError, match=override.partition("=")[0].replace(".", r"\.")):
        commands.train(*run, demonstrations, override, quiet=True)
    assert sorted(str(path) for path in folder.rglob("*")) == before


def test_all_problems_of_names_are_told_at_once(run: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        commands.train(*run, "run.name=", "run.folder=", "trainer.steps=0", quiet=True)
    assert all(key in str(caught.value) for key in ("run.name", "run.folder", "trainer.steps"))


def test_a_folder_that_no_run_has_made_is_never_moved(run: list[str], tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        commands.train(*run, quiet=True)
    assert (tmp_path / "tiny" / "thesis.tex").is_file()


@pytest.mark.whole
def test_a_run_does_not_read_from_the_folder_that_it_writes(run: list[str], tmp_path: Path) -> None:
    commands.train(*run, "trainer.steps=1", quiet=True, reward=score_variety)
    with pytest.raises(ConfigError, match=r"model\.path=.*hf is inside .*tiny, which is this run's own folder"):
        commands.train(*run, quiet=True, reward=score_variety, model=tmp_path / "tiny" / "hf")
    assert (tmp_path / "tiny" / "hf" / "config.json").is_file()
    commands.evaluate(*run, "eval.max_tasks=1", quiet=True, model=tmp_path / "tiny" / "hf")
