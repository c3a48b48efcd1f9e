"""Engines behind HTTP, against conformance servers on loopback (`tests/helpers/engine_server.py`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from agent_r1.config import Config, load_config
from agent_r1.engines import Engine, engine_metrics, make_engine, stream_completion
from agent_r1.engines.http import client, pool
from agent_r1.engines.local.engine import LocalEngine
from agent_r1.errors import ConfigError, EngineError, EngineLostError, EngineRequestError
from agent_r1.models import load_policy, merged_weights
from agent_r1.training import check_config
from agent_r1.types import Completion, SamplingParams
from tests.helpers.engine_server import RunningServer, engine_server

GENERATE = {"vllm": "/inference/v1/generate", "sglang": "/generate"}
LOAD = {"vllm": "/collective_rpc", "sglang": "/update_weights_from_disk"}
SAMPLING = SamplingParams(max_tokens=12, seed=3)
PROMPT = (5, 6, 7)
CONTEXT = 256


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are looked after a hundred times as often."""
    monkeypatch.setattr(pool, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(pool, "FIRST_PAUSE", 0.02)


@pytest.fixture(scope="module")
def servers(model_folder: Path) -> Iterator[dict[str, list[RunningServer]]]:
    """Two servers of each kind, shared by the tests of this module."""
    with ExitStack() as stack:
        yield {
            kind: [stack.enter_context(engine_server(model_folder, kind)) for _ in range(2)]
            for kind in ("vllm", "sglang")
        }


@pytest.fixture(params=["vllm", pytest.param("sglang", marks=pytest.mark.whole)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(servers: dict[str, list[RunningServer]], kind: str) -> list[RunningServer]:
    for server in servers[kind]:
        server.fault()
    return servers[kind]


@pytest.fixture
def policy(model_folder: Path) -> nn.Module:
    return load_policy(str(model_folder), dtype="float32", device=torch.device("cpu"))


@cache
def base_config() -> Config:
    return load_config(None, ["model.path=given"])


def config_of(kind: str, servers: list[RunningServer], **settings: Any) -> Config:
    """A configuration with these servers; composing one takes longer than most tests."""
    base = base_config()
    chosen = replace(base.engine.servers, urls=[server.url for server in servers], **settings)
    return replace(base, engine=replace(base.engine, name=kind, servers=chosen))


def run(
    config: Config, policy: nn.Module, work: Callable[[Engine], Awaitable[Any]], *, context_length: int = CONTEXT
) -> Any:
    """The result of work with an engine, which is closed at the end."""

    async def main() -> Any:
        engine = make_engine(config, policy, context_length)
        try:
            async with asyncio.timeout(30):
                return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


def local_completion(policy: nn.Module, prompt: Any = PROMPT, sampling: SamplingParams = SAMPLING) -> Completion:
    return asyncio.run(LocalEngine(policy, context_length=CONTEXT).generate(prompt, sampling))


@torch.no_grad()
def scored(policy: nn.Module, completion: Completion) -> list[float]:
    """The log-probs that the policy gives the tokens."""
    rows = policy(input_ids=torch.tensor([[*PROMPT, *completion.token_ids]])).logits[0].log_softmax(-1)
    return [float(rows[len(PROMPT) - 1 + index, token]) for index, token in enumerate(completion.token_ids)]


def change(policy: nn.Module, factor: float = 1.05) -> Any:
    """Change every weight; gives the new ones."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(factor)
    return merged_weights(policy)


# --- sampling -------------------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_servers_sample_what_the_local_engine_samples(kind: str, pair: list[RunningServer], policy: nn.Module) -> None:
    sampling = SamplingParams(max_tokens=12, temperature=0.7, seed=11 if kind == "vllm" else 0, stop=(400,))
    completion = run(config_of("http", pair), policy, lambda engine: engine.generate(PROMPT, sampling))
    expected = local_completion(policy, sampling=sampling)
    assert completion.token_ids == expected.token_ids
    assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert set(completion.policy_versions) == {0}


@pytest.mark.whole
def test_greedy_log_probs_are_those_at_temperature_1(kind: str, pair: list[RunningServer], policy: nn.Module) -> None:
    sampling = SamplingParams(max_tokens=6, temperature=0.0)
    completion = run(config_of(kind, pair), policy, lambda engine: engine.generate(PROMPT, sampling))
    expected = local_completion(policy, sampling=sampling)
    assert completion.token_ids == expected.token_ids
    assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


@pytest.mark.whole
def test_a_stop_id_ends_a_completion_and_is_part_of_it(kind: str, pair: list[RunningServer], policy: nn.Module) -> None:
    first = local_completion(policy).token_ids[2]
    sampling = SamplingParams(max_tokens=12, seed=3, stop=(first,))
    completion = run(config_of(kind, pair), policy, lambda engine: engine.generate(PROMPT, sampling))
    assert completion.finish_reason == "stop"
    assert completion.token_ids[-1] == first
    assert first not in completion.token_ids[:-1]


@pytest.mark.whole
def test_the_models_own_end_token_is_no_stop_unless_it_is_asked_for(
    kind: str, pair: list[RunningServer], policy: nn.Module
) -> None:
    """SGLang ends there; the engine continues the request from the tokens it has."""
    head = policy.get_output_embeddings()
    eos = policy.config.eos_token_id
    head.weight = nn.Parameter(head.weight.detach().clone())
    with torch.no_grad():
        head.weight[eos] *= 40  # so that it is sampled
    found = [
        run(
            config_of(kind, pair),
            policy,
            lambda engine, seed=seed: engine.generate(PROMPT, SamplingParams(max_tokens=12, seed=seed)),
        )
        for seed in range(3)
    ]
    assert any(eos in completion.token_ids[:-1] for completion in found)
    assert {(len(completion.token_ids), completion.finish_reason) for completion in found} == {(12, "length")}


@pytest.mark.whole
def test_an_engine_that_cannot_stream_gives_its_tokens_at_once(
    kind: str, pair: list[RunningServer], policy: nn.Module
) -> None:
    async def stream(engine: Engine) -> list[Any]:
        return [new async for new in stream_completion(engine, PROMPT, SAMPLING)]

    [only] = run(config_of(kind, pair), policy, stream)
    assert only.completion.token_ids == only.token_ids == local_completion(policy).token_ids


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ((), SAMPLING, "the prompt is empty"),
        ((5, 10**6), SAMPLING, "token ids from 5 to 1000000"),
        ((-1,), SAMPLING, "token ids from -1"),
        (PROMPT, SamplingParams(max_tokens=CONTEXT), "do not fit a context of 256"),
        (PROMPT, SamplingParams(max_tokens=4, temperature=0.001), "temperature is 0.001"),
        (PROMPT, SamplingParams(max_tokens=4, stop=(10**6,)), "the model knows 0 to"),
    ],
)
def test_requests_that_would_kill_a_server_are_never_sent(
    servers: dict[str, list[RunningServer]], policy: nn.Module, prompt: Any, sampling: SamplingParams, message: str
) -> None:
    server = servers["vllm"][0]
    before = len(server.state()["calls"])
    with pytest.raises(EngineRequestError, match=message):
        run(config_of("vllm", [server]), policy, lambda engine: engine.generate(prompt, sampling))
    assert len(server.state()["calls"]) == before


@pytest.mark.whole
def test_vllm_log_probs_under_top_p_are_refused(servers: dict[str, list[RunningServer]], policy: nn.Module) -> None:
    """SGLang's are those of the whole distribution."""
    sampling = SamplingParams(max_tokens=4, top_p=0.9)
    with pytest.raises(EngineRequestError, match="renormalised"):
        run(config_of("http", servers["vllm"]), policy, lambda engine: engine.generate(PROMPT, sampling))
    completion = run(config_of("http", servers["sglang"]), policy, lambda engine: engine.generate(PROMPT, sampling))
    expected = local_completion(policy, sampling=sampling)
    assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


# --- weights --------------------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_new_weights_reach_every_server(kind: str, pair: list[RunningServer], policy: nn.Module) -> None:
    async def work(engine: Engine) -> list[Completion]:
        before = await engine.generate(PROMPT, SAMPLING)
        await engine.update_weights(change(policy), 7)
        after = await asyncio.gather(*(engine.generate(PROMPT, SAMPLING) for _ in range(4)))
        return [before, *after]

    before, *after = run(config_of(kind, pair), policy, work)
    expected = local_completion(policy)
    assert {completion.token_ids for completion in after} == {expected.token_ids}
    assert before.logprobs != pytest.approx(expected.logprobs, abs=1e-3)
    assert [set(completion.policy_versions) for completion in (before, *after)] == [{0}, {7}, {7}, {7}, {7}]


@pytest.mark.whole
def test_a_request_in_flight_continues_under_the_new_weights(
    kind: str, pair: list[RunningServer], policy: nn.Module
) -> None:
    sampling = SamplingParams(max_tokens=200, seed=1)

    async def work(engine: Engine) -> Completion:
        await engine.update_weights(merged_weights(policy), 4)
        request = asyncio.create_task(engine.generate(PROMPT, sampling))
        await asyncio.sleep(0.1)
        await engine.update_weights(change(policy, 1.01), 5)
        return await request

    completion = run(config_of(kind, pair[:1]), policy, work)
    versions = completion.policy_versions
    assert len(versions) == 200
    assert set(versions) == {4, 5}
    assert list(versions) == sorted(versions)
    # Each token has the log-prob of the weights that it says.
    switch = versions.index(5)
    assert completion.logprobs[switch:] == pytest.approx(scored(policy, completion)[switch:], abs=1e-4)


@pytest.mark.whole
def test_a_server_that_keeps_its_old_head_is_refused(kind: str, pair: list[RunningServer], policy: nn.Module) -> None:
    """As a tied model does in vLLM, which answers 200."""

    async def work(engine: Engine) -> dict[str, float]:
        await engine.update_weights(merged_weights(policy), 0)
        pair[0].fault(path=LOAD[kind], kind="keep_head")
        with pytest.warns(
            RuntimeWarning, match=r"was refused: its log-probs differ from the trainer's by .* on average"
        ):
            await engine.update_weights(change(policy, 1.002), 1)
        for _ in range(4):
            completion = await engine.generate(PROMPT, SAMPLING)
            assert completion.token_ids == local_tokens
        return engine_metrics(engine)

    changed = load_policy(policy.name_or_path, dtype="float32", device=torch.device("cpu"))
    change(changed, 1.002)
    local_tokens = local_completion(changed).token_ids
    metrics = run(config_of(kind, pair), policy, work)
    assert [metrics[f"servers/{number}/refused"] for number in range(2)] == [1, 0]
    assert metrics["servers/1/requests"] == 4
    assert metrics["servers/ready"] == 1


@pytest.mark.whole
def test_a_server_that_is_refused_gets_the_next_weights(
    kind: str, pair: list[RunningServer], policy: nn.Module
) -> None:
    async def work(engine: Engine) -> float:
        await engine.update_weights(merged_weights(policy), 0)
        pair[0].fault(path=LOAD[kind], kind="keep_weights")
        await engine.update_weights(change(policy), 1)
        await engine.update_weights(change(policy), 2)
        return engine_metrics(engine)["servers/ready"]

    assert run(config_of(kind, pair), policy, work) == 2


@pytest.mark.whole
def test_when_every_server_disagrees_the_run_ends_with_one_line(
    kind: str, pair: list[RunningServer], policy: nn.Module
) -> None:
    async def work(engine: Engine) -> None:
        await engine.update_weights(merged_weights(policy), 0)
        for server in pair:
            server.fault(path=LOAD[kind], kind="keep_weights")
        with pytest.raises(
            EngineLostError, match=r"no server of the engine can be used \(2 tried\): .* was refused"
        ) as caught:
            await engine.update_weights(change(policy), 1)
        assert "\n" not in str(caught.value)

    run(config_of(kind, pair), policy, work)


@pytest.mark.whole
def test_an_update_that_fails_leaves_no_server_paused(kind: str, pair: list[RunningServer], policy: nn.Module) -> None:
    async def work(engine: Engine) -> Completion:
        await engine.update_weights(merged_weights(policy), 0)
        pair[0].fault(path=LOAD[kind], kind="500")
        await engine.update_weights(change(policy), 1)
        return await engine.generate(PROMPT, SAMPLING)

    completion = run(config_of(kind, pair[:1]), policy, work)
    assert completion.token_ids == local_completion(policy).token_ids
    assert set(completion.policy_versions) == {1}
    assert pair[0].state()["calls"].count({"vllm": "/resume", "sglang": "/continue_generation"}[kind]) >= 3


@pytest.mark.whole
def test_the_folder_of_weights_is_kept_until_the_next_one_is_loaded(
    kind: str, pair: list[RunningServer], policy: nn.Module, tmp_path: Path
) -> None:
    async def work(engine: Engine) -> list[int]:
        counts = []
        for version in range(3):
            await engine.update_weights(change(policy), version)
            [run_folder] = tmp_path.iterdir()
            counts.append(len(list(run_folder.iterdir())))
        return counts

    assert run(config_of(kind, pair, weights_folder=str(tmp_path)), policy, work) == [1, 1, 1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.whole
def test_a_server_that_does_not_report_versions_is_emptied_before_an_update(
    model_folder: Path, policy: nn.Module
) -> None:
    """vLLM 0.26: requests are aborted with the tokens they have, and continued under the new weights."""
    sampling = SamplingParams(max_tokens=200, seed=1)

    async def work(engine: Engine) -> Completion:
        await engine.update_weights(merged_weights(policy), 4)
        request = asyncio.create_task(engine.generate(PROMPT, sampling))
        await asyncio.sleep(0.1)
        await engine.update_weights(change(policy, 1.01), 5)
        return await request

    with engine_server(model_folder, "vllm-0.26") as server:
        completion = run(config_of("http", [server]), policy, work)
    versions = completion.policy_versions
    assert set(versions) == {4, 5}
    assert list(versions) == sorted(versions)
    switch = versions.index(5)
    assert completion.logprobs[switch:] == pytest.approx(scored(policy, completion)[switch:], abs=1e-4)


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        "half",
        "unknown_id",
        *(pytest.param(fault, marks=pytest.mark.whole) for fault in ("wrong_version", "500", "garbage", "nonsense")),
    ],
)
def test_an_answer_that_cannot_be_used_is_asked_for_again(
    kind: str, pair: list[RunningServer], policy: nn.Module, fault: str
) -> None:
    async def work(engine: Engine) -> tuple[Completion, dict[str, float]]:
        await engine.update_weights(merged_weights(policy), 3)
        for server in pair:
            server.fault(path=GENERATE[kind], kind=fault)
        return await engine.generate(PROMPT, SAMPLING), engine_metrics(engine)

    completion, metrics = run(config_of(kind, pair), policy, work)
    assert completion.token_ids == local_completion(policy).token_ids
    assert set(completion.policy_versions) == {3}
    assert metrics["servers/retries"] >= 1
    assert metrics["servers/0/failures"] + metrics["servers/1/failures"] >= 1


@pytest.mark.whole
def test_an_answer_that_is_late_is_asked_for_elsewhere(kind: str, pair: list[RunningServer], policy: nn.Module) -> None:
    async def work(engine: Engine) -> float:
        await engine.update_weights(merged_weights(policy), 0)
        pair[0].fault(path=GENERATE[kind], kind="late", seconds=3.0)
        started = time.monotonic()
        completion = await engine.generate(PROMPT, SAMPLING)
        assert completion.token_ids == local_completion_tokens
        return time.monotonic() - started

    local_completion_tokens = local_completion(policy).token_ids
    assert run(config_of(kind, pair, timeout=0.5), policy, work) < 2.5


@pytest.mark.whole
def test_a_request_that_was_aborted_continues_from_its_tokens(
    kind: str, pair: list[RunningServer], policy: nn.Module
) -> None:
    async def work(engine: Engine) -> Completion:
        await engine.update_weights(merged_weights(policy), 0)
        pair[0].fault(path=GENERATE[kind], kind="abort")
        return await engine.generate(PROMPT, SAMPLING)

    completion = run(config_of(kind, pair[:1]), policy, work)
    expected = local_completion(policy)
    assert completion.token_ids[:2] == expected.token_ids[:2]
    assert len(completion.token_ids) == SAMPLING.max_tokens
    assert completion.logprobs == pytest.approx(scored(policy, completion), abs=1e-4)


@pytest.mark.whole
def test_a_request_that_fails_everywhere_is_one_error(kind: str, pair: list[RunningServer], policy: nn.Module) -> None:
    async def work(engine: Engine) -> None:
        await engine.update_weights(merged_weights(policy), 0)
        pair[0].fault(path=GENERATE[kind], kind="garbage", times=3)
        with pytest.raises(EngineError, match=r"a request failed 3 times; the last time: .* is not JSON"):
            await engine.generate(PROMPT, SAMPLING)

    run(config_of(kind, pair[:1], retries=2), policy, work)


def test_no_server_at_all_is_one_line_within_the_bound(policy: nn.Module) -> None:
    config = config_of("vllm", [RunningServer("http://127.0.0.1:9")], lost_seconds=0.3)
    with pytest.raises(
        EngineLostError, match=r"no server of the engine can be used \(1 tried\): .*127.0.0.1:9"
    ) as caught:
        run(config, policy, lambda engine: engine.generate(PROMPT, SAMPLING))
    assert "\n" not in str(caught.value)


@pytest.mark.whole
def test_a_server_that_comes_back_with_old_weights_gets_the_current_ones_first(
    model_folder: Path, policy: nn.Module, kind: str
) -> None:
    async def work(engine: Engine) -> list[Completion]:
        await engine.update_weights(merged_weights(policy), 0)
        await engine.update_weights(change(policy), 1)
        stack.close()
        stack.enter_context(engine_server(model_folder, kind, port=port))
        return await asyncio.gather(*(engine.generate(PROMPT, SAMPLING) for _ in range(3)))

    with ExitStack() as stack:
        server = stack.enter_context(engine_server(model_folder, kind))
        port = int(server.url.rpartition(":")[2])
        completions = run(config_of(kind, [server]), policy, work)
    expected = local_completion(policy)
    assert {completion.token_ids for completion in completions} == {expected.token_ids}
    assert {version for completion in completions for version in completion.policy_versions} == {1}


@pytest.mark.whole
def test_a_server_with_a_shorter_context_is_refused(kind: str, pair: list[RunningServer], policy: nn.Module) -> None:
    config = config_of(kind, pair[:1], lost_seconds=0.2)
    with pytest.raises(EngineLostError, match="serves a context of 512 tokens, and this run needs 1024"):
        run(config, policy, lambda engine: engine.generate(PROMPT, SAMPLING), context_length=1024)


# --- load -----------------------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_requests_beyond_the_bound_wait_here(kind: str, pair: list[RunningServer], policy: nn.Module) -> None:
    async def work(engine: Engine) -> dict[str, float]:
        await engine.update_weights(merged_weights(policy), 0)
        engine_metrics(engine)
        sampling = SamplingParams(max_tokens=40)
        await asyncio.gather(*(engine.generate((5, 6, number), sampling) for number in range(12)))
        return engine_metrics(engine)

    metrics = run(config_of(kind, pair, concurrency=2), policy, work)
    assert metrics["servers/0/requests"] + metrics["servers/1/requests"] == 12
    assert metrics["servers/0/requests"] >= 3
    assert metrics["servers/1/requests"] >= 3
    assert metrics["perf/engine_queue"] > 1


@pytest.mark.whole
def test_later_turns_go_to_the_server_that_has_the_earlier_ones(
    kind: str, pair: list[RunningServer], policy: nn.Module
) -> None:
    async def episode(engine: Engine, number: int) -> None:
        tokens = [number + 20, *range(100, 170)]
        for turn in range(4):
            completion = await engine.generate(tokens, SamplingParams(max_tokens=8, seed=turn))
            tokens += completion.token_ids

    async def work(engine: Engine) -> list[set[int]]:
        await engine.update_weights(merged_weights(policy), 0)
        seen: list[tuple[int, int]] = []
        for number, server in enumerate(engine._pool.servers):  # type: ignore[attr-defined]
            ask = server.ask

            async def noted(prompt: Any, sampling: Any, ask: Any = ask, number: int = number) -> Any:
                seen.append((prompt.token_ids[0], number))
                return await ask(prompt, sampling)

            server.ask = noted
        await asyncio.gather(*(episode(engine, number) for number in range(6)))
        return [{server for first, server in seen if first == number + 20} for number in range(6)]

    used = run(config_of(kind, pair), policy, work)
    assert [len(servers) for servers in used] == [1] * 6
    assert set().union(*used) == {0, 1}


def test_a_connection_that_the_server_may_be_closing_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the server answers one request per connection, and drops later ones."""
    assert client.KEEP_ALIVE_SECONDS < 5
    monkeypatch.setattr(client, "KEEP_ALIVE_SECONDS", 0.05)

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await reader.read(1)
        writer.close()
        await writer.wait_closed()
        closed.release()

    async def main() -> list[Any]:
        server = await asyncio.start_server(answer_once, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            async with client.make_http() as http:
                asked = client.ServerClient(url, http)
                answers = [await asked.call("GET", "/health", seconds=5)]
                await asyncio.sleep(0.1)
                answers.append(await asked.call("GET", "/health", seconds=5))
            for _ in answers:
                await closed.acquire()
            return answers

    closed = asyncio.Semaphore(0)
    assert asyncio.run(main()) == [{}, {}]


# --- configuration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "engine.servers.urls is empty"),
        (["engine.servers.urls=[localhost:8000]"], "expected an address such as"),
        (["engine.servers.urls=[http://a:1,http://a:1]"], "names a server twice"),
        (["engine.servers.urls=[http://a:1]", "rollout.top_p=0.9"], "renormalised"),
        (["engine.servers.urls=[http://a:1]", "rollout.top_k=5"], "renormalised"),
        (["engine.servers.urls=[http://a:1]", "engine.servers.key_env=NO_SUCH_KEY"], "is not set"),
        (["engine.servers.start=2", "engine.servers.devices=['0']"], "one entry per started server"),
        (["engine.servers.start=1", "engine.servers.python=/no/python"], "does not exist"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_before_a_model_is_loaded(
    overrides: list[str], message: str
) -> None:
    config = load_config(None, ["engine=vllm", "model.path=nowhere", *overrides])
    with pytest.raises(ConfigError, match=message):
        check_config(config)


def test_engine_equals_a_name_is_short_for_its_name() -> None:
    assert load_config(None, ["engine=sglang", "model.path=x"]).engine.name == "sglang"
    assert load_config(None, {"engine": "http", "model.path": "x"}).engine.name == "http"
