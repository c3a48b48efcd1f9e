"""What a served environment withstands: hanging calls, clients that go away, hostile requests and hosts."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from PIL import Image

from agent_r1.codec import records
from agent_r1.envs import RemoteEnv
from agent_r1.envs.remote.server import EnvService, ServiceLimits, create_app, make_access
from agent_r1.errors import ConfigError, EnvServerError, EpisodeError
from agent_r1.types import StopReason
from tests.helpers.served_env import Counter
from tests.unit.envs.test_env_service import ENV, ROOT, command, play, say, server, task_of, wait_for

LIMITS = ("--max-episodes", "8", "--call-seconds", "3", "--gone-seconds", "0.5", "--body-mb", "1")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server(*LIMITS) as (address, _):
        yield address


def begin_body(name: str, **env_kwargs: Any) -> dict[str, Any]:
    return {"request_id": name, "task": records.task_to_json(task_of(name, **env_kwargs))}


def post(url: str, path: str, body: Any, **options: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(url + path, content=content, timeout=20, **options)


def kind_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and kind; every refusal is JSON with a reason."""
    error = answer.json()["error"]
    assert error["message"]
    return answer.status_code, error["kind"]


def open_episodes(url: str) -> int:
    return int(httpx.get(f"{url}/health", timeout=20).json()["episodes_open"])


# Slots


@pytest.mark.whole
def test_hanging_resets_whose_clients_are_gone_give_their_slots_back(url: str) -> None:
    async def leave() -> None:
        async with httpx.AsyncClient(base_url=url) as client:
            bodies = [json.dumps(begin_body(f"gone-{n}", reset_seconds=3600)) for n in range(8)]
            calls = [asyncio.create_task(client.post("/episodes", content=body)) for body in bodies]
            while open_episodes(url) < 8:
                await asyncio.sleep(0.05)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(leave())
    started = time.monotonic()
    assert len(play(url, "a", pause_seconds=0.1)) == 2
    assert time.monotonic() - started < 2.5, "it waited for the deadline, not for the clients"
    wait_for(lambda: open_episodes(url) == 0)


@pytest.mark.whole
def test_call_beyond_its_deadline_is_504_and_frees_its_slot(url: str) -> None:
    answer = post(url, "/episodes", begin_body("slow", reset_seconds=3600))
    assert kind_of(answer) == (504, "deadline")
    wait_for(lambda: open_episodes(url) == 0)


@pytest.mark.whole
def test_step_that_refuses_to_be_cancelled_frees_its_slot(url: str) -> None:
    with pytest.raises(EpisodeError, match=r"step 1 .*took longer than 3 s") as caught:
        play(url, "cling 8")
    assert caught.value.reason is StopReason.ENV_ERROR
    assert open_episodes(url) == 0


def test_slots_are_freed_when_the_environment_hangs_in_close() -> None:
    class Clinging(Counter):
        async def close(self) -> None:
            await asyncio.sleep(3600)

    async def run() -> list[int]:
        service = EnvService(Clinging, name="c", limits=ServiceLimits(close_seconds=0.1, max_episodes=1))
        opened = []
        for number in range(3):
            await service.begin(begin_body(f"e{number}"))
            opened.append(service.health()["episodes_open"])
            await asyncio.wait_for(service.end(f"e{number}"), 5)
        return opened

    assert asyncio.run(run()) == [1, 1, 1]


def test_exit_in_the_environment_is_its_error_and_not_the_end_of_the_server(url: str) -> None:
    with pytest.raises(EpisodeError, match="SystemExit"):
        play(url, "exit")
    assert len(play(url, "a")) == 2


@pytest.mark.parametrize("reward", ["inf", "-inf", "nan"])
def test_infinite_reward_is_a_clear_error_of_the_environment(url: str, reward: str) -> None:
    with pytest.raises(EpisodeError, match=f"returned is {reward}; rewards must be finite"):
        play(url, f"infinite {reward}")


@pytest.mark.whole
def test_retried_request_still_finds_its_answer_after_the_connection_broke(url: str) -> None:
    """A break shorter than --gone-seconds costs nothing."""
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/episodes", content=json.dumps(begin_body("again", reset_seconds=0.6)), timeout=0.3)
    assert post(url, "/episodes", begin_body("again", reset_seconds=0.6)).status_code == 200
    assert httpx.delete(f"{url}/episodes/again").json()["closed"] is True


# Requests


def broken_png() -> str:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), (1, 2, 3)).save(file, format="PNG")
    return base64.b64encode(file.getvalue()[:60]).decode()


def with_image(image: Any) -> dict[str, Any]:
    content = [{"type": "image", "image": image}]
    return {**begin_body("i"), "task": {"task_id": "i", "prompt": [{"role": "user", "content": content}]}}


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"", 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[1]", 400, "expected a JSON object, got list"),
        (b"[" * 200_000, 400, "nested too deeply"),
        (b'{"a":' * 100_000, 400, "nested too deeply"),
        (b'{"step": ' + b"9" * 5000 + b"}", 400, "not JSON"),
        ({}, 422, "request_id must be text, got NoneType"),
        ({"request_id": 3}, 422, "request_id must be text, got int"),
        ({"request_id": "a/b"}, 422, "request_id must be 1 to 128 letters"),
        ({"request_id": "x" * 1000}, 422, "request_id must be 1 to 128 letters"),
        ({"request_id": "a"}, 422, "task must be an object, got NoneType"),
        ({"request_id": "a", "task": {}}, 422, "task has no task_id, prompt"),
        ({"request_id": "a", "task": {"task_id": "t", "prompt": 5}}, 422, "task.prompt must be a list, got int"),
        ({"request_id": "a", "task": {"task_id": "t", "prompt": [1]}}, 422, "task.prompt[0] must be an object"),
        ({"request_id": "a", "task": {"task_id": "t", "prompt": [], "x": 1}}, 422, "task has unknown fields: 'x'"),
        ({**begin_body("a"), "args": [1]}, 422, "args must be an object, got list"),
        (with_image({"png": broken_png()}), 422, "is not a PNG that can be read"),
        (with_image({"png": "!!!"}), 422, "is not base64"),
        (with_image({"png": 3}), 422, "must be text, got int"),
        (with_image(7), 422, "must be an object with one of bytes, png, value"),
        (with_image({}), 422, "must be an object with one of bytes, png, value"),
    ],
    ids=str,
)
def test_malformed_request_is_refused_with_its_reason(url: str, body: Any, status: int, reason: str) -> None:
    answer = post(url, "/episodes", body)
    assert answer.status_code == status
    assert reason in answer.json()["error"]["message"]
    assert "Traceback" not in answer.text
    assert open_episodes(url) == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"step": "1"}, "step must be a whole number"),
        ({"step": True}, "step must be a whole number"),
        ({"step": 1.5}, "step must be a whole number"),
        ({"step": 10**30}, "step must be a whole number"),
        ({"action": None}, "action must be an object"),
        ({"action": {}}, "action has no text"),
        ({"action": {"text": "a", "token_ids": ["x"]}}, "action.token_ids[0] must be a whole number"),
        ({"action": {"text": "a", "token_ids": 5}}, "action.token_ids must be a list"),
        ({"action": {"text": "a", "tool_calls": [{"name": 1}]}}, "action.tool_calls[0] has no arguments"),
    ],
    ids=str,
)
def test_malformed_step_is_refused_with_its_reason(url: str, change: dict[str, Any], reason: str) -> None:
    body = {"request_id": "s", "step": 1, "action": {"text": "a"}, **change}
    answer = post(url, "/episodes/nobody/step", body)
    assert kind_of(answer) == (422, "invalid")
    assert reason in answer.json()["error"]["message"]


def test_body_that_says_it_is_too_large_is_refused_before_it_is_read(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"POST /episodes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000000\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


def test_body_that_does_not_say_how_large_it_is_is_cut_off(url: str) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield bytes(100_000)

    answer = httpx.post(f"{url}/episodes", content=chunks(), timeout=20)
    assert kind_of(answer) == (413, "too_large")


def test_client_is_told_that_a_request_is_too_large(url: str) -> None:
    with pytest.raises(EnvServerError, match=r"HTTP 413: the request is larger than 1 MB"):
        play(url, task=task_of("t", junk="x" * 3_000_000), retries=0)


def test_body_that_arrives_too_slowly_is_given_up() -> None:
    async def never() -> dict[str, Any]:
        await asyncio.sleep(3600)
        raise AssertionError

    status = asgi(ServiceLimits(body_seconds=0.1), never)
    assert status == 408


def asgi(limits: ServiceLimits, receive: Callable[[], Awaitable[dict[str, Any]]]) -> int:
    """The status of a request that is given to the application directly."""
    sent: list[dict[str, Any]] = []

    async def run() -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        app = create_app(EnvService(Counter, name="c", limits=limits))
        headers = [(b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": "/episodes", "headers": headers, "query_string": b""}
        await asyncio.wait_for(app(scope, receive, send), 10)  # type: ignore[arg-type]

    asyncio.run(run())
    return int(sent[0]["status"])


def test_unknown_paths_and_methods_are_refused_as_json(url: str) -> None:
    assert kind_of(httpx.get(f"{url}/")) == (404, "not_found")
    assert kind_of(httpx.get(f"{url}/docs")) == (404, "not_found")
    assert kind_of(httpx.get(f"{url}/episodes")) == (405, "not_allowed")


def test_second_beginning_of_an_episode_that_has_taken_steps_is_refused(url: str) -> None:
    assert post(url, "/episodes", begin_body("b")).status_code == 200
    step = {"request_id": "b", "step": 1, "action": records.action_to_json(say("a"))}
    assert "result" in post(url, "/episodes/b/step", step).json()
    assert kind_of(post(url, "/episodes", begin_body("b"))) == (409, "out_of_order")
    assert httpx.delete(f"{url}/episodes/b").json()["closed"] is True


# Who may ask


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Host": "evil.example"}, (403, "forbidden")),
        ({"Host": "evil.example:8700"}, (403, "forbidden")),
        ({"Host": "127.0.0.1.evil.example"}, (403, "forbidden")),
        ({"Host": ""}, (403, "forbidden")),
        ({"Origin": "http://evil.example"}, (403, "forbidden")),
        ({"Origin": "null"}, (403, "forbidden")),
        ({"Host": "LOCALHOST:1"}, None),
        ({"Host": "[::1]:80"}, None),
        ({"Host": "10.1.2.3"}, None),
    ],
    ids=str,
)
def test_host_names_of_others_and_web_pages_are_refused(
    url: str, headers: dict[str, str], expected: tuple[int, str] | None
) -> None:
    answer = httpx.get(f"{url}/health", headers=headers)
    assert answer.status_code == 200 if expected is None else kind_of(answer) == expected


@pytest.mark.whole
def test_server_that_others_can_reach_prints_the_token_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_R1_ENV_TOKEN", raising=False)
    with server("--host", "0.0.0.0") as (address, process):
        assert process.stdout is not None
        token = process.stdout.readline().split("AGENT_R1_ENV_TOKEN=")[1].split()[0]
        url = address.replace("0.0.0.0", "127.0.0.1")
        assert kind_of(httpx.get(f"{url}/health")) == (401, "unauthorized")
        assert kind_of(httpx.get(f"{url}/health", headers={"Authorization": "Bearer nö".encode()})) == (
            401,
            "unauthorized",
        )
        started = time.monotonic()
        with pytest.raises(EnvServerError, match=r"refuses access \(HTTP 401\): .*env\.token or AGENT_R1_ENV_TOKEN"):
            play(url)
        assert time.monotonic() - started < 5, "a refusal is not asked for again"
        assert len(play(url, "a", token=token)) == 2
        monkeypatch.setenv("AGENT_R1_ENV_TOKEN", token)
        assert len(play(url, "a")) == 2


def test_token_is_needed_wherever_it_was_given_or_others_can_listen() -> None:
    assert make_access("127.0.0.1", token=None).token is None
    assert make_access("::1", token=None).token is None
    assert make_access("127.0.0.1", token="t").token == "t"
    assert make_access("10.0.0.7", token="").token
    assert "t" not in repr(make_access("127.0.0.1", token="tttt")).split("host_names")[0].replace("Access(", "")


def test_token_that_no_header_can_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="printable ASCII"):
        RemoteEnv("http://127.0.0.1:1", token="a\nb")


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:99999", "http://127.0.0.1:x", "http://", "ftp://a", "http://a:0"]
)
def test_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is not a URL"):
        RemoteEnv(address)


def test_numbers_of_the_client_are_checked_all_at_once() -> None:
    with pytest.raises(ConfigError, match=r"env\.read_seconds=nan.*env\.retries=-1"):
        RemoteEnv("http://127.0.0.1:1", read_seconds=float("nan"), retries=-1)
    with pytest.raises(ConfigError, match=r"env\.pause_seconds=x"):
        RemoteEnv("http://127.0.0.1:1", pause_seconds="x")  # type: ignore[arg-type]


@pytest.mark.whole
@pytest.mark.parametrize(
    "options", [("--port", "70000"), ("--port", "-1"), ("--body-mb", "0"), ("--call-seconds", "nan")]
)
def test_options_out_of_range_are_one_clear_error(options: tuple[str, str]) -> None:
    result = subprocess.run(command(ENV, *options), cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_limits_of_a_service_are_checked_all_at_once() -> None:
    with pytest.raises(ConfigError, match=r"max_episodes=0\n.*call_seconds=nan"):
        ServiceLimits(max_episodes=0, call_seconds=float("nan"))
