"""Environments as services: a real server process, killed, restarted, filled up and asked twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from agent_r1.chat import ChatRenderer
from agent_r1.codec import records
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import AgentEnv, RemoteEnv, ToolEnv
from agent_r1.envs.remote.server import EnvService
from agent_r1.errors import ConfigError, EnvServerError, EpisodeError, EpisodeLostError, MissingExtraError
from agent_r1.rewards import reward_functions
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.types import Action, Observation, SamplingParams, StepResult, StopReason, Task, ToolCall
from tests.helpers.ports import free_port

ROOT = Path(__file__).parents[3]
ENV = "tests.helpers.served_env:Counter"


def task_of(name: str = "t", **env_kwargs: Any) -> Task:
    prompt = ({"role": "user", "content": f"begin {name}"},)
    return Task(task_id=name, prompt=prompt, env_kwargs=env_kwargs, reward_model={"ground_truth": 0.1})


def say(text: str) -> Action:
    return Action(text=text, content=text, token_ids=(1, 2))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "agent_r1.cli", "env", "serve", *arguments]


@contextmanager
def server(*options: str, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server process and its address."""
    process = subprocess.Popen(
        command(ENV, "--port", str(port), *options), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith(f"serving {ENV} at "), line + (process.communicate()[1] if process.poll() else "")
        yield line.split()[-1], process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server() as (address, _):
        yield address


def notes(log: Path) -> list[str]:
    return log.read_text().splitlines()


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


# The wire


def through(to_json: Callable[[Any], Any], from_json: Callable[[Any], Any], value: Any) -> Any:
    return from_json(records.loads(records.dumps(to_json(value))))


def test_records_come_back_from_the_wire_exactly_as_they_went() -> None:
    call = ToolCall(name="f", arguments={"x": [1, 2.5, None, "\ud800"]}, call_id="call_0")
    action = Action(text="\ud800 é", content="c", token_ids=(5, 0, 2**40), tool_calls=(call,), parse_error="bad")
    assert through(records.action_to_json, records.action_from_json, action) == action
    action = Action(text="x", tool_calls=(call,), repairs=("call 1: trailing comma",))
    assert through(records.action_to_json, records.action_from_json, action) == action
    task = Task(
        task_id="a",
        prompt=({"role": "user", "content": "x"},),
        env_kwargs={"n": {"deep": [1]}},
        data_source="d",
        difficulty=3,
        control_tokens=True,
    )
    assert through(records.task_to_json, records.task_from_json, task) == task
    for seen in (
        Observation(token_ids=(3, 1, 2)),
        Observation(text="raw", images=(b"\x89PNG", "http://x/y.png")),
        Observation(messages=task.prompt, tools=({"type": "function"},), anchor="s", privileged="p"),
        Observation(messages=({"role": "tool", "content": [{"type": "image", "image": b"\x89PNG"}, {"text": "t"}]},)),
    ):
        result = StepResult(observation=seen, reward=0.1 + 0.2, truncated=True, info={"k": [1, {"a": None}]})
        assert through(records.result_to_json, records.result_from_json, result) == result
    over = StepResult(observation=None, done=True, answer="12")
    assert through(records.result_to_json, records.result_from_json, over) == over


def test_a_picture_comes_back_with_the_same_pixels() -> None:
    picture = Image.new("RGB", (2, 1), (1, 2, 3))
    seen = through(
        records.observation_to_json, records.observation_from_json, Observation(text="look", images=(picture,))
    )
    assert list(seen.images[0].pil().tobytes()) == [1, 2, 3, 1, 2, 3]


def test_what_json_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="a set cannot be sent"):
        records.dumps({"a": {1}})


# Episodes


def play(url: str, *texts: str, task: Task | None = None, **options: Any) -> list[Any]:
    """The observation and the step results of one episode."""

    async def run() -> list[Any]:
        env = RemoteEnv(url, **options)
        try:
            seen: list[Any] = [await env.reset(task or task_of())]
            for text in texts:
                seen.append(await env.step(say(text)))
            return seen
        finally:
            await env.close()

    return asyncio.run(run())


def test_an_episode_on_a_server_is_the_episode_here(url: str, tmp_path: Path) -> None:
    from tests.helpers.served_env import Counter

    async def here() -> list[Any]:
        env = Counter(log=str(tmp_path / "here"))
        return [
            await env.reset(task_of()),
            await env.step(say("a")),
            await env.step(say("b")),
            await env.step(say("end")),
        ]

    there = play(url, "a", "b", "end", args={"log": str(tmp_path / "there")})
    assert there == asyncio.run(here())
    wait_for(lambda: len(notes(tmp_path / "there")) == 5)
    assert notes(tmp_path / "there") == ["reset t", "step 1 t", "step 2 t", "step 3 t", "close t"]


@pytest.mark.whole
def test_64_episodes_at_once_keep_their_own_worlds(url: str) -> None:
    async def episode(number: int) -> None:
        env = RemoteEnv(url)
        name = f"task-{number}"
        assert (await env.reset(task_of(name))).messages == task_of(name).prompt
        for step in range(1, 6):
            result = await env.step(say("wait 0.01"))
            assert result.observation is not None
            assert (result.observation.messages or ())[-1]["content"] == f"{name}: {step}"
        assert (await env.step(say("end"))).done
        await env.close()

    async def run() -> None:
        await asyncio.gather(*(episode(number) for number in range(64)))
        async with httpx.AsyncClient() as client:
            health = (await client.get(f"{url}/health")).json()
        assert health["episodes_open"] == 0
        assert (health["name"], health["max_episodes"]) == (ENV, 256)
        assert health["uptime_seconds"] > 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("texts", "env_kwargs", "expected"),
    [
        (["raise now"], {}, "ValueError: the world broke: now"),
        (["unsendable"], {}, "a object cannot be sent as JSON"),
        ([], {"broken": True}, "OSError: no room for the world"),
    ],
)
def test_an_error_of_the_environment_is_an_env_error_with_its_traceback(
    url: str, texts: list[str], env_kwargs: dict[str, Any], expected: str
) -> None:
    with pytest.raises(EpisodeError) as caught:
        play(url, *texts, task=task_of("t", **env_kwargs))
    assert caught.value.reason is StopReason.ENV_ERROR
    assert "Traceback" in caught.value.details
    assert expected in caught.value.details


def test_arguments_the_environment_does_not_take_are_an_env_error(url: str) -> None:
    with pytest.raises(EpisodeError, match="unexpected keyword argument 'lag'"):
        play(url, args={"lag": 1})


# Asking twice


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> httpx.Response:
    return await client.post(path, content=records.dumps(body))


def with_client(url: str, run: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            await run(client)

    asyncio.run(main())


@pytest.mark.whole
def test_a_retried_request_is_answered_from_memory_and_never_run_twice(url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def run(client: httpx.AsyncClient) -> None:
        begin = {
            "request_id": "twice",
            "task": records.task_to_json(task_of(reset_seconds=0.1)),
            "args": {"log": str(log)},
        }
        resets = await asyncio.gather(*(post(client, "/episodes", **begin) for _ in range(3)))
        assert len({answer.content for answer in resets}) == 1
        step = {"request_id": "s1", "step": 1, "action": records.action_to_json(say("wait 0.1"))}
        steps = await asyncio.gather(*(post(client, "/episodes/twice/step", **step) for _ in range(3)))
        steps.append(await post(client, "/episodes/twice/step", **step))
        assert [answer.status_code for answer in steps] == [200] * 4
        assert len({answer.content for answer in steps}) == 1
        second = {**step, "request_id": "s2", "step": 2}
        assert (await post(client, "/episodes/twice/step", **second)).status_code == 200
        for late in (step, {**step, "request_id": "s3", "step": 4}, {**step, "request_id": "s3", "step": 2}):
            answer = await post(client, "/episodes/twice/step", **late)
            assert (answer.status_code, answer.json()["error"]["kind"]) == (409, "out_of_order")
        assert (await client.delete("/episodes/twice")).json()["closed"] is True
        assert (await client.delete("/episodes/twice")).json()["closed"] is False

    with_client(url, run)
    assert notes(log) == ["reset t", "step 1 t", "step 2 t", "close t"]


def test_a_failed_step_that_is_retried_fails_from_memory(url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def run(client: httpx.AsyncClient) -> None:
        await post(client, "/episodes", request_id="f", task=records.task_to_json(task_of()), args={"log": str(log)})
        step = {"request_id": "s1", "step": 1, "action": records.action_to_json(say("raise it"))}
        answers = [await post(client, "/episodes/f/step", **step) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [500, 500]
        await client.delete("/episodes/f")

    with_client(url, run)
    assert notes(log) == ["reset t", "step 1 t", "close t"]


@pytest.mark.whole
def test_a_step_slower_than_the_read_timeout_runs_once_and_is_answered_late(url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    seen = play(url, "wait 0.8", "b", args={"log": str(log)}, read_seconds=0.3, pause_seconds=0.05, retries=8)
    assert [result.observation.messages[-1]["content"] for result in seen[1:]] == ["t: 1", "t: 2"]
    wait_for(lambda: len(notes(log)) == 4)
    assert notes(log) == ["reset t", "step 1 t", "step 2 t", "close t"]


@pytest.mark.whole
def test_an_answer_to_another_request_is_not_taken(url: str) -> None:
    """A proxy hands over the answer of an earlier request first, as a shifted connection would."""
    answers: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0
        )
        body = await reader.readexactly(length)
        method, path, _ = head.split(b"\r\n")[0].decode().split()
        async with httpx.AsyncClient() as client:
            answer = await client.request(method, url + path, content=body)
        answers.append(answer.content)
        # The second step is first answered with what the first one was.
        content = answers[-2] if path.endswith("/step") and len(answers) == 4 else answer.content
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def run() -> list[str]:
        proxy = await asyncio.start_server(relay, "127.0.0.1", 0)
        async with proxy:
            port = proxy.sockets[0].getsockname()[1]
            env = RemoteEnv(f"http://127.0.0.1:{port}", pause_seconds=0.01)
            await env.reset(task_of())
            results = [await env.step(say("a")), await env.step(say("b"))]
            await env.close()
        return [(result.observation.messages or ())[-1]["content"] for result in results if result.observation]

    assert asyncio.run(run()) == ["t: 1", "t: 2"]
    assert len(answers) == 6  # health, reset, step 1, step 2 and again, delete


# Servers that go away


@pytest.mark.whole
def test_an_episode_is_lost_when_the_server_is_killed_and_the_next_one_finds_the_new_server() -> None:
    port = free_port()

    async def run() -> None:
        with server(port=port) as (url, first):
            env, other = RemoteEnv(url, pause_seconds=0.2, retries=8), RemoteEnv(url, pause_seconds=0.2, retries=8)
            await env.reset(task_of())
            await other.reset(task_of("other"))
            assert (await env.step(say("a"))).reward > 0
            first.send_signal(signal.SIGKILL)
            first.wait()
            stepping = asyncio.create_task(env.step(say("b")))  # asks while nobody listens
            await asyncio.sleep(0.1)
            with server(port=port) as (again, _):
                assert again == url
                with pytest.raises(EpisodeLostError, match=r"step 2: .* has no episode .*restarted"):
                    await stepping
                await env.close()
                fresh = RemoteEnv(url)
                assert (await fresh.reset(task_of("fresh"))).messages == task_of("fresh").prompt
                await fresh.close()
                await other.close()

    asyncio.run(run())


@pytest.mark.whole
def test_a_rollout_survives_a_kill_of_its_server(renderer: ChatRenderer) -> None:
    port = free_port()
    texts = ["a", "b", "end"]

    class KillingEngine(ScriptedEngine):
        """Kills the server before the second step of the first episode, and starts another."""

        async def generate(self, prompt_ids: Any, sampling: SamplingParams) -> Any:
            if len(self.requests) == 1:
                servers[0][1].send_signal(signal.SIGKILL)
                servers[0][1].wait()
                context = server(port=port)
                contexts.append(context)
                servers.append(context.__enter__())
            return await super().generate(prompt_ids, sampling)

    end = renderer.stop_ids[0]
    ids = [(*renderer.encode_rendered(text), end) for text in ["a", "b", *texts]]
    contexts = [server(port=port)]
    servers = [contexts[0].__enter__()]
    try:
        rollout = Rollout(
            engine=KillingEngine(ids),
            renderer=renderer,
            reward=reward_functions.get("none"),
            make_env=lambda task: RemoteEnv(servers[0][0], pause_seconds=0.1),
            limits=RolloutLimits(max_steps=4, retries=1),
        )
        [group] = asyncio.run(rollout.run([task_of()], group_size=1, sampling=SamplingParams(max_tokens=8), seed=0))
    finally:
        for context in contexts:
            context.__exit__(None, None, None)
    [trajectory] = group
    assert (trajectory.stop_reason, trajectory.num_retries) == (StopReason.DONE, 1)
    assert [step.action.text for step in trajectory.steps] == texts


def test_nobody_at_the_address_is_one_clear_error() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(EnvServerError, match=rf"health check: no answer from the environment server at {url} in 2 att"):
        play(url, retries=1, pause_seconds=0.01)


def test_episodes_that_begin_together_share_one_health_check() -> None:
    paths: list[str] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        paths.append((await reader.readline()).decode().split()[1])
        writer.close()

    async def run() -> list[Any]:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listener:
            url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            envs = [RemoteEnv(url, retries=0) for _ in range(8)]
            results = await asyncio.gather(*(env.reset(task_of()) for env in envs), return_exceptions=True)
            for env in envs:
                await env.close()
            return results

    results = asyncio.run(run())
    assert all(isinstance(result, EnvServerError) for result in results)
    assert paths == ["/health"]


# Limits of the server


@pytest.mark.whole
def test_a_full_server_answers_503_and_a_client_waits_for_a_place() -> None:
    async def run(url: str) -> None:
        first, second = RemoteEnv(url), RemoteEnv(url, pause_seconds=0.05)
        await first.reset(task_of("first"))
        async with httpx.AsyncClient(base_url=url) as client:
            answer = await post(client, "/episodes", request_id="x", task=records.task_to_json(task_of()))
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        impatient = RemoteEnv(url, wait_seconds=0.5)
        with pytest.raises(EnvServerError, match=r"no slot for another episode in 0\.5 s"):
            await impatient.reset(task_of())
        await impatient.close()
        waiting = asyncio.create_task(second.reset(task_of("second")))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await first.close()
        assert (await asyncio.wait_for(waiting, 10)).messages == task_of("second").prompt
        await second.close()

    with server("--max-episodes", "1") as (url, _):
        asyncio.run(run(url))


@pytest.mark.whole
def test_idle_episodes_are_closed_and_busy_ones_are_not(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def run(url: str) -> None:
        idle = RemoteEnv(url, args={"log": str(log)})
        busy = RemoteEnv(url)
        await idle.reset(task_of("idle"))
        await busy.reset(task_of("busy"))
        assert (await busy.step(say("wait 1.5"))).reward > 0
        assert notes(log) == ["reset idle", "close idle"]
        with pytest.raises(EpisodeLostError):
            await idle.step(say("a"))
        await idle.close()
        await busy.close()

    with server("--idle-seconds", "0.4") as (url, _):
        asyncio.run(run(url))


@pytest.mark.whole
def test_shutdown_closes_the_environments(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def run(url: str, process: subprocess.Popen[str]) -> None:
        env = RemoteEnv(url, args={"log": str(log)})
        await env.reset(task_of())
        process.send_signal(signal.SIGINT)
        await asyncio.to_thread(process.wait, 20)
        await env.close()

    with server() as (url, process):
        asyncio.run(run(url, process))
        assert process.returncode == 0
    assert notes(log) == ["reset t", "close t"]


@pytest.mark.whole
def test_an_episode_that_is_given_up_during_its_reset_is_closed(url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def run() -> None:
        env = RemoteEnv(url, args={"log": str(log)})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(env.reset(task_of(reset_seconds=30)), 0.5)
        await env.close()

    asyncio.run(run())
    assert notes(log) == ["reset t", "close t"]


# The command line


@pytest.mark.whole
@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("no_such_module", "there is no module 'no_such_module'"),
        ("tests.helpers.served_env:Countr", "Did you mean 'Counter'?"),
        ("tests.helpers.served_env:ROOT", "has no 'ROOT'"),
        ("agent_r1.envs.wrappers", "must define exactly one environment, found: "),
    ],
)
def test_a_wrong_name_is_one_clear_error(reference: str, expected: str) -> None:
    result = subprocess.run(command(reference), cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert expected in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.whole
def test_files_of_the_folder_it_is_served_from_may_import_each_other(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text("WORDS = 'hello'\n")
    (tmp_path / "maze.py").write_text(
        "from agent_r1 import AgentEnv, Observation, StepResult\n"
        "from .words import WORDS\n"
        "class Maze(AgentEnv):\n"
        "    async def reset(self, task):\n"
        "        return Observation(text=WORDS)\n"
        "    async def step(self, action):\n"
        "        return StepResult(observation=None, done=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(
        command("maze:Maze", "--port", "0"), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:

        async def first() -> str | None:
            env = RemoteEnv(process.stdout.readline().split()[-1])
            text = (await env.reset(task_of())).text
            await env.close()
            return text

        assert asyncio.run(first()) == "hello"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.whole
def test_a_taken_port_is_one_clear_error(url: str) -> None:
    port = url.rpartition(":")[2]
    result = subprocess.run(command(ENV, "--port", port), cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr


@pytest.mark.whole
def test_a_module_of_the_current_folder_with_one_environment_needs_no_attribute(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text((ROOT / "tests" / "helpers" / "served_env.py").read_text())
    process = subprocess.Popen(
        command("mine", "--port", "0"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().split()[-1]
        assert len(play(address, "a")) == 2
    finally:
        process.kill()
        process.communicate()


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.url=127\.0\.0\.1:8700 is not a URL"):
        RemoteEnv("127.0.0.1:8700")


def test_names_and_service_are_there() -> None:
    assert AgentEnv.registry.get("remote") is RemoteEnv
    assert EnvService(ToolEnv, name="tool").health()["episodes_open"] == 0


def test_a_remote_environment_without_its_library_is_refused_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'agent-r1\[remote\]'"):
        RemoteEnv("http://127.0.0.1:1")
