"""What a killed process leaves behind is ignored, and removed when its folder is opened again; what belongs to a live
process stays."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_r1.config import Config, load_config
from agent_r1.console import RunConsole
from agent_r1.errors import ConfigError
from agent_r1.files import PreparedFile, remove_leftovers
from agent_r1.inference.source import find_source
from agent_r1.runs import lock_folder, locked_run, open_run, read_runs, remove_stale_lock
from agent_r1.runs.checkpoints import list_checkpoints
from agent_r1.runs.folder import RunFolder
from agent_r1.training.prepare import prepare_model
from tests.helpers import commands
from tests.helpers.forks import Forked, forks, run_python
from tests.helpers.tiny_runs import score_variety, tiny_overrides
from tests.integration.test_runs import ROOT
from tests.unit.runs.test_checkpoints import config_of, save, start_run
from tests.unit.runs.test_run_lock import pretend

WRITTEN = (
    "config.yaml",
    "metrics.jsonl",
    "summary.json",
    "trajectories/6.jsonl",
    "trajectories/images/0123.png",
    "credit/6.jsonl",
    "evaluations/validation_after.json",
)

KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from agent_r1.files import PreparedFile
from agent_r1.models.export import new_folder
from agent_r1.runs import lock_folder
from agent_r1.training.checkpoints.files import save_checkpoint

class Kills:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
with lock_folder(folder):
    prepared = [PreparedFile(folder / name, "half of it") for name in sys.argv[2:]]
    with new_folder(folder / "hf", num_bytes=1) as beside:
        (beside / "config.json").write_text("{}")
        save_checkpoint(folder / "checkpoints", step=6, state={"kills": Kills()}, keep=2)
"""

KILLED_AT_ITS_LOCK = """
import os, signal, sys
from pathlib import Path
from agent_r1.runs import lock_folder

def kill(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "before":
    os.link = kill
elif sys.argv[2] == "after":
    Path.unlink = kill
with lock_folder(Path(sys.argv[1])):
    kill()
"""

WRITES_AN_EVALUATION = """
import sys
from pathlib import Path
from agent_r1.files import PreparedFile
prepared = PreparedFile(Path(sys.argv[1]), "{}")
print("written", flush=True)
sys.stdin.read()
prepared.publish()
"""


def leftovers(folder: Path) -> list[str]:
    hidden = [path for path in folder.rglob(".*") if path.name.endswith((".partial", ".old")) or ".lock" in path.name]
    return sorted(str(path.relative_to(folder)) for path in hidden)


def opened(config: Config) -> bool:
    """Open the run as training does; gives whether it resumes."""
    with locked_run(config) as lock:
        return open_run(config, lock=lock)[1]


@pytest.fixture
def killed(tmp_path: Path) -> RunFolder:
    """A run with a checkpoint that was killed while it wrote everything that it writes."""
    folder = start_run(tmp_path)
    done = run_python("-c", KILLED_WHILE_WRITING, str(folder.path), *WRITTEN, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(leftovers(tmp_path)) == len(WRITTEN) + 3  # a checkpoint, the model and the lock
    return folder


def test_a_resumed_run_removes_what_the_killed_one_was_writing(killed: RunFolder, tmp_path: Path) -> None:
    assert opened(config_of(tmp_path))
    assert leftovers(tmp_path) == []
    assert [step for step, _ in list_checkpoints(killed.checkpoints)] == [5]


def test_a_run_that_is_moved_aside_takes_nothing_half_written_along(killed: RunFolder, tmp_path: Path) -> None:
    assert not opened(config_of(tmp_path, "run.resume=never"))
    assert leftovers(tmp_path) == []
    assert (tmp_path / "run.1" / "metrics.jsonl").is_file()


def test_reports_and_checkpoints_ignore_what_was_half_written(killed: RunFolder) -> None:
    [record] = read_runs([killed.path])
    assert (record.steps, record.splits, record.summary) == ("5 of 10", {}, {})
    assert killed.trajectory_files() == []
    assert [step for step, _ in list_checkpoints(killed.checkpoints)] == [5]
    assert not killed.has_model


def test_a_half_written_model_is_not_suggested(killed: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"hf_partial does not exist\.") as caught:
        find_source(killed.path / "hf_partial")
    assert ".partial" not in str(caught.value)


def test_without_the_lock_nothing_is_removed(killed: RunFolder, tmp_path: Path) -> None:
    before = leftovers(tmp_path)
    open_run(config_of(tmp_path))
    assert leftovers(tmp_path) == before


@pytest.fixture
def evaluation(tmp_path: Path) -> Iterator[tuple[Path, Forked]]:
    """`agent-r1 eval RUN`, which takes no lock, while it writes its record."""
    file = start_run(tmp_path).evaluations / "test_after.json"
    process = forks().start(["python", "-c", WRITES_AN_EVALUATION, str(file)], ROOT)
    try:
        assert process.stdout.readline() == "written\n"
        yield file, process
    finally:
        process.close()


def test_what_a_live_evaluation_is_writing_stays(evaluation: tuple[Path, Forked], tmp_path: Path) -> None:
    file, process = evaluation
    assert opened(config_of(tmp_path))
    process.stdin.close()
    assert process.wait() == 0
    assert file.read_text() == "{}"
    assert leftovers(tmp_path) == []


def test_what_a_killed_evaluation_was_writing_is_removed(evaluation: tuple[Path, Forked], tmp_path: Path) -> None:
    _, process = evaluation
    process.kill()
    process.wait()
    assert len(leftovers(tmp_path)) == 1
    assert opened(config_of(tmp_path))
    assert leftovers(tmp_path) == []


def test_what_this_process_is_writing_stays(tmp_path: Path) -> None:
    prepared = PreparedFile(tmp_path / "test_after.json", "{}")
    remove_leftovers(tmp_path, is_shared=True)
    prepared.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["test_after.json"]


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_folder_that_was_moved_away_returns_unless_it_was_replaced(tmp_path: Path, is_replaced: bool) -> None:
    save(tmp_path, 5).rename(tmp_path / ".step_5.old")
    if is_replaced:
        save(tmp_path, 5)
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step_5"]


def test_other_hidden_files_stay(tmp_path: Path) -> None:
    for name in (".notes", ".partial", "mine.partial"):
        (tmp_path / name).write_text("")
    for name in (".old", "mine.old", ".git"):
        (tmp_path / name).mkdir()
    before = sorted(tmp_path.iterdir())
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


# --- locks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "after", "holding"])
def test_nothing_is_left_of_the_lock_of_a_killed_process_when_the_next_one_ends(tmp_path: Path, moment: str) -> None:
    done = run_python("-c", KILLED_AT_ITS_LOCK, str(tmp_path / "run"), moment, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list(tmp_path.iterdir())
    with lock_folder(tmp_path / "run"):
        assert [path.name for path in tmp_path.iterdir()] == [".run.lock"]
    assert list(tmp_path.iterdir()) == []


def test_the_lock_files_of_others_stay(tmp_path: Path) -> None:
    """Of another run whose name is longer, and of a live process of another host that wants this lock."""
    pretend(tmp_path / "run.lock.x", age=10_000)
    pretend(tmp_path / "run")
    (tmp_path / ".run.lock").rename(tmp_path / f".run.lock.{'0' * 32}")
    before = sorted(tmp_path.iterdir())
    with lock_folder(tmp_path / "run"):
        pass
    assert sorted(tmp_path.iterdir()) == before


def test_the_lock_of_a_killed_preparation_goes_when_its_model_is_there(tmp_path: Path) -> None:
    overrides = [f"run.folder={tmp_path / 'runs'}", f"model.path={tmp_path / 'model'}", "model.prepare=nothing:at_all"]
    (tmp_path / "model").mkdir()
    config = load_config(None, overrides)
    place: list[Path] = []

    def note(folder: Path) -> None:
        place.append(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agent_r1.training.prepare.remove_stale_lock", note)
        prepare_model(config, RunConsole(quiet=True))
    run_python("-c", KILLED_AT_ITS_LOCK, str(place[0]), "holding", cwd=ROOT)
    assert leftovers(tmp_path) != []
    prepare_model(config, RunConsole(quiet=True))
    assert leftovers(tmp_path) == []


def test_the_lock_of_a_live_process_is_not_stale(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "model") as lock:
        remove_stale_lock(tmp_path / "model")
        assert lock.path.is_file()
    pretend(tmp_path / "model")
    remove_stale_lock(tmp_path / "model")
    assert lock.path.is_file()


# --- whole runs -------------------------------------------------------------------------------------------------------

KILLED_RUN = """
import os, signal, sys
from pathlib import Path
import agent_r1
from tests.helpers.tiny_runs import score_variety

replace = Path.replace

def kill_at(path, target):
    if str(target).endswith(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(path, target)

Path.replace = kill_at
agent_r1.train(sys.argv[2], overrides=sys.argv[3:], quiet=True, reward=score_variety)
"""


@pytest.mark.whole
@pytest.mark.parametrize("place", ["trajectories/3.jsonl", "credit/3.jsonl", "summary.json"])
def test_nothing_is_left_of_a_killed_run_that_was_resumed(tmp_path: Path, model_folder: Path, place: str) -> None:
    run = tiny_overrides(tmp_path, model_folder, "tracking.record_credit=true")
    done = run_python("-c", KILLED_RUN, place, *run, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert any(name.startswith("tiny/") for name in leftovers(tmp_path))
    commands.train(*run, quiet=True, reward=score_variety)
    assert leftovers(tmp_path) == []
    assert not (tmp_path / "tiny.1").exists()
