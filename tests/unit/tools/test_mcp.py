"""Tools of real MCP servers: one over stdio, one over HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_r1.config import load_config
from agent_r1.envs import ToolEnv
from agent_r1.errors import ConfigError, EpisodeError, UnknownNameError
from agent_r1.images import read_picture
from agent_r1.runs import read_trajectories
from agent_r1.tools import BaseTool, CallOutcome, ToolContext, ToolRunner, run_call
from agent_r1.tools.builtin.mcp import McpServer, declare_servers, make_server
from agent_r1.types import StopReason, Task, ToolCall
from tests.helpers import commands
from tests.helpers.ports import free_port
from tests.helpers.tiny_runs import tiny_overrides

pytestmark = pytest.mark.whole  # servers are real processes, which take their time to start and to die

SERVER = str(Path(__file__).parents[2] / "helpers" / "mcp_server.py")
ROOT = Path(__file__).parents[3]
CONTEXT = ToolContext(task=Task(task_id="t", prompt=({"role": "user", "content": "?"},)))


@contextmanager
def http_server(port: int) -> Iterator[subprocess.Popen[bytes]]:
    log = subprocess.DEVNULL
    with subprocess.Popen([sys.executable, SERVER, str(port)], stdout=log, stderr=log) as process:
        try:
            wait_until(lambda: answers(port))
            yield process
        finally:
            process.kill()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
    except OSError:
        return False
    return True


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def is_running(process: int) -> bool:
    """A zombie counts as running: nobody has collected it."""
    return Path(f"/proc/{process}").exists()


def start_here() -> McpServer:
    return McpServer("stdio", command=[sys.executable, SERVER], env={"COLOUR": "blue"}, timeout=10)


@pytest.fixture
def stdio() -> Iterator[McpServer]:
    """A server that a test may break."""
    server = start_here()
    yield server
    asyncio.run(server.close())


@pytest.fixture(scope="module", params=["stdio", "http"])
def server(request: pytest.FixtureRequest) -> Iterator[McpServer]:
    """A server that many tests use, one after another."""
    if request.param == "stdio":
        server = start_here()
        yield server
        asyncio.run(server.close())
        return
    port = free_port()
    with http_server(port):
        server = McpServer("http", url=f"http://127.0.0.1:{port}/mcp", timeout=10)
        yield server
        asyncio.run(server.close())


async def ask(server: McpServer, name: str, /, **arguments: Any) -> CallOutcome:
    tools = {tool.name: tool for tool in server.tools()}
    return await run_call(tools, ToolCall(name=name, arguments=arguments), CONTEXT)


def answer(server: McpServer, name: str, /, **arguments: Any) -> CallOutcome:
    return asyncio.run(ask(server, name, **arguments))


# Both kinds


def test_tools_have_the_servers_own_schemas(server: McpServer) -> None:
    asyncio.run(server.connect())
    tools = {tool.name: tool for tool in server.tools()}
    assert list(tools) == ["add", "refuse", "wait", "picture", "process", "variable"]
    function = tools["add"].tool_schema["function"]
    assert (function["name"], function["description"]) == ("add", "Add two numbers.")
    assert function["parameters"]["properties"]["a"]["type"] == "integer"
    assert function["parameters"]["required"] == ["a", "b"]


def test_calls_are_answered_from_one_event_loop_after_another(server: McpServer) -> None:
    assert [answer(server, "add", a=number, b=1).response.text for number in range(3)] == ["1", "2", "3"]


def test_text_and_image_come_back(server: McpServer) -> None:
    from tests.helpers.mcp_server import PIXEL

    response, _, _ = asyncio.run(server.call("picture", {}))
    assert (response.text, response.images) == ("one pixel", (PIXEL,))
    outcome = answer(server, "picture")
    assert (outcome.status, outcome.response.text) == ("ok", "one pixel")
    assert outcome.response.images == (read_picture(PIXEL),)


def test_error_of_a_tool_is_read_by_the_model(server: McpServer) -> None:
    outcome = answer(server, "refuse", reason="closed on Sundays")
    assert outcome.status == "error"
    assert outcome.response.text.startswith("Error: Error executing tool refuse")


def test_wrong_arguments_are_read_by_the_model(server: McpServer) -> None:
    outcome = answer(server, "add", a="x")
    assert outcome.status in ("error", "invalid")
    assert "valid integer" in outcome.response.text


def test_fifty_calls_at_once_get_their_own_answers(server: McpServer) -> None:
    async def run() -> list[CallOutcome]:
        return await asyncio.gather(*(ask(server, "add", a=number, b=1000) for number in range(50)))

    assert [outcome.response.text for outcome in asyncio.run(run())] == [str(1000 + n) for n in range(50)]


def test_slow_call_times_out_and_others_go_on(server: McpServer) -> None:
    server.timeout = 0.5
    started = time.monotonic()

    async def run() -> tuple[CallOutcome, CallOutcome]:
        return await asyncio.gather(ask(server, "wait", seconds=60), ask(server, "add", a=1, b=2))

    asyncio.run(server.connect())
    slow, quick = asyncio.run(run())
    assert (slow.status, slow.response.text) == ("timeout", "Error: wait timed out after 0.5 seconds")
    assert quick.response.text == "3"
    assert time.monotonic() - started < 20
    server.timeout = 10
    assert answer(server, "add", a=2, b=2).response.text == "4"


def test_cancelled_call_leaves_the_server_usable(server: McpServer) -> None:
    async def run() -> None:
        await server.connect()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(server, "wait", seconds=60), 0.3)
        assert (await ask(server, "add", a=2, b=2)).response.text == "4"

    asyncio.run(run())


# Losing a server


def test_killed_stdio_server_fails_calls_in_flight_and_is_started_again(stdio: McpServer) -> None:
    first = int(answer(stdio, "process").response.text)

    async def run() -> list[Any]:
        waiting = [asyncio.create_task(ask(stdio, "wait", seconds=60)) for _ in range(3)]
        await asyncio.sleep(0.3)
        os.kill(first, signal.SIGKILL)
        return await asyncio.gather(*waiting, return_exceptions=True)

    lost = asyncio.run(run())
    assert [type(error) for error in lost] == [EpisodeError] * 3
    assert {error.reason for error in lost} == {StopReason.TOOL_ERROR}
    assert "the MCP server 'stdio' was lost while wait was running" in str(lost[0])
    second = int(answer(stdio, "process").response.text)
    assert second != first
    wait_until(lambda: not is_running(first))


def test_http_server_that_went_away_fails_clearly_and_is_found_when_it_is_back() -> None:
    port = free_port()
    server = McpServer("shop", url=f"http://127.0.0.1:{port}/mcp", timeout=10)
    with http_server(port) as process:
        assert answer(server, "add", a=1, b=2).response.text == "3"

        async def run() -> Any:
            waiting = asyncio.create_task(ask(server, "wait", seconds=60))
            await asyncio.sleep(0.3)
            process.kill()
            return (await asyncio.gather(waiting, return_exceptions=True))[0]

        lost = asyncio.run(run())
        assert isinstance(lost, EpisodeError)
        assert "the MCP server 'shop' was lost while wait was running" in str(lost)
    with pytest.raises(EpisodeError, match="cannot connect to the MCP server 'shop'"):
        answer(server, "add", a=1, b=2)
    with http_server(port):
        assert answer(server, "add", a=2, b=2).response.text == "4"
        asyncio.run(server.close())


def test_closing_ends_the_process_and_a_later_call_starts_another(stdio: McpServer) -> None:
    process = int(answer(stdio, "process").response.text)
    asyncio.run(stdio.close())
    assert not is_running(process)
    assert int(answer(stdio, "process").response.text) != process


USER = """
import sys, time
from agent_r1.tools.builtin.mcp import McpServer, declare_servers, tools_of
import asyncio
declare_servers({"s": McpServer("s", command=[sys.executable, sys.argv[1]])})
[tool] = tools_of("s/process")
print(asyncio.run(tool.execute({}))[0].text, flush=True)
if sys.argv[2] == "wait": time.sleep(60)
"""


@pytest.mark.parametrize("ending", ["killed", "exits"])
def test_server_does_not_outlive_its_parent(ending: str) -> None:
    command = [sys.executable, "-c", USER, SERVER, "wait" if ending == "killed" else "exit"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        process = int(user.stdout.readline())
        if ending == "killed":
            user.kill()
        assert user.wait(30) == (-signal.SIGKILL if ending == "killed" else 0)
    wait_until(lambda: not is_running(process) or "Z" in Path(f"/proc/{process}/stat").read_text().split()[2])


# Configuration


def test_variables_reach_the_command(stdio: McpServer) -> None:
    assert answer(stdio, "variable", name="COLOUR").response.text == "blue"
    assert answer(stdio, "variable", name="PYTEST_CURRENT_TEST").response.text == ""


def test_names_of_a_configuration_give_all_tools_or_one(stdio: McpServer) -> None:
    declare_servers({"tests": stdio})
    assert [tool.name for tool in BaseTool.find("mcp:tests/add")] == ["add"]
    assert len(BaseTool.find("mcp:tests")) == 6
    observation = ToolEnv(tools=["mcp:tests/add", "calculate"]).preview(CONTEXT.task)
    assert [tool["function"]["name"] for tool in observation.tools] == ["add", "calculate"]
    with pytest.raises(UnknownNameError, match=r"has no tool 'ad'\. Did you mean 'add'"):
        BaseTool.find("mcp:tests/ad")
    with pytest.raises(UnknownNameError, match=r"unknown MCP server 'test'\. Did you mean 'tests'"):
        BaseTool.find("mcp:test")


def test_the_end_of_a_runners_block_ends_named_servers_and_a_later_call_connects_again() -> None:
    declare_servers({"of_a_runner": start_here()})
    [tool] = BaseTool.find("mcp:of_a_runner/process")
    call = ToolCall(name="process", arguments={})

    async def pid() -> int:
        async with ToolRunner() as runner:
            outcome = await runner.call({"process": tool}, call, CONTEXT)
            assert is_running(int(outcome.response.text))
            return int(outcome.response.text)

    first, second = asyncio.run(pid()), asyncio.run(pid())
    assert first != second
    assert not is_running(first)
    assert not is_running(second)


@pytest.mark.parametrize("given", [{}, {"command": ["x"], "url": "http://x"}, {"command": ["x"], "timeout": 0}])
def test_settings_that_make_no_sense_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="MCP server 'x'"):
        McpServer("x", **given)


@pytest.mark.parametrize(
    ("command", "seconds", "reason"),
    [
        (["/nowhere/at-all"], 30, "/nowhere/at-all: No such file"),
        ([sys.executable, "-c", "raise SystemExit('no licence')"], 30, "no licence"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], 2, "no answer in 2 seconds"),
        (
            [
                sys.executable,
                "-c",
                "import sys, time; print('no database', file=sys.stderr, flush=True); time.sleep(60)",
            ],
            2,
            "no answer in 2 seconds: no database",
        ),
    ],
)
def test_server_that_does_not_start_says_why(command: list[str], seconds: float, reason: str) -> None:
    server = McpServer("broken", command=command, connect_timeout=seconds)
    with pytest.raises(ConfigError, match=f"cannot connect to the MCP server 'broken': .*{reason}"):
        server.tools()


HAND_MADE = """
import json, sys

def write(content):
    sys.stdout.buffer.write(content + b"\\n")
    sys.stdout.flush()

for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message.get("params", {})
    if "id" not in message:
        continue
    reply = {"result": {"content": [{"type": "text", "text": "answered"}]}}
    if method == "initialize":
        server = {"name": "x", "version": "1"}
        version = params["protocolVersion"]
        reply = {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}}
    elif method == "tools/list":
        reply = {"result": {"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]}}
    elif method != "tools/call":
        reply = {"error": {"code": -32601, "message": "no such method"}}
    elif params["arguments"].get("refuse"):
        reply = {"error": {"code": -32000, "message": "the shop is closed"}}
    else:
        write(b"\\xff\\xfe looking it up")
    write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}).encode())
"""


@pytest.fixture(scope="module")
def hand_made() -> Iterator[McpServer]:
    """A server without the library."""
    server = McpServer("hand_made", command=[sys.executable, "-c", HAND_MADE], timeout=10)
    yield server
    asyncio.run(server.close())


def test_a_server_with_two_tools_of_one_name_is_refused() -> None:
    ask = '{"name": "ask", "inputSchema": {"type": "object"}}'
    doubled = HAND_MADE.replace(ask, f"{ask}, {ask}")
    with pytest.raises(ConfigError, match="'hand_made': it lists 2 tools that are named 'ask'"):
        McpServer("hand_made", command=[sys.executable, "-c", doubled]).tools()


def test_a_server_that_prints_is_named_once_and_its_calls_are_answered(
    hand_made: McpServer, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.warns(RuntimeWarning, match="the MCP server 'hand_made' sends what is not a message") as warned:
        found = [answer(hand_made, "ask").response.text for _ in range(3)]
    assert found == ["answered"] * 3
    assert len(warned) == 1
    assert not caplog.records  # no traceback for each line


def test_an_error_with_the_code_of_a_lost_connection_is_read_by_the_model(hand_made: McpServer) -> None:
    asyncio.run(hand_made.connect())
    connection = hand_made._connection
    assert "the shop is closed" in answer(hand_made, "ask", refuse=True).response.text
    assert hand_made._connection is connection


def test_arguments_that_are_not_unicode_leave_the_connection_to_others(stdio: McpServer) -> None:
    process = answer(stdio, "process").response.text
    assert "not Unicode" in answer(stdio, "variable", name="\ud800").response.text
    assert answer(stdio, "process").response.text == process


def test_servers_stand_in_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "defaults: [agent_r1, _self_]\nmodel: {path: x}\n"
        "tools:\n  mcp:\n"
        f"    tests: {{command: [python, {SERVER}], timeout: 3}}\n    shop: {{url: 'http://localhost:1/mcp'}}\n"
    )
    config = load_config(tmp_path, ["tools.mcp.shop.timeout=5", "tools.mcp.more={url: 'http://localhost:2/mcp'}"])
    made = {name: make_server(name, given) for name, given in config.tools["mcp"].items()}
    assert made["tests"].command == ("python", SERVER)
    assert [server.timeout for server in made.values()] == [3, 5, 30]
    with pytest.raises(ConfigError, match=r"unknown key 'tools\.mcp\.shop\.timeou'\. Did you mean 'timeout'"):
        make_server("shop", {"timeou": 5})


def test_a_run_starts_its_servers_and_ends_them(tmp_path: Path, model_folder: Path) -> None:
    started = tmp_path / "pids"
    script = f"echo $$ >> {started}; exec {sys.executable} {SERVER}"
    commands.train(
        *tiny_overrides(tmp_path, model_folder, "trainer.steps=1", "tools.add.timeout=5"),
        f"tools.mcp.of_a_run.command=[sh, -c, '{script}']",
        "env.tools=['mcp:of_a_run/add', calculate]",
        quiet=True,
    )
    [pid] = started.read_text().split()
    assert not is_running(int(pid))
    [schema, _] = next(read_trajectories(tmp_path / "tiny" / "trajectories" / "1.jsonl")).steps[0].observation.tools
    assert schema["function"]["name"] == "add"
