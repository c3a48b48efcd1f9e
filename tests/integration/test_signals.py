"""Ctrl-C, SIGTERM, SIGHUP and errors: whatever ends a run leaves a checkpoint of its last finished step, unless the run
writes none."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_r1 import interrupts
from agent_r1.interrupts import RunInterrupted
from agent_r1.learner import imitation
from agent_r1.learner import learner as learner_module
from agent_r1.learner.learner import TorchLearner
from agent_r1.learner.optimizer import guarded_step
from agent_r1.runs.checkpoints import list_checkpoints
from tests.helpers import commands
from tests.helpers.forks import Forked, forks
from tests.helpers.tiny_runs import tiny_overrides, write_tasks
from tests.integration.test_runs import ROOT, same_weights, score_variety

pytestmark = pytest.mark.whole

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@pytest.fixture
def run(tmp_path: Path, model_folder: Path) -> list[str]:
    """Nothing is saved before the end, unless something ends the run early."""
    return tiny_overrides(tmp_path, model_folder, "trainer.save_every=100")


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """As in a program that nobody started in the background."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals are handled in the main thread")
    default = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in default.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def saved_steps(folder: Path) -> list[int]:
    return [step for step, _ in list_checkpoints(folder / "checkpoints")]


def logged_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def send(number: int) -> None:
    """To this process; the main thread has handled it when this returns to it."""
    os.kill(os.getpid(), number)


class Sends:
    """A reward that sends a signal when it is asked for the n-th time."""

    __name__ = "sends"

    def __init__(self, number: int, *, at: int) -> None:
        self.number, self.at, self.asked = number, at, 0

    def __call__(self, task: Any, episode: Any) -> float:
        self.asked += 1
        if self.asked == self.at:
            send(self.number)
        return score_variety(task, episode)


def calling(function: Callable[..., Any], at: int, then: Callable[[], None]) -> Callable[..., Any]:
    """A function that does something else first when it is called for the n-th time."""
    calls: list[int] = []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            then()
        return function(*args, **kwargs)

    return wrapped


def raise_error() -> None:
    raise ValueError("something nobody thought of")


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "exit_code"), SIGNALS)
def test_a_signal_during_rollouts_saves_the_last_finished_step_and_the_run_resumes_bit_for_bit(
    run: list[str], tmp_path: Path, number: int, exit_code: int, uninterrupted: Callable[..., Path]
) -> None:
    with pytest.raises(RunInterrupted, match=r"step 2: the same command resumes from there") as caught:
        commands.train(*run, quiet=True, reward=Sends(number, at=2 * 8 + 3))
    assert caught.value.exit_code == exit_code
    assert saved_steps(tmp_path / "tiny") == [2]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # The reward is registered under another name: the one difference, so the second part must be told to resume.
    commands.train(*run, "run.resume=must", quiet=True, reward=score_variety)
    assert same_weights(uninterrupted(), tmp_path / "tiny")
    assert [line["step"] for line in logged_lines(tmp_path / "tiny")] == [1, 2, 3, 4]


def test_a_signal_during_an_update_lets_the_step_finish_and_saves_it(
    run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Callable[..., Path]
) -> None:
    run = [*run, "algorithm.minibatches=2"]
    # Two updates a step: the fourth is the second one of the second step.
    stepping = calling(guarded_step, 4, lambda: send(signal.SIGTERM))
    monkeypatch.setattr(learner_module, "guarded_step", stepping)
    with pytest.raises(RunInterrupted, match="Interrupted by SIGTERM"):
        commands.train(*run, quiet=True, reward=score_variety)
    monkeypatch.undo()
    assert saved_steps(tmp_path / "tiny") == [2]
    assert [line["step"] for line in logged_lines(tmp_path / "tiny")] == [1, 2]
    commands.train(*run, quiet=True, reward=score_variety)
    assert same_weights(uninterrupted("algorithm.minibatches=2"), tmp_path / "tiny")


def test_a_signal_before_the_first_step_is_finished_says_that_there_is_no_checkpoint(
    run: list[str], tmp_path: Path
) -> None:
    with pytest.raises(RunInterrupted, match="There is no checkpoint: the same command starts over"):
        commands.train(*run, quiet=True, reward=Sends(signal.SIGTERM, at=3))
    assert saved_steps(tmp_path / "tiny") == []


def test_a_run_that_never_resumes_is_told_how_to(run: list[str]) -> None:
    with pytest.raises(RunInterrupted, match=r"the same command with run\.resume=auto resumes"):
        commands.train(*run, "run.resume=never", quiet=True, reward=Sends(signal.SIGTERM, at=8 + 3))


WITHOUT_CHECKPOINTS = "trainer.keep_checkpoints=0"
NOTHING_KEPT = r"No checkpoint was written \(trainer\.keep_checkpoints=0\), so nothing can be resumed: the same command"


def test_a_signal_ends_a_run_without_checkpoints_and_the_same_command_starts_over(
    run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], uninterrupted: Callable[..., Path]
) -> None:
    run = [*run, WITHOUT_CHECKPOINTS]
    with pytest.raises(RunInterrupted, match=rf"Interrupted by SIGTERM\. {NOTHING_KEPT} starts over$"):
        commands.train(*run, reward=Sends(signal.SIGTERM, at=2 * 8 + 3))
    told = capsys.readouterr().out
    assert told.count("trainer.keep_checkpoints=0: this run writes no checkpoints") == 1
    assert "saved" not in told
    assert not (tmp_path / "tiny" / "checkpoints").exists()
    commands.train(*run, reward=score_variety)
    assert "holds a run without a checkpoint (its trainer.keep_checkpoints is 0)" in capsys.readouterr().out
    assert [line["step"] for line in logged_lines(tmp_path / "tiny")] == [1, 2, 3, 4]
    assert same_weights(uninterrupted(), tmp_path / "tiny")


def test_a_signal_after_the_last_step_of_a_run_without_checkpoints_names_the_exported_model(
    run: list[str], tmp_path: Path
) -> None:
    run = [*run, f"data.eval=[{write_tasks(tmp_path / 'held_out.jsonl', count=3)}]", "eval.before=false"]
    with pytest.raises(RunInterrupted, match=rf"{NOTHING_KEPT} starts over; the trained model is in .*/tiny/hf$"):
        commands.train(*run, WITHOUT_CHECKPOINTS, quiet=True, reward=Sends(signal.SIGTERM, at=4 * 8 + 1))
    assert (tmp_path / "tiny" / "hf" / "model.safetensors").is_file()


def test_a_second_signal_ends_the_run_after_the_update_and_saves_nothing(
    run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice() -> None:  # from the learner's thread: two that come before the first is handled would be one
        stop = interrupts._active.get()
        assert stop is not None
        send(signal.SIGINT)
        while stop.received is None:
            time.sleep(0.01)
        send(signal.SIGINT)

    monkeypatch.setattr(TorchLearner, "learn_sync", calling(TorchLearner.learn_sync, 2, twice))
    with pytest.raises(KeyboardInterrupt) as caught:
        commands.train(*run, quiet=True, reward=score_variety)
    assert not isinstance(caught.value, RunInterrupted)
    assert saved_steps(tmp_path / "tiny") == []
    assert not list(tmp_path.glob(".*.lock"))


def test_a_signal_with_groups_in_flight_loses_none_of_them(run: list[str], tmp_path: Path) -> None:
    with pytest.raises(RunInterrupted):
        commands.train(
            *run, "rollout.max_staleness=1", "trainer.steps=6", quiet=True, reward=Sends(signal.SIGTERM, at=3 * 8)
        )
    [step] = saved_steps(tmp_path / "tiny")
    summary = commands.train(
        *run, "rollout.max_staleness=1", "trainer.steps=6", "run.resume=must", quiet=True, reward=score_variety
    )
    assert 0 < step < summary.steps == 6


def children() -> set[int]:
    """The processes that this one has started and that live."""
    listed = [file.read_text().split() for file in Path("/proc/self/task").glob("*/children")]
    pids = {int(pid) for line in listed for pid in line}
    return {pid for pid in pids if ") Z " not in Path(f"/proc/{pid}/stat").read_text()}


def test_a_signal_ends_the_processes_that_the_run_has_started(run: list[str], tmp_path: Path) -> None:
    before, started, metrics = children(), set[int](), tmp_path / "tiny" / "metrics.jsonl"

    def interrupt() -> None:
        while not metrics.is_file() or not metrics.read_text():
            time.sleep(0.01)
        started.update(children() - before)
        send(signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(RunInterrupted):
        commands.train(*run, "trainer.steps=500", "reward.timeout=60", quiet=True, reward=score_variety)
    thread.join()
    assert started
    assert children() <= before


def test_a_signal_during_the_preparation_says_that_nothing_was_saved(
    run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_preparation.py").write_text(
        "import os, signal, time\n\n\ndef make(config):\n    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(60)\n"
    )
    missing = [f"model.path={tmp_path}/made", "model.prepare=slow_preparation:make"]
    with pytest.raises(RunInterrupted, match=r"Interrupted by SIGTERM\. Nothing was saved"):
        commands.train(*run, *missing, quiet=True)
    assert not list(tmp_path.glob(".*.lock"))


def test_a_signal_during_a_warm_start_says_that_it_starts_over(
    run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"messages": [{"role": "user", "content": "2 egg?"}, {"role": "assistant", "content": "6"}]}
    (tmp_path / "demonstrations.jsonl").write_text(json.dumps(row) + "\n")
    stepping = calling(guarded_step, 3, lambda: send(signal.SIGHUP))
    monkeypatch.setattr(imitation, "guarded_step", stepping)
    with pytest.raises(RunInterrupted, match="A warm start has no checkpoints"):
        commands.sft(*run, f"sft.data=[{tmp_path}/demonstrations.jsonl]", quiet=True)
    assert not list(tmp_path.glob(".*.lock"))


def test_a_signal_during_an_evaluation_command_ends_it(run: list[str]) -> None:
    with pytest.raises(RunInterrupted, match="An evaluation saves nothing"):
        commands.evaluate(*run, quiet=True, reward=Sends(signal.SIGTERM, at=2))


def test_handlers_of_others_and_ignored_signals_stay(run: list[str]) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        commands.train(*run, "trainer.steps=1", quiet=True, reward=Sends(signal.SIGTERM, at=3))
        send(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGHUP, ignored)
    assert seen == [signal.SIGTERM]


def test_a_run_in_another_thread_needs_no_handlers(run: list[str]) -> None:
    done: list[Any] = []

    def train() -> None:
        done.append(commands.train(*run, "trainer.steps=1", quiet=True, reward=score_variety))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert done[0].steps == 1


# --- errors -----------------------------------------------------------------------------------------------------------


def test_an_error_leaves_a_checkpoint_of_the_last_finished_step(
    run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: Callable[..., Path]
) -> None:
    monkeypatch.setattr(TorchLearner, "learn_sync", calling(TorchLearner.learn_sync, 3, raise_error))
    with pytest.raises(ValueError, match="nobody thought of"):
        commands.train(*run, quiet=True, reward=score_variety)
    monkeypatch.undo()
    assert saved_steps(tmp_path / "tiny") == [2]
    commands.train(*run, quiet=True, reward=score_variety)
    assert same_weights(uninterrupted(), tmp_path / "tiny")


def test_an_error_of_a_run_without_checkpoints_says_that_nothing_is_kept(
    run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(TorchLearner, "learn_sync", calling(TorchLearner.learn_sync, 3, raise_error))
    with pytest.raises(ValueError, match="nobody thought of"):
        commands.train(*run, WITHOUT_CHECKPOINTS, reward=score_variety)
    assert len(re.findall(NOTHING_KEPT, " ".join(capsys.readouterr().out.split()))) == 1
    assert not (tmp_path / "tiny" / "checkpoints").exists()


def test_a_resumed_run_that_writes_no_more_checkpoints_leaves_those_that_are_there(
    run: list[str], tmp_path: Path, uninterrupted: Callable[..., Path]
) -> None:
    commands.train(*run, "trainer.steps=1", quiet=True, reward=score_variety)
    more = [*run, WITHOUT_CHECKPOINTS, "run.resume=must"]
    with pytest.raises(RunInterrupted, match="The last checkpoint is that of step 1: the same command resumes"):
        commands.train(*more, quiet=True, reward=Sends(signal.SIGTERM, at=2 * 8 + 3))
    assert saved_steps(tmp_path / "tiny") == [1]
    commands.train(*more, quiet=True, reward=score_variety)
    assert saved_steps(tmp_path / "tiny") == [1]
    assert same_weights(uninterrupted(), tmp_path / "tiny")


@pytest.mark.parametrize("kind", ["closed_form", "own", "shared"])
def test_an_update_that_fails_before_it_changes_weights_leaves_the_last_finished_step_with_a_critic(
    run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    run = [*run, "algorithm=ppo", f"algorithm.critic.kind={kind}", "trainer.steps=3"]
    commands.train(*run, "run.name=whole", quiet=True, reward=score_variety)
    update = calling(TorchLearner._update_policy, 3, raise_error)
    monkeypatch.setattr(TorchLearner, "_update_policy", lambda *args: update(*args))
    with pytest.raises(ValueError, match="nobody thought of"):
        commands.train(*run, quiet=True, reward=score_variety)
    monkeypatch.undo()
    assert saved_steps(tmp_path / "tiny") == [2]
    commands.train(*run, quiet=True, reward=score_variety)
    assert same_weights(tmp_path / "whole", tmp_path / "tiny")


def test_weights_that_a_failed_update_has_changed_are_not_saved_as_a_step(
    run: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    uninterrupted: Callable[..., Path],
) -> None:
    run = [*run, "algorithm.minibatches=2", "trainer.save_every=1"]
    monkeypatch.setattr(learner_module, "guarded_step", calling(guarded_step, 4, raise_error))
    with pytest.raises(ValueError, match="nobody thought of"):
        commands.train(*run, "trainer.save_every=100", reward=score_variety)
    monkeypatch.undo()
    assert "step 1 cannot be saved" in capsys.readouterr().out
    assert saved_steps(tmp_path / "tiny") == []
    commands.train(*run, quiet=True, reward=score_variety)
    assert same_weights(uninterrupted("algorithm.minibatches=2"), tmp_path / "tiny")


# --- evaluations between a checkpoint and a kill ----------------------------------------------------------------------


def with_evaluations(tmp_path: Path, model_folder: Path) -> list[str]:
    """Evaluated after steps 0, 2 and 4: three rewards each."""
    held_out = write_tasks(tmp_path / "held_out.jsonl", count=3)
    return tiny_overrides(tmp_path, model_folder, f"data.eval=[{held_out}]", "eval.every=2", "trainer.save_every=2")


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if not name.startswith(("time/", "perf/"))}


@pytest.mark.parametrize("at", [3 + 16 + 1, 3 + 32 + 3 + 1], ids=["in the middle", "at the end"])
def test_an_evaluation_that_a_signal_cut_is_made_by_the_resumed_run(
    tmp_path: Path, model_folder: Path, at: int
) -> None:
    run = with_evaluations(tmp_path, model_folder)
    commands.train(*run, "run.name=whole", quiet=True, reward=score_variety)
    with pytest.raises(RunInterrupted):
        commands.train(*run, quiet=True, reward=Sends(signal.SIGTERM, at=at))
    commands.train(*run, "run.resume=must", quiet=True, reward=score_variety)
    lines = logged_lines(tmp_path / "tiny")
    assert [line["step"] for line in lines] == [0, 1, 2, 2, 3, 4, 4]
    assert list(map(without_times, lines)) == list(map(without_times, logged_lines(tmp_path / "whole")))


def test_an_evaluation_that_was_logged_is_logged_once(tmp_path: Path, model_folder: Path) -> None:
    run = with_evaluations(tmp_path, model_folder)
    commands.train(*run, quiet=True, reward=score_variety)
    (tmp_path / "tiny" / "summary.json").unlink()  # killed after the last evaluation, before the summary
    summary = commands.train(*run, quiet=True, reward=score_variety)
    assert [line["step"] for line in logged_lines(tmp_path / "tiny")] == [0, 1, 2, 2, 3, 4, 4]
    assert summary.steps == 4


# --- real processes ---------------------------------------------------------------------------------------------------

COMMAND = """
import os, sys, signal, time
from agent_r1.rewards import reward_functions
from tests.integration.test_runs import score_variety
asked = 0
def paid(task, episode):
    global asked
    asked += 1
    if asked == int(os.environ.get("KILL_AT", "0")):
        os.kill(os.getpid(), signal.SIGKILL)
    return score_variety(task, episode)
reward_functions.add("paid", paid)
if "HANG" in os.environ:
    from agent_r1.learner.learner import TorchLearner
    def hang(learner, experience, **settings):
        print("updating", flush=True)
        while True:
            time.sleep(0.01)
    TorchLearner.learn_sync = hang
from agent_r1.cli import main
sys.argv = ["agent-r1", "train", *sys.argv[1:], "reward.function=paid"]
main()
"""


def start(run: list[str], **environment: str) -> Forked:
    return forks().start(["python", "-c", COMMAND, *run], ROOT, {**os.environ, **environment}, merged=True)


def wait_for_steps(process: Forked, folder: Path, steps: int) -> None:
    metrics = folder / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not metrics.is_file() or metrics.read_text().count("\n") < steps:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.whole),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.whole),
    ],
)
def test_a_command_that_a_signal_ends_says_how_to_resume(
    run: list[str], tmp_path: Path, number: int, exit_code: int
) -> None:
    process = start([*run, "trainer.steps=500"])
    wait_for_steps(process, tmp_path / "tiny", 2)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == exit_code, output
    [step] = saved_steps(tmp_path / "tiny")
    assert f"The last checkpoint is that of step {step}: the same command resumes from there" in output
    assert "Traceback" not in output
    assert len(logged_lines(tmp_path / "tiny")) == step
    assert not list(tmp_path.glob(".*.lock"))


@pytest.mark.whole
def test_a_command_whose_terminal_is_closed_saves_its_last_step(run: list[str], tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = forks().start(["python", "-c", COMMAND, *run, "trainer.steps=500"], ROOT, terminal=theirs)
    os.close(theirs)
    wait_for_steps(process, tmp_path / "tiny", 2)
    os.close(ours)  # the system sends it SIGHUP, and every write fails from here on
    assert process.wait(timeout=60) == 129
    process.close()
    [step] = saved_steps(tmp_path / "tiny")
    assert step >= 2


@pytest.mark.whole
def test_a_second_ctrl_c_quits_the_command_at_once(run: list[str], tmp_path: Path) -> None:
    process = start(run, HANG="1")
    assert process.stdout is not None
    for line in process.stdout:
        if "updating" in line:
            break
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "stopping after the current step; a second Ctrl-C quits at once" in output
    assert "quitting at once" in output


@pytest.mark.whole
def test_an_evaluation_due_at_a_checkpoint_survives_kill_9(tmp_path: Path, model_folder: Path) -> None:
    run = with_evaluations(tmp_path, model_folder)
    killed = start(run, KILL_AT=str(3 + 16 + 2))
    output, _ = killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL, output
    assert [line["step"] for line in logged_lines(tmp_path / "tiny")] == [0, 1, 2]
    again = start(run)
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 0, output
    assert [line["step"] for line in logged_lines(tmp_path / "tiny")] == [0, 1, 2, 2, 3, 4, 4]
