"""Whole runs on servers in processes of their own: conformance servers, which stand in for vLLM and SGLang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_r1.engines.http.probe import NUM_PREFIXES
from agent_r1.errors import EngineLostError
from tests.helpers import commands
from tests.helpers.engine_server import RunningServer, engine_server_process, startable_servers, wait_for
from tests.helpers.tiny_runs import score_variety, tiny_overrides, write_tasks

ROOT = Path(__file__).parents[2]
SAYS_ITS_BUILD = 'test "$1" = -c && echo \'{"installed": true, "has_scale_out": true}\' && exit'
"""What an interpreter with vLLM answers when it is asked for it."""

PROBE_REQUESTS = NUM_PREFIXES + 1
"""What a server is asked when it gets its first weights."""

pytestmark = pytest.mark.whole


@pytest.fixture
def pair(model_folder: Path) -> Iterator[list[RunningServer]]:
    with engine_server_process(model_folder) as first, engine_server_process(model_folder) as second:
        yield [first, second]


def on(servers: list[RunningServer], kind: str = "vllm") -> list[str]:
    return [f"engine={kind}", f"engine.servers.urls=[{','.join(server.url for server in servers)}]"]


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "tiny" / "metrics.jsonl").read_text().splitlines()]


def after_steps(folder: Path, count: int, action: Any) -> threading.Thread:
    """Do something when a run has logged so many steps."""
    file = folder / "tiny" / "metrics.jsonl"

    def watch() -> None:
        wait_for(lambda: file.is_file() and len(file.read_text().splitlines()) >= count, seconds=60)
        action()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_a_run_on_servers_is_the_run_of_the_local_engine(
    pair: list[RunningServer], tmp_path: Path, model_folder: Path, uninterrupted: Any
) -> None:
    """Same seeds, same weights, same log-probs: the same trajectories, on two servers instead of one process."""
    commands.train(*tiny_overrides(tmp_path, model_folder, *on(pair)), quiet=True, reward=score_variety)
    assert_same_samples(tmp_path / "tiny", uninterrupted())
    lines = [line for line in metrics_of(tmp_path) if "servers/ready" in line]
    assert len(lines) == 4
    assert all(line["offpolicy/logprob_difference"] < 1e-4 for line in lines)
    assert all(line["servers/0/requests"] > 0 and line["servers/1/requests"] > 0 for line in lines)
    assert all(line["time/weight_sync"] > 0 and line["perf/engine_queue"] >= 0 for line in lines)


@pytest.mark.slow
def test_a_server_killed_in_the_middle_of_a_run_is_left_out(
    pair: list[RunningServer], tmp_path: Path, model_folder: Path
) -> None:
    killing = after_steps(tmp_path, 2, pair[0].kill)
    with pytest.warns(RuntimeWarning, match=pair[0].url):
        summary = commands.train(
            *tiny_overrides(tmp_path, model_folder, *on(pair), "trainer.steps=6"), quiet=True, reward=score_variety
        )
    killing.join()
    assert summary.steps == 6
    lines = [line for line in metrics_of(tmp_path) if "servers/ready" in line]
    assert lines[0]["servers/ready"] == 2
    assert lines[-1]["servers/ready"] == 1
    assert lines[-1]["servers/0/requests"] == 0
    assert all(line["offpolicy/logprob_difference"] < 1e-4 for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        {"path": "/collective_rpc", "kind": "die", "after": 2},
        {"path": "/inference/v1/generate", "kind": "die", "after": 60},
        {"path": "/collective_rpc", "kind": "keep_weights", "after": 2},
        {"path": "/collective_rpc", "kind": "keep_head", "after": 2},
    ],
    ids=[
        "killed while it loads",
        "killed in a rollout",
        "keeps its weights",
        "keeps its head",
    ],
)
def test_a_run_goes_on_when_a_server_fails_in_an_update(
    pair: list[RunningServer], tmp_path: Path, model_folder: Path, fault: dict[str, Any]
) -> None:
    pair[0].fault(**fault)
    with pytest.warns(RuntimeWarning, match=pair[0].url):
        summary = commands.train(
            *tiny_overrides(tmp_path, model_folder, *on(pair), "optimizer.learning_rate=0.01"),
            quiet=True,
            reward=score_variety,
        )
    assert summary.steps == 4
    lines = [line for line in metrics_of(tmp_path) if "servers/ready" in line]
    assert all(line["offpolicy/logprob_difference"] < 1e-4 for line in lines)


def test_a_run_whose_servers_are_gone_ends_with_one_line_and_a_checkpoint(
    pair: list[RunningServer], tmp_path: Path, model_folder: Path
) -> None:
    def kill_both() -> None:
        for server in pair:
            server.kill()

    killing = after_steps(tmp_path, 2, kill_both)
    overrides = tiny_overrides(
        tmp_path,
        model_folder,
        *on(pair),
        "trainer.steps=200",
        "trainer.save_every=100",
        "engine.servers.lost_seconds=1",
    )
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(EngineLostError, match=r"no server of the engine can be used \(2 tried\)") as caught,
    ):
        commands.train(*overrides, quiet=True, reward=score_variety)
    killing.join()
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "tiny" / "checkpoints").iterdir())


@pytest.mark.slow
def test_a_server_that_stands_still_is_waited_for(
    pair: list[RunningServer], tmp_path: Path, model_folder: Path
) -> None:
    def stand_still() -> None:
        with pair[0].stopped():
            time.sleep(3.0)

    stopping = after_steps(tmp_path, 1, stand_still)
    summary = commands.train(*tiny_overrides(tmp_path, model_folder, *on(pair[:1])), quiet=True, reward=score_variety)
    stopping.join()
    assert summary.steps == 4


@pytest.mark.slow
def test_servers_serve_while_the_learner_updates(pair: list[RunningServer], tmp_path: Path, model_folder: Path) -> None:
    overrides = tiny_overrides(tmp_path, model_folder, *on(pair), "rollout.max_staleness=1", "trainer.steps=6")
    summary = commands.train(*overrides, quiet=True, reward=score_variety)
    assert summary.steps == 6
    lines = [line for line in metrics_of(tmp_path) if "servers/ready" in line]
    assert max(line["offpolicy/staleness_max"] for line in lines) == 1
    assert all(line["servers/discarded_tokens"] == 0 for line in lines)


@pytest.mark.slow
def test_evaluation_and_check_use_the_servers(pair: list[RunningServer], tmp_path: Path, model_folder: Path) -> None:
    held_out = write_tasks(tmp_path / "held_out.jsonl", count=2)
    overrides = tiny_overrides(tmp_path, model_folder, *on(pair, "http"))
    evaluation = commands.evaluate(*overrides, f"data.eval=[{held_out}]", quiet=True)
    assert evaluation.metrics["eval/all/rows"] == 2
    report = commands.check(*overrides, groups=1, members=2, quiet=True)
    results = {result.title: result for result in report.results}
    assert results["engine and trainer"].status == "ok"
    assert results["tokens in the loss"].status == "ok"
    requests = [server.state()["calls"].count("/inference/v1/generate") for server in pair]
    assert min(requests) >= 2 * PROBE_REQUESTS
    assert sum(requests) > 4 * PROBE_REQUESTS


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """An interpreter in whose environment `vllm` is the conformance server."""
    script = tmp_path / "python"
    serve = f'PYTHONPATH={ROOT} exec {sys.executable} -m tests.helpers.engine_server --pids {tmp_path} "$@"'
    script.write_text(f"#!/bin/sh\n{SAYS_ITS_BUILD}\n{serve}\n")
    script.chmod(0o755)
    return script


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.slow
def test_a_run_starts_and_stops_its_own_servers(tmp_path: Path, model_folder: Path, other_python: Path) -> None:
    overrides = ["engine=vllm", "engine.servers.start=2", f"engine.servers.python={other_python}"]
    summary = commands.train(*tiny_overrides(tmp_path, model_folder, *overrides), quiet=True, reward=score_variety)
    assert summary.steps == 4
    processes = [int(file.stem) for file in tmp_path.glob("*.pid")]
    assert len(processes) == 2
    assert not any(is_alive(process) for process in processes)


@pytest.mark.slow
def test_a_server_of_the_run_that_dies_twice_is_started_again_and_changes_nothing(
    tmp_path: Path, model_folder: Path, uninterrupted: Any
) -> None:
    """It dies in a rollout, then while it loads weights; the trajectories are those of the local engine."""
    with startable_servers(tmp_path) as startable:
        settings = ["engine=vllm", "engine.servers.start=1", f"engine.servers.python={startable.python}"]
        overrides = tiny_overrides(tmp_path, model_folder, *settings)

        def kill() -> None:
            startable.servers[0].fault(path="/inference/v1/generate", kind="die", after=3)
            wait_for(lambda: len(startable.servers) == 2, seconds=60)
            startable.servers[1].fault(path="/collective_rpc", kind="die", after=1)

        killing = after_steps(tmp_path, 1, kill)
        with pytest.warns(RuntimeWarning) as warned:
            summary = commands.train(*overrides, quiet=True, reward=score_variety)
        killing.join()
        assert len(startable.servers) == 3
    assert summary.steps == 4
    lines = [str(warning.message) for warning in warned]
    restarts = [line for line in lines if "it is started again (restart 1 of 3)" in line]
    assert len(restarts) == 2
    assert all("ended with status 137, its last line: serving as process" in line for line in restarts)
    assert_same_samples(tmp_path / "tiny", uninterrupted())
    lines = [line for line in metrics_of(tmp_path) if "servers/ready" in line]
    assert sum(line["servers/0/restarts"] for line in lines) == 2
    assert all(line["offpolicy/logprob_difference"] < 1e-4 for line in lines)


def assert_same_samples(folder: Path, other: Path) -> None:
    """Both runs sampled the same tokens."""
    names = sorted(file.name for file in (other / "trajectories").iterdir())
    for name in names:
        sampled = [
            [
                [step["action_ids"] for step in json.loads(line)["steps"]]
                for line in (each / "trajectories" / name).read_text().splitlines()
            ]
            for each in (folder, other)
        ]
        assert sampled[0] == sampled[1]


def test_a_server_that_cannot_start_is_started_once_more_and_ends_the_run(tmp_path: Path, model_folder: Path) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{SAYS_ITS_BUILD}\necho CUDA out of memory\nexit 1\n")
    script.chmod(0o755)
    overrides = ["engine=vllm", "engine.servers.start=1", f"engine.servers.python={script}"]
    with (
        pytest.warns(RuntimeWarning) as warned,
        pytest.raises(EngineLostError, match="ended with status 1, its last line: CUDA out of memory"),
    ):
        commands.train(*tiny_overrides(tmp_path, model_folder, *overrides), quiet=True, reward=score_variety)
    first, second = (str(warning.message) for warning in warned)
    assert "it is started again (restart 1 of 1)" in first
    assert "it ended 2 times in a row and is not started again" in second


def test_servers_that_a_run_started_do_not_outlive_it(tmp_path: Path) -> None:
    """A process that started one is killed with `kill -9`."""
    server = tmp_path / "python"
    server.write_text(f"#!/bin/sh\n{SAYS_ITS_BUILD}\ntouch {tmp_path}/$$.pid\nsleep 600 & exec sleep 600\n")
    server.chmod(0o755)
    program = f"""
import time
from agent_r1.config import load_config
from agent_r1.engines.http.processes import start_servers
config = load_config(None, ["model.path=m", "engine=vllm", "engine.servers.start=1", "engine.servers.python={server}"])
servers = start_servers(config, 512, "float32")
time.sleep(600)
"""
    run = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        wait_for(lambda: list(tmp_path.glob("*.pid")), seconds=60)
        [started] = [int(file.stem) for file in tmp_path.glob("*.pid")]
        assert is_alive(started)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    wait_for(lambda: not is_alive(started), seconds=30)
