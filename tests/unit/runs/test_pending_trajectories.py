"""Rollouts are encoded in a thread while the learner works, and written where and when they always were."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_r1.errors import StorageError
from agent_r1.runs import PendingTrajectories, read_trajectories, write_trajectories
from agent_r1.runs.tracking import read_metrics
from agent_r1.types import Action, Group, Observation, Step, StopReason, Task, Trajectory
from tests.helpers import commands
from tests.helpers.forks import run_python
from tests.helpers.full_disks import files_of_at_most, half_written
from tests.helpers.tiny_runs import score_variety, tiny_overrides

TRACKER = """
import json
from agent_r1.runs import tracker_factories


class Witness:
    def __init__(self, folder):
        self.folder = folder

    def log(self, step, metrics):
        if "time/step" in metrics:
            found = [name for name in ("credit", "trajectories") if (self.folder / name / f"{step}.jsonl").is_file()]
            with (self.folder / "seen.jsonl").open("a") as file:
                file.write(json.dumps([step, found]) + "\\n")

    def close(self):
        pass


@tracker_factories.register("witness")
def make_witness(config, folder):
    return Witness(folder)
"""


def group(**info: Any) -> Group:
    step = Step(
        observation=Observation(messages=({"role": "user", "content": "Tea?"},)),
        prompt_ids=(1, 2, 3),
        action=Action(text="42", content="42", token_ids=(4, 5)),
        action_ids=(4, 5),
        rollout_logprobs=(-0.25, -0.125),
        reward=0.0,
        done=True,
        policy_versions=(0, 0),
        info=info,
    )
    trajectory = Trajectory(
        task_id="t", group_id=0, member=0, steps=(step,), outcome_reward=1.0, stop_reason=StopReason.DONE
    )
    members = tuple(replace(trajectory, member=member) for member in range(3))
    return Group(
        task=Task(task_id="t", prompt=({"role": "user", "content": "Tea?"},)), group_id=0, trajectories=members
    )


class Note:
    """Written as text: says in which thread, and waits until it may."""

    def __init__(self, *, may: threading.Event | None = None, failures: int = 0) -> None:
        self.may, self.failures = may, failures
        self.threads: list[threading.Thread] = []

    def __str__(self) -> str:
        self.threads.append(threading.current_thread())
        if self.may is not None:
            assert self.may.wait(30)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("dictionary changed size during iteration")
        return "noted"


def test_the_thread_rests_only_until_it_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_r1.runs.trajectories.RESTS", 1e6)
    PendingTrajectories([group(), group()], policy_step=3, path=tmp_path / "pending.jsonl").publish()
    write_trajectories(tmp_path / "at_once.jsonl", [group(), group()], policy_step=3)
    assert (tmp_path / "pending.jsonl").read_text() == (tmp_path / "at_once.jsonl").read_text()


def test_the_file_is_the_one_that_is_written_at_once(tmp_path: Path) -> None:
    groups = [group(metrics={"a": 1.0}), group()]
    write_trajectories(tmp_path / "at_once.jsonl", groups, policy_step=3)
    PendingTrajectories(groups, policy_step=3, path=tmp_path / "later.jsonl").publish()
    assert (tmp_path / "later.jsonl").read_bytes() == (tmp_path / "at_once.jsonl").read_bytes()
    assert list(read_trajectories(tmp_path / "later.jsonl")) == [t for some in groups for t in some]


def test_others_work_while_it_is_encoded(tmp_path: Path) -> None:
    note = Note(may=threading.Event())
    pending = PendingTrajectories([group(note=note)], policy_step=0, path=tmp_path / "1.jsonl")  # returns at once
    assert note.may is not None
    note.may.set()
    pending.publish()
    assert {thread.name.partition("_")[0] for thread in note.threads} == {"record"}
    assert (tmp_path / "1.jsonl").read_text().count("noted") == 3


def test_what_changed_while_it_was_encoded_is_encoded_again(tmp_path: Path) -> None:
    note = Note(failures=2)  # the second: an entry that orjson cannot write is written without it
    PendingTrajectories([group(note=note)], policy_step=0, path=tmp_path / "1.jsonl").publish()
    assert note.threads[-1] is threading.current_thread()
    assert (tmp_path / "1.jsonl").read_text().count("noted") == 3


def cycle() -> dict[str, Any]:
    notes: dict[str, Any] = {}
    notes["self"] = notes
    return notes


def deep(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("note", "found"),
    [
        ({(1, 2): 3, b"x": 4}, {"(1, 2)": 3, "<1 bytes>": 4}),
        ({10**5000: 1}, {"<an integer of 16,610 bits>": 1}),
        ([10**5000, float("nan")], ["<an integer of 16,610 bits>", None]),
        (deep(3000), None),
        ([deep(600), float("inf")], None),
        (cycle(), None),
    ],
    ids=["keys", "long key", "long integer", "deep", "deep and not finite", "cycle"],
)
def test_what_an_environment_notes_never_ends_a_run(tmp_path: Path, note: Any, found: Any) -> None:
    PendingTrajectories([group(note=note)], policy_step=0, path=tmp_path / "1.jsonl").publish()
    for trajectory in read_trajectories(tmp_path / "1.jsonl"):
        [step] = trajectory.steps
        assert (step.action_ids, step.rollout_logprobs) == ((4, 5), (-0.25, -0.125))
        if found is None:
            assert "nested too deeply" in str(step.info["note"])
        else:
            assert step.info["note"] == found


def test_what_cannot_be_encoded_is_an_error_where_it_is_written(tmp_path: Path) -> None:
    pending = PendingTrajectories([group(note=Note(failures=99))], policy_step=0, path=tmp_path / "1.jsonl")
    with pytest.raises(RuntimeError, match="changed size"):
        pending.publish()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_storage_error_where_it_is_published(tmp_path: Path) -> None:
    with files_of_at_most(1000):
        pending = PendingTrajectories([group(text="x" * 5000)], policy_step=0, path=tmp_path / "1.jsonl")
        with pytest.raises(StorageError, match=r"1\.jsonl cannot be written"):
            pending.publish()
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_there_from_its_publication_on(tmp_path: Path) -> None:
    with PendingTrajectories([group()], policy_step=0, path=tmp_path / "1.jsonl") as pending:
        PendingTrajectories([group()], policy_step=0, path=tmp_path / "2.jsonl").publish()  # the same thread, later
        assert [path.name for path in half_written(tmp_path)] == [f".1.jsonl.{os.getpid()}.partial"]
        assert not (tmp_path / "1.jsonl").exists()
        pending.publish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.jsonl", "2.jsonl"]


def test_a_batch_that_is_never_published_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), PendingTrajectories([group()], policy_step=0, path=tmp_path / "1.jsonl"):
        raise ZeroDivisionError
    with PendingTrajectories([group(note=Note(failures=99))], policy_step=0, path=tmp_path / "2.jsonl"):
        pass
    assert list(tmp_path.iterdir()) == []


# --- in a run -------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "witness.py").write_text(TRACKER)
    monkeypatch.syspath_prepend(str(tmp_path))
    return [*tiny_overrides(tmp_path, model_folder), "imports=[witness]", "tracking.trackers=[witness]"]


@pytest.mark.whole
def test_whoever_sees_the_metrics_of_a_step_finds_its_credit_and_its_rollouts(run: list[str], tmp_path: Path) -> None:
    commands.train(*run, "trainer.steps=2", "tracking.record_credit=true", quiet=True, reward=score_variety)
    seen = (tmp_path / "tiny" / "seen.jsonl").read_text().splitlines()
    assert seen == [f'[{step}, ["credit", "trajectories"]]' for step in (1, 2)]


KILLED = """
import os, signal, sys
from agent_r1.console import RunConsole
from tests.helpers import commands
from tests.helpers.tiny_runs import score_variety

def step_line(self, step, total, metrics, seconds):
    if step == 2:
        os.kill(os.getpid(), signal.SIGKILL)

RunConsole.step_line = step_line
commands.train(*sys.argv[1:], quiet=True, reward=score_variety)
"""


@pytest.mark.whole
def test_a_run_that_is_killed_right_after_a_step_has_lost_nothing_of_it(tmp_path: Path, model_folder: Path) -> None:
    overrides = [*tiny_overrides(tmp_path, model_folder), "trainer.steps=3", "tracking.record_credit=true"]
    done = run_python("-c", KILLED, *overrides, cwd=Path(__file__).parents[3])
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = tmp_path / "tiny"
    assert [line["step"] for line in read_metrics(folder / "metrics.jsonl")][-1] == 2
    for name in ("trajectories", "credit"):
        assert {"1.jsonl", "2.jsonl"} <= {path.name for path in (folder / name).iterdir()}
    assert len(list(read_trajectories(folder / "trajectories" / "2.jsonl"))) > 0
    assert half_written(folder) == []


KILLED_IN_AN_UPDATE = """
import os, signal, sys
from pathlib import Path
from agent_r1.learner.learner import TorchLearner
from tests.helpers import commands
from tests.helpers.full_disks import half_written
from tests.helpers.tiny_runs import score_variety

learn = TorchLearner.learn

async def learn_or_die(self, experience, *, step, on_credit=None):
    while step == 1:
        if half_written(Path(sys.argv[1])):
            os.kill(os.getpid(), signal.SIGKILL)
    return await learn(self, experience, step=step, on_credit=on_credit)

TorchLearner.learn = learn_or_die
commands.train(*sys.argv[2:], quiet=True, reward=score_variety)
"""


@pytest.mark.whole
def test_what_a_run_that_was_killed_in_an_update_had_written_is_gone_when_it_resumes(
    tmp_path: Path, model_folder: Path
) -> None:
    overrides = [*tiny_overrides(tmp_path, model_folder), "trainer.steps=2", "trainer.save_every=1"]
    folder, root = tmp_path / "tiny", Path(__file__).parents[3]
    done = run_python("-c", KILLED_IN_AN_UPDATE, str(folder), *overrides, cwd=root)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(half_written(folder)) == 1
    commands.train(*overrides, quiet=True, reward=score_variety)
    assert half_written(folder) == []
    assert {path.name for path in folder.glob("trajectories/[0-9]*.jsonl")} == {"1.jsonl", "2.jsonl"}
