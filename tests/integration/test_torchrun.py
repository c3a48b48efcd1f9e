"""Whole runs on two ranks: they roll out and learn what one process does, and end together, whatever ends them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_r1.runs import list_checkpoints
from tests.helpers import commands
from tests.helpers.tiny_runs import tiny_overrides, write_tasks
from tests.helpers.torchrun import Torchrun

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the ranks in /proc")

LOSS = "tests.helpers.broken_loss:broken"
SCORE = "reward.function=tests.helpers.tiny_runs:score_variety"


@pytest.fixture
def arguments(tmp_path: Path, model_folder: Path) -> Callable[..., list[str]]:
    """The command line of a tiny run with two held-out tasks."""

    def make(name: str, *extra: str) -> list[str]:
        held_out = write_tasks(tmp_path / "held_out.jsonl", 2)
        settings = [f"run.name={name}", SCORE, f"data.eval=[{held_out}]", *extra]
        return ["train", *tiny_overrides(tmp_path, model_folder, *settings)]

    return make


def sampled(folder: Path, step: int) -> list[Any]:
    lines = (folder / "trajectories" / f"{step}.jsonl").read_text().splitlines()
    return [[(s["prompt_ids"], s["action_ids"], s["rollout_logprobs"]) for s in json.loads(x)["steps"]] for x in lines]


def metrics_of(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(("time/", "perf/"))} for line in lines]


@pytest.mark.slow
def test_two_ranks_train_what_one_process_trains(arguments: Callable[..., list[str]], tmp_path: Path) -> None:
    short = ("trainer.steps=2", "trainer.micro_batch_tokens=512")
    with Torchrun(*arguments("two", *short)) as run:
        assert run.finish() == 0, run.text
    commands.train(*arguments("one", *short)[1:], quiet=True)
    one, two = tmp_path / "one", tmp_path / "two"
    assert sampled(two, 1) == sampled(one, 1)
    for expected, found in zip(metrics_of(one), metrics_of(two), strict=True):
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
    files = {path.name for path in one.iterdir()}
    assert {path.name for path in two.iterdir()} == files
    # Only the first rank speaks.
    assert run.text.count("step 2/2") == run.text.count("of 2 held-out tasks solved") == 1
    # The model is whole, and any process opens it.
    summary = json.loads((two / "summary.json").read_text())
    assert summary["success_after"] == json.loads((one / "summary.json").read_text())["success_after"]
    again = commands.evaluate(*arguments("x")[1:], model=two / "hf", quiet=True)
    assert again.success == summary["success_after"]


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_with_one_line_and_one_process_resumes_it(
    arguments: Callable[..., list[str]], tmp_path: Path
) -> None:
    with Torchrun(*arguments("killed", "trainer.steps=400")) as run:
        run.wait_for(r"step +2/400")
        lost = run.process_of(1)
        os.kill(lost, signal.SIGKILL)
        started = time.monotonic()
        assert run.finish(seconds=60) != 0
    assert time.monotonic() - started < 60
    errors = [line for line in run.lines if line.startswith("error:")]
    assert len(errors) == 1, run.text
    assert f"rank 1 (process {lost} on " in errors[0]
    assert "The last checkpoint is that of step" in errors[0]
    saved = list_checkpoints(tmp_path / "killed" / "checkpoints")[-1][0]
    summary = commands.train(*arguments("killed", f"trainer.steps={saved + 1}")[1:], quiet=True)
    assert summary.steps == saved + 1
    assert [line["step"] for line in metrics_of(tmp_path / "killed") if "reward/outcome" in line] == [
        *range(1, saved + 2)
    ]


@pytest.mark.slow
def test_a_signal_saves_the_last_step_on_all_ranks(arguments: Callable[..., list[str]], tmp_path: Path) -> None:
    """It reaches only one of them, as when someone stops one process by its number."""
    with Torchrun(*arguments("stopped", "trainer.steps=400", "trainer.save_every=300")) as run:
        run.wait_for(r"step +2/400")
        os.kill(run.process_of(1), signal.SIGTERM)
        assert run.finish(seconds=60) != 0
    [(saved, checkpoint)] = list_checkpoints(tmp_path / "stopped" / "checkpoints")
    assert saved >= 2
    assert {path.name for path in (checkpoint / "shards").glob("*.distcp")} == {"__0_0.distcp", "__1_0.distcp"}
    assert run.text.count(f"Interrupted by SIGTERM. The last checkpoint is that of step {saved}") == 1


@pytest.mark.slow
def test_a_signal_ends_all_ranks_of_a_run_without_checkpoints(
    arguments: Callable[..., list[str]], tmp_path: Path
) -> None:
    with Torchrun(*arguments("stopped", "trainer.steps=400", "trainer.keep_checkpoints=0")) as run:
        run.wait_for(r"step +2/400")
        os.kill(run.process_of(1), signal.SIGTERM)
        assert run.finish(seconds=60) != 0
    assert not (tmp_path / "stopped" / "checkpoints").exists()
    assert run.text.count("Interrupted by SIGTERM. No checkpoint was written (trainer.keep_checkpoints=0)") == 1


@pytest.mark.slow
def test_an_error_of_one_rank_in_an_update_ends_all(arguments: Callable[..., list[str]]) -> None:
    with Torchrun(
        *arguments("broken", "trainer.steps=400", "trainer.micro_batch_tokens=384", f"algorithm.loss={{name: {LOSS}}}")
    ) as run:
        started = time.monotonic()
        run.wait_for("broken loss")
        assert run.finish(seconds=60) != 0
    assert time.monotonic() - started < 200
    assert "failed in the update of step" in run.text
    assert "this rank has a broken loss" in run.text
