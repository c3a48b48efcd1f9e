"""Servers that a run starts itself: what happens when their processes end. The processes are real."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from agent_r1.config import Config, load_config
from agent_r1.engines import Engine, engine_metrics, make_engine
from agent_r1.engines.http import pool, processes
from agent_r1.engines.http.commands import ServerCommand
from agent_r1.engines.http.processes import StartedServer
from agent_r1.errors import EngineLostError
from agent_r1.models import load_policy, merged_weights
from agent_r1.types import Completion, SamplingParams
from tests.helpers.engine_server import StartableServers, startable_servers, wait_for
from tests.unit.engines.test_http_engine import CONTEXT, PROMPT, change, local_completion

SAMPLING = SamplingParams(max_tokens=100, seed=1)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(pool, "FIRST_PAUSE", 0.1)
    monkeypatch.setattr(processes, "FIRST_PAUSE", 0.05)


# --- the processes of one server ---


Start = Callable[..., StartedServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server that runs a shell script, in which `$PORT` is its port."""
    started: list[StartedServer] = []

    def start_one(script: str, *, restarts: int = 2) -> StartedServer:
        def make_command(port: int) -> ServerCommand:
            return ServerCommand(arguments=("/bin/sh", "-c", script), variables={"PORT": str(port)})

        logs = tmp_path / f"logs{len(started)}"
        logs.mkdir()
        started.append(StartedServer(make_command, logs, restarts=restarts, start_seconds=60.0, silent_seconds=0.05))
        return started[-1]

    yield start_one
    for server in started:
        server.begin_stop()
        server.finish_stop()


def ended(server: StartedServer, **seen: bool) -> tuple[str, float | None]:
    wait_for(lambda: server.end() is not None)
    return server.note_end(**{"has_answered": False, "has_been_ready": True, **seen})


def test_a_server_that_ends_is_started_again_on_another_port_with_growing_pauses(start: Start, tmp_path: Path) -> None:
    server = start("echo on $PORT; echo no memory left; exit 3")
    urls, pauses = [server.url], []
    for restart in (1, 2):
        line, pause = ended(server)
        assert line.startswith(f"the server at {urls[-1]} ended with status 3, its last line: no memory left")
        assert f"it is started again (restart {restart} of 2)" in line
        assert server.problem is None
        pauses.append(pause)
        server.start()
        urls.append(server.url)
    line, pause = ended(server)
    assert pause is None
    assert "it ended 3 times in a row and is not started again" in line
    assert server.problem is not None
    assert "\n" not in line
    assert pauses == [processes.FIRST_PAUSE, 2 * processes.FIRST_PAUSE]
    assert [log.read_text().split()[1] for log in sorted((tmp_path / "logs0").iterdir())] == [
        url.split(":")[2] for url in urls
    ]


def test_an_answered_request_ends_the_row_and_a_server_that_was_never_ready_is_started_again_once(
    start: Start,
) -> None:
    server = start("exit 1", restarts=1)
    assert "restart 1 of 1" in ended(server)[0]
    server.start()
    assert "restart 1 of 1" in ended(server, has_answered=True)[0]
    server.start()
    assert ended(server)[1] is None
    other = start("exit 1", restarts=5)
    assert "restart 1 of 1" in ended(other, has_been_ready=False)[0]
    other.start()
    assert ended(other, has_been_ready=False)[1] is None


def test_a_process_that_runs_but_is_not_well_for_too_long_is_ended(start: Start) -> None:
    """It has more time until it is well for the first time."""
    server = start("exec sleep 600")
    time.sleep(0.1)
    server.end_if_silent()
    assert server._was_silent is None
    server.note_well()
    time.sleep(0.1)
    server.end_if_silent()
    wait_for(lambda: server.end() is not None)
    assert "was not well for 0 s and was ended" in str(server.end())
    assert server.note_end(has_answered=True, has_been_ready=True)[1] is not None


# --- an engine and the servers that it started ---


@pytest.fixture
def startable(tmp_path: Path) -> Iterator[StartableServers]:
    with startable_servers(tmp_path) as servers:
        yield servers


@pytest.fixture
def policy(model_folder: Path) -> nn.Module:
    return load_policy(str(model_folder), dtype="float32", device=torch.device("cpu"))


def config_of(startable: StartableServers, model: Path, **settings: Any) -> Config:
    base = load_config(None, [f"model.path={model}", "engine=vllm"])
    chosen = replace(base.engine.servers, python=str(startable.python), **{"start": 1, **settings})
    return replace(base, engine=replace(base.engine, servers=chosen))


def run(config: Config, policy: nn.Module, work: Any) -> Any:
    async def main() -> Any:
        engine = make_engine(config, policy, CONTEXT)
        try:
            async with asyncio.timeout(60):
                return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


@pytest.mark.whole
def test_a_server_killed_in_the_middle_of_requests_is_back_with_the_current_weights(
    startable: StartableServers, model_folder: Path, policy: nn.Module
) -> None:
    async def work(engine: Engine) -> tuple[list[Completion], dict[str, float]]:
        await engine.update_weights(merged_weights(policy), 0)
        await engine.update_weights(change(policy), 1)
        requests = [asyncio.create_task(engine.generate(PROMPT, SAMPLING)) for _ in range(3)]
        await asyncio.sleep(0.1)
        startable.servers[0].kill()
        return await asyncio.gather(*requests), engine_metrics(engine)

    with pytest.warns(RuntimeWarning) as warned:
        completions, metrics = run(config_of(startable, model_folder), policy, work)
    [line] = [str(warning.message) for warning in warned if issubclass(warning.category, RuntimeWarning)]
    assert "ended with status 137, its last line: serving as process" in line
    assert "it is started again (restart 1 of 3) and gets no requests before it has the weights" in line
    expected = local_completion(policy, sampling=SAMPLING)
    assert {completion.token_ids for completion in completions} == {expected.token_ids}
    assert {version for completion in completions for version in completion.policy_versions} == {1}
    assert metrics["servers/0/restarts"] == 1
    assert metrics["servers/ready"] == 1
    assert metrics["servers/retries"] == 3
    assert metrics["servers/discarded_tokens"] == 0
    first, second = (server.url for server in startable.servers)
    assert first != second


@pytest.mark.whole
def test_a_port_that_is_taken_when_the_server_binds_is_one_more_start(
    startable: StartableServers, model_folder: Path, policy: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_port = processes._free_port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        ports = [taken.getsockname()[1]]
        monkeypatch.setattr(processes, "_free_port", lambda: ports.pop() if ports else free_port())
        config = config_of(startable, model_folder)
        with pytest.warns(RuntimeWarning, match="Address already in use.*restart 1 of 1"):
            completion = run(config, policy, lambda engine: engine.generate(PROMPT, SAMPLING))
    assert completion.token_ids == local_completion(policy, sampling=SAMPLING).token_ids


@pytest.mark.whole
def test_a_server_that_always_dies_ends_the_run_with_one_line_after_its_restarts(
    startable: StartableServers, model_folder: Path, policy: nn.Module
) -> None:
    """It dies whenever it has been started again, as one whose GPU is full."""

    async def work(engine: Engine) -> None:
        await engine.generate(PROMPT, SAMPLING)
        startable.python.write_text("#!/bin/sh\necho CUDA out of memory\nexit 1\n")
        os.kill(startable.servers[0].process or 0, signal.SIGKILL)
        with pytest.raises(EngineLostError, match=r"no server .* \(1 tried\): .*CUDA out of memory") as caught:
            await engine.generate(PROMPT, SAMPLING)
        assert "it ended 3 times in a row" in str(caught.value)
        assert "\n" not in str(caught.value)

    with pytest.warns(RuntimeWarning) as warned:
        run(config_of(startable, model_folder, restarts=2), policy, work)
    lines = [str(warning.message) for warning in warned]
    assert [line.rpartition("; ")[2].split(" and ")[0] for line in lines] == [
        "it is started again (restart 1 of 2)",
        "it is started again (restart 2 of 2)",
        "it ended 3 times in a row",
    ]
