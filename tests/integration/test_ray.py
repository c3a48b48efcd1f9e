"""`rollout.workers=ray` for real: actors, nodes, what travels, what is killed.

`make test-ray` runs all of it, the quickstart on two nodes of which one is killed among it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agent_r1
from agent_r1.errors import WorkersError
from tests.helpers import commands
from tests.helpers.optional import needs
from tests.helpers.ports import free_port
from tests.helpers.seeing_runs import seeing_recipe, seeing_run
from tests.helpers.tiny_runs import RECIPE
from tests.helpers.tiny_vlms import make_tiny_vlm
from tests.helpers.worker_runs import comparable, metrics_of, name_of, processes_below, recipe_in, tiny_run, wait_for
from tests.integration.test_runs import same_weights

needs("ray", reason="the extra `ray` is not installed")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # those of Ray are not ours
]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of one node with two CPUs, as `ray start --head` makes one."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield started
    started.shutdown()


def on(cluster: Any, *extra: str) -> list[str]:
    return ["rollout.workers=ray", f"rollout.ray.address={cluster.address}", *extra]


def test_workers_without_torch_make_the_same_run_and_one_that_is_killed_changes_nothing(
    cluster: Any, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_in(tmp_path)
    plain, ray, killed = (tmp_path / name for name in ("plain", "ray", "killed"))
    commands.train(recipe, *tiny_run(plain, model_folder), quiet=True)
    commands.train(recipe, *tiny_run(ray, model_folder, *on(cluster)), quiet=True)
    marker = tmp_path / "kill"
    marker.touch()
    monkeypatch.setenv("TEST_KILL_ONCE", str(marker))
    settings = on(cluster, "rollout.ray.env_vars=[TEST_KILL_ONCE]")
    commands.train(recipe, *tiny_run(killed, model_folder, *settings), quiet=True)
    expected = agent_r1.load_trajectories(plain / "tiny")
    assert len(expected) == 2 * 2 * 6
    for folder in (ray, killed):
        trajectories = agent_r1.load_trajectories(folder / "tiny")
        assert comparable(trajectories) == comparable(expected)
        assert same_weights(plain / "tiny", folder / "tiny")
        assert {trajectory.reward_parts["torch"] for trajectory in trajectories} == {0.0}
        pids = {trajectory.reward_parts["pid"] for trajectory in trajectories}
        assert os.getpid() not in pids
    assert not marker.exists()
    counts = [(line["error/lost_workers"], line["error/lost_rollouts"]) for line in metrics_of(killed / "tiny")]
    assert counts[0][0] == 1
    assert counts[0][1] >= 1
    assert counts[1] == (0, 0)
    assert [line["error/lost_workers"] for line in metrics_of(ray / "tiny")] == [0, 0]


def test_pictures_travel_and_workers_make_the_same_run_with_a_model_that_reads_images(
    cluster: Any, tmp_path: Path
) -> None:
    recipe, model = seeing_recipe(tmp_path), make_tiny_vlm("smolvlm", tmp_path / "model")
    # First: this process knows no picture but by its workers.
    commands.train(recipe, *seeing_run(recipe, tmp_path / "ray", model, *on(cluster)), quiet=True)
    commands.train(recipe, *seeing_run(recipe, tmp_path / "plain", model), quiet=True)
    expected, found = (agent_r1.load_trajectories(tmp_path / name / "seeing") for name in ("plain", "ray"))
    assert len(expected) == 2 * 2 * 3
    assert comparable(found) == comparable(expected)
    assert same_weights(tmp_path / "plain" / "seeing", tmp_path / "ray" / "seeing")


def test_a_cluster_that_is_not_there_is_an_error_at_once(tmp_path: Path, model_folder: Path) -> None:
    settings = ["rollout.workers=ray", f"rollout.ray.address=127.0.0.1:{free_port()}"]
    with pytest.raises(WorkersError, match=r"the Ray cluster at 127\.0\.0\.1:\d+ cannot be reached: .*refused"):
        commands.train(recipe_in(tmp_path), *tiny_run(tmp_path / "runs", model_folder, *settings), quiet=True)


def test_the_next_run_has_the_recipe_as_it_is_then(cluster: Any, tmp_path: Path, model_folder: Path) -> None:
    """And agents behind the gateway run in the workers."""
    for word in ("before", "after"):
        recipe = recipe_in(tmp_path, word=word)
        (recipe / "agents.py").write_text(AGENT)
        overrides = [
            *on(cluster),
            "trainer.steps=1",
            "data.agent_name=gateway",
            "agent.function=agents:solve",
        ]
        commands.train(recipe, *tiny_run(tmp_path / word, model_folder, *overrides), quiet=True)
        trajectories = agent_r1.load_trajectories(tmp_path / word / "tiny")
        assert {trajectory.vote for trajectory in trajectories} == {word}
        assert {len(trajectory.steps) for trajectory in trajectories} == {1}


AGENT = """
import json, urllib.request


def solve(task, base_url, api_key):
    body = {"model": "any", "messages": [dict(message) for message in task["prompt"]], "max_tokens": 6}
    request = urllib.request.Request(
        f"{base_url}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {api_key}"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"] or ""
"""


def test_a_tool_that_crashes_its_worker_every_time_ends_the_run_with_one_line_and_a_checkpoint(
    cluster: Any, tmp_path: Path, model_folder: Path
) -> None:
    recipe = recipe_in(tmp_path)
    text = (recipe / "reward_fn.py").read_text()
    (recipe / "reward_fn.py").write_text(
        text.replace(
            "    return {", "    if episode.steps[0].policy_versions[0] > 0:\n        os._exit(3)\n    return {"
        )
    )
    settings = on(cluster, "rollout.ray.max_losses=2", "trainer.save_every=100", "rollout.ray.num_workers=1")
    with pytest.raises(WorkersError, match="a rollout worker was lost 4 times in a row") as caught:
        commands.train(recipe, *tiny_run(tmp_path / "runs", model_folder, *settings), quiet=True)
    assert "\n" not in str(caught.value)
    assert [path.name for path in sorted((tmp_path / "runs" / "tiny" / "checkpoints").iterdir())] == ["step_1"]


# Two nodes, one killed; signals


def test_the_quickstart_learns_on_two_nodes_while_one_is_killed(tmp_path: Path, capsys: Any) -> None:
    """A node is killed in step 4 and another one joins in step 9."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    head_args = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head_args)
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    metrics = tmp_path / "runs" / "quickstart" / "metrics.jsonl"

    def steps_done() -> int:
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        return max((json.loads(line)["step"] for line in lines), default=0)

    command = [
        *(sys.executable, "-m", "agent_r1.cli", "train", str(RECIPE), f"run.folder={tmp_path / 'runs'}"),
        *on(cluster),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200"}
    output: list[str] = []
    with subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        reader = threading.Thread(target=lambda: output.extend(run.stdout or ()))
        reader.start()
        try:
            wait_for(lambda: steps_done() >= 4 or run.poll() is not None, 1800)
            cluster.remove_node(nodes[1], allow_graceful=False)
            wait_for(lambda: steps_done() >= 9 or run.poll() is not None, 1800)
            cluster.add_node(num_cpus=1)
            assert run.wait(timeout=1800) == 0, "".join(output)[-3000:]
        finally:
            if run.poll() is None:
                run.kill()
            reader.join()
            cluster.shutdown()
    summary = json.loads((tmp_path / "runs" / "quickstart" / "summary.json").read_text())
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [line for line in lines if "error/lost_workers" in line]
    counts = {
        name: sum(line[name] for line in steps)
        for name in ("error/lost_workers", "error/lost_rollouts", "error/failed_rollouts", "error/dropped_groups")
    }
    with capsys.disabled():
        print(f"\nsuccess {summary['success_before']:.3f} -> {summary['success_after']:.3f}; {counts}")
        print("workers per step:", [int(line["perf/workers"]) for line in steps])
        print(*[line for line in output if "rollout worker" in line], sep="")
    assert summary["success_after"] >= 0.9
    assert len(steps) == 20
    assert all(line["perf/episodes"] == 128 for line in steps)
    assert counts["error/lost_workers"] >= 1
    assert counts["error/lost_rollouts"] >= 1
    assert counts["error/failed_rollouts"] == 0
    assert min(line["perf/workers"] for line in steps) == 1
    assert steps[-1]["perf/workers"] == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_interrupted_or_killed_leaves_no_process_behind(
    tmp_path: Path, model_folder: Path, number: signal.Signals
) -> None:
    """Ctrl-C reaches the whole process group, as from a terminal."""
    folder = tmp_path / "runs"
    overrides = tiny_run(folder, model_folder, "trainer.steps=500", "trainer.save_every=500", "rollout.workers=ray")
    command = [sys.executable, "-m", "agent_r1.cli", "train", str(RECIPE), *overrides, "rollout.ray.address=local"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    metrics = folder / "tiny" / "metrics.jsonl"
    with subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as run:
        try:
            wait_for(lambda: (metrics.exists() and metrics.read_text()) or run.poll() is not None, 300)
            started = processes_below(run.pid)
            if number == signal.SIGINT:
                os.killpg(run.pid, number)
            else:
                run.send_signal(number)
            output, _ = run.communicate(timeout=120)
        finally:
            run.kill()
    assert sum("RolloutWorker" in name for name in started.values()) == 2
    if number != signal.SIGKILL:
        assert run.returncode == 128 + number, output[-3000:]
        assert "the same command resumes from there" in output
    wait_for(lambda: not [name for pid, name in started.items() if name_of(pid) == name], 120)
