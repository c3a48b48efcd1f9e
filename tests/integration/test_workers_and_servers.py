"""Episodes in worker processes, and the engine in servers: both are killed in the middle of a run.

Workers ask the run's process, which asks the servers, so this is the same run as one in a single process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agent_r1
from agent_r1.errors import EngineLostError
from agent_r1.types import Trajectory
from tests.helpers import commands
from tests.helpers.engine_server import StartableServers, startable_servers, wait_for
from tests.helpers.optional import needs
from tests.helpers.worker_runs import metrics_of, recipe_in, tiny_run

pytestmark = pytest.mark.whole

PROCESSES = ["rollout.workers=processes", "rollout.processes.num_workers=2"]
RAY = ["rollout.workers=ray", "rollout.ray.address=local", "rollout.ray.num_workers=2"]
GENERATE = "/inference/v1/generate"


@pytest.fixture
def startable(tmp_path: Path) -> Iterator[StartableServers]:
    with startable_servers(tmp_path) as servers:
        yield servers


def on(startable: StartableServers, *extra: str) -> list[str]:
    return ["engine=vllm", "engine.servers.start=1", f"engine.servers.python={startable.python}", *extra]


def when_started(startable: StartableServers, **fault: Any) -> threading.Thread:
    """Let the first server fail as soon as it is there."""

    def set_fault() -> None:
        wait_for(lambda: startable.servers, seconds=120)
        startable.servers[0].fault(**fault)

    thread = threading.Thread(target=set_fault)
    thread.start()
    return thread


def sampled(trajectories: list[Trajectory]) -> list[Any]:
    """Tokens, versions and rewards."""
    return [
        (trajectory.outcome_reward, [(step.action_ids, step.policy_versions) for step in trajectory.steps])
        for trajectory in trajectories
    ]


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param(PROCESSES, id="processes"),
        pytest.param(RAY, id="ray", marks=[pytest.mark.slow, pytest.mark.filterwarnings("default")]),
    ],
)
def test_a_worker_and_a_server_that_are_killed_change_nothing(
    startable: StartableServers, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    if workers == RAY:
        needs_ray()
        workers = [*workers, "rollout.ray.env_vars=[TEST_KILL_ONCE]"]
    recipe = recipe_in(tmp_path)
    commands.train(recipe, *tiny_run(tmp_path / "plain", model_folder), quiet=True)
    marker = tmp_path / "kill"
    marker.touch()
    monkeypatch.setenv("TEST_KILL_ONCE", str(marker))
    failing = when_started(startable, path=GENERATE, kind="die", after=20)
    with pytest.warns(RuntimeWarning, match=r"it is started again \(restart 1 of 3\)"):
        commands.train(recipe, *tiny_run(tmp_path / "apart", model_folder, *on(startable, *workers)), quiet=True)
    failing.join()
    expected, found = (agent_r1.load_trajectories(tmp_path / name / "tiny") for name in ("plain", "apart"))
    assert len(expected) == 2 * 2 * 6
    assert sampled(found) == sampled(expected)
    assert not marker.exists()
    assert os.getpid() not in {trajectory.reward_parts["pid"] for trajectory in found}
    lines = metrics_of(tmp_path / "apart" / "tiny")
    assert sum(line["error/lost_workers"] for line in lines) == 1
    assert sum(line["servers/0/restarts"] for line in lines) == 1
    assert sum(line["error/failed_rollouts"] for line in lines) == 0
    assert all(line["offpolicy/logprob_difference"] < 1e-4 for line in lines)


def test_workers_whose_servers_are_gone_end_with_one_line_and_a_checkpoint(
    startable: StartableServers, tmp_path: Path, model_folder: Path
) -> None:
    metrics = tmp_path / "runs" / "tiny" / "metrics.jsonl"

    def kill() -> None:
        wait_for(lambda: metrics.is_file() and metrics.read_text(), seconds=120)
        startable.servers[0].kill()

    killing = threading.Thread(target=kill)
    killing.start()
    overrides = [*on(startable, "engine.servers.restarts=0"), *PROCESSES, "trainer.steps=200", "trainer.save_every=100"]
    with (
        pytest.warns(RuntimeWarning, match="ended with status 137.* and is not started again"),
        pytest.raises(EngineLostError, match=r"no server of the engine can be used \(1 tried\)") as caught,
    ):
        commands.train(recipe_in(tmp_path), *tiny_run(tmp_path / "runs", model_folder, *overrides), quiet=True)
    killing.join()
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "runs" / "tiny" / "checkpoints").iterdir())


def needs_ray() -> None:
    """Skip where Ray is not installed."""
    needs("ray", reason="the extra `ray` is not installed")
