"""A real vLLM server as the engine, and as a server for what was trained. `make test-vllm` runs these tests.

One server is started for all of them; those that kill it start it again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_r1.chat import ChatRenderer, load_renderer
from agent_r1.config import Config, load_config
from agent_r1.engines import make_engine
from agent_r1.errors import AgentR1Error
from agent_r1.learner import make_compute, score_samples
from agent_r1.learner.packing import TRIE_ATTENTION, Sample
from agent_r1.models import load_policy
from agent_r1.types import Completion, Observation, SamplingParams
from tests.helpers.vllm_server import VllmServer
from tests.helpers.worker_runs import processes_below

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # a server that is lost or refused is warned about
    pytest.mark.skipif("VLLM_PYTHON" not in os.environ, reason="VLLM_PYTHON names no Python with vLLM: make test-vllm"),
]

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "quickstart"
TOLERANCE = 1e-4
CONTEXT = 384


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with the quickstart's data and its warm start."""
    folder = tmp_path_factory.mktemp("runs")
    command("train", str(RECIPE), f"run.folder={folder}", "run.name=first", "trainer.steps=1", "eval.before=false")
    return folder


@pytest.fixture(scope="module")
def warm_start(runs: Path) -> Path:
    return runs / "quickstart_warm_start" / "hf"


@pytest.fixture(scope="module")
def server(warm_start: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    running = VllmServer(warm_start, tmp_path_factory.mktemp("vllm") / "server.log")
    try:
        yield running.start()
    finally:
        running.kill()


def command(*arguments: str) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "agent_r1.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "150"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


class Setup:
    """The learner's policy and an engine on the server."""

    def __init__(self, folder: Path, url: str) -> None:
        overrides = [f"model.path={folder}", "engine=vllm", f"engine.servers.urls=[{url}]"]
        self.config: Config = load_config(None, [*overrides, f"rollout.context_length={CONTEXT}"])
        self.policy: Any = load_policy(str(folder), dtype="float32", device="cpu", attention=TRIE_ATTENTION)
        self.renderer: ChatRenderer = load_renderer(str(folder), "hermes")

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[Any]:
        engine = make_engine(self.config, self.policy, CONTEXT)
        try:
            yield engine
        finally:
            await engine.close()

    def prompts(self, count: int) -> list[tuple[int, ...]]:
        """Questions of the quickstart, as the model reads them."""
        texts = [f"What do {number + 2} egg and {number + 3} tea cost?" for number in range(count)]
        asked = [Observation(messages=({"role": "user", "content": text},)) for text in texts]
        return [self.renderer.render(observation).token_ids for observation in asked]

    def difference(self, policy: Any, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]) -> float:
        """The largest difference between the engine's log-probs and the learner's."""
        scored = self.scores(policy, prompts, completions)
        sampled = [logprob for done in completions for logprob in done.logprobs]
        return max(abs(one - other) for one, other in zip(scored, sampled, strict=True))

    def scores(self, policy: Any, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]) -> list[float]:
        """The learner's log-probs of all sampled tokens."""
        pairs = zip(prompts, completions, strict=True)
        samples = [Sample.of_step(tuple(prompt), done.token_ids) for prompt, done in pairs]
        scored: list[float] = score_samples(policy, samples, make_compute(self.config, policy)).tolist()
        return scored


@pytest.fixture(scope="module")
def setup(warm_start: Path, server: VllmServer) -> Setup:
    return Setup(warm_start, server.url)


def moved(policy: Any, seed: int, amount: float = 0.05) -> Any:
    """A copy of a policy with weights that an update might have given it."""
    other = deepcopy(policy)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(amount * parameter.std() * torch.randn(parameter.shape, generator=random))
    return other


def take_over(policy: Any, other: Any) -> None:
    """Give the learner's policy the weights of another: an engine compares with the policy itself."""
    policy.load_state_dict(other.state_dict())


async def sample(engine: Any, prompts: Sequence[Sequence[int]], **settings: Any) -> list[Completion]:
    return await asyncio.gather(
        *(
            engine.generate(prompt, SamplingParams(**{"max_tokens": 60, "seed": number, **settings}))
            for number, prompt in enumerate(prompts)
        )
    )


# --- one engine on one server ---


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_log_probs_are_those_of_the_learner(setup: Setup, temperature: float) -> None:
    prompts = setup.prompts(16)

    async def run() -> list[Completion]:
        async with setup.engine() as engine:
            return await sample(engine, prompts, temperature=temperature, stop=setup.renderer.stop_ids)

    completions = asyncio.run(run())
    assert {done.finish_reason for done in completions} == {"stop"}
    if temperature == 0.7:
        setup.config.rollout.temperature = temperature
    try:
        difference = setup.difference(setup.policy, prompts, completions)
    finally:
        setup.config.rollout.temperature = 1.0
    print(f"temperature {temperature}: {difference:.1e}")
    assert difference <= TOLERANCE


def test_greedy_tokens_are_those_of_the_local_engine(setup: Setup) -> None:
    prompts = setup.prompts(16)
    local = deepcopy(setup.config)
    local.engine.name = "local"

    async def run() -> tuple[list[Completion], list[Completion]]:
        ours = make_engine(local, setup.policy, CONTEXT)
        try:
            async with setup.engine() as engine:
                settings = {"temperature": 0.0, "stop": setup.renderer.stop_ids}
                return await sample(engine, prompts, **settings), await sample(ours, prompts, **settings)
        finally:
            await ours.close()

    theirs, expected = asyncio.run(run())
    assert [done.token_ids for done in theirs] == [done.token_ids for done in expected]


def test_an_update_reaches_requests_that_run_and_each_token_has_its_version(setup: Setup) -> None:
    prompts, first = setup.prompts(8), deepcopy(setup.policy)
    second = moved(first, seed=1)

    async def run() -> list[Completion]:
        async with setup.engine() as engine:
            await sample(engine, prompts[:1])  # it has the first weights
            running = asyncio.ensure_future(sample(engine, prompts, max_tokens=300))
            await asyncio.sleep(0.3)
            take_over(setup.policy, second)
            await engine.update_weights(second.state_dict().items(), 1)
            return await running

    try:
        completions = asyncio.run(run())
    finally:
        take_over(setup.policy, first)
    versions = [version for done in completions for version in done.policy_versions]
    assert {0, 1} == set(versions), "the update came before or after all requests"
    for policy, version in ((first, 0), (second, 1)):
        assert _difference_at(setup, policy, prompts, completions, version) <= TOLERANCE


def _difference_at(
    setup: Setup, policy: Any, prompts: Sequence[Sequence[int]], completions: Sequence[Completion], version: int
) -> float:
    """The largest difference to a policy over the tokens that its version sampled."""
    scored = setup.scores(policy, prompts, completions)
    told = [pair for done in completions for pair in zip(done.logprobs, done.policy_versions, strict=True)]
    return max(abs(ours - theirs) for ours, (theirs, at) in zip(scored, told, strict=True) if at == version)


def test_a_tied_folder_leaves_the_old_head_and_the_probe_notices(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_r1.engines.http import policy_weights

    first = deepcopy(setup.policy)
    other = moved(first, seed=2)
    prompts = setup.prompts(4)
    write_untied, tied = policy_weights.write_weights, [False]

    def write(policy: Any, weights: Any, folder: Path, **settings: Any) -> None:
        if tied.pop():
            other.save_pretrained(folder)
        else:
            write_untied(policy, weights, folder, **settings)

    async def run() -> None:
        async with setup.engine() as engine:
            await sample(engine, prompts[:1])
            take_over(setup.policy, other)
            tied.append(True)
            with pytest.raises(AgentR1Error, match="log-probs differ from the trainer's by") as refused:
                await engine.update_weights(other.state_dict().items(), 1)
            print(refused.value)
            tied.append(False)
            await engine.update_weights(other.state_dict().items(), 2)
            completions = await sample(engine, prompts)
            assert {version for done in completions for version in done.policy_versions} == {2}
            assert setup.difference(other, prompts, completions) <= TOLERANCE

    monkeypatch.setattr(policy_weights, "write_weights", write)
    try:
        asyncio.run(run())
    finally:
        take_over(setup.policy, first)


# --- a server that is killed ---


def _restarted(server: VllmServer) -> threading.Thread:
    """Kill the server; it is started again in the background."""
    server.kill()
    thread = threading.Thread(target=server.start)
    thread.start()
    return thread


def test_a_server_killed_in_the_middle_of_requests_continues_with_the_weights_of_the_run(
    setup: Setup, server: VllmServer
) -> None:
    first, prompts = deepcopy(setup.policy), setup.prompts(8)
    second = moved(first, seed=3)
    setup.config.engine.servers.lost_seconds = 600.0

    async def run() -> tuple[list[Completion], dict[str, float]]:
        async with setup.engine() as engine:
            take_over(setup.policy, second)
            await engine.update_weights(second.state_dict().items(), 1)
            engine.metrics()
            running = asyncio.ensure_future(sample(engine, prompts, max_tokens=300))
            await asyncio.sleep(0.3)
            assert not running.done()
            starting = await asyncio.to_thread(_restarted, server)
            completions = await running
            await asyncio.to_thread(starting.join)
            return completions, engine.metrics()

    try:
        completions, metrics = asyncio.run(run())
    finally:
        take_over(setup.policy, first)
    print({name: value for name, value in metrics.items() if value})
    assert {version for done in completions for version in done.policy_versions} == {1}
    assert setup.difference(second, prompts, completions) <= TOLERANCE
    assert metrics["servers/retries"] >= 1


def test_a_server_killed_in_the_middle_of_an_update_gets_it_when_it_is_back(setup: Setup, server: VllmServer) -> None:
    first, prompts = deepcopy(setup.policy), setup.prompts(8)
    second = moved(first, seed=4)
    setup.config.engine.servers.lost_seconds = 600.0

    async def run() -> list[Completion]:
        async with setup.engine() as engine:
            before = await sample(engine, prompts)
            assert setup.difference(first, prompts, before) <= TOLERANCE
            take_over(setup.policy, second)
            server.stop()  # it is there and does nothing
            update = asyncio.ensure_future(engine.update_weights(second.state_dict().items(), 1))
            await asyncio.sleep(1.0)
            assert not update.done()
            starting = await asyncio.to_thread(_restarted, server)
            await update
            await asyncio.to_thread(starting.join)
            return await sample(engine, prompts)

    try:
        completions = asyncio.run(run())
    finally:
        take_over(setup.policy, first)
    assert {version for done in completions for version in done.policy_versions} == {1}
    assert setup.difference(second, prompts, completions) <= TOLERANCE


# --- whole runs ---


def _train(runs: Path, name: str, url: str, *extra: str) -> list[str]:
    settings = [f"run.folder={runs}", f"run.name={name}", "engine=vllm", f"engine.servers.urls=[{url}]"]
    return ["train", str(RECIPE), *settings, *extra]


@pytest.fixture(scope="module")
def trained(runs: Path, server: VllmServer) -> Path:
    """The quickstart, trained with the server as its engine."""
    started = time.monotonic()
    command(*_train(runs, "trained", server.url))
    print(f"the quickstart with vLLM: {time.monotonic() - started:.0f} s")
    return runs / "trained"


def _metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_quickstart_learns_with_vllm_as_its_engine(trained: Path) -> None:
    summary = json.loads((trained / "summary.json").read_text())
    steps = [line for line in _metrics(trained) if "time/step" in line]
    failures = {
        name: sum(line.get(name, 0.0) for line in steps)
        for name in ("error/failed_rollouts", "error/retries", "servers/retries", "servers/discarded_tokens")
    }
    gaps = [line["offpolicy/logprob_difference"] for line in steps]
    print(f"success {summary['success_before']:.3f} -> {summary['success_after']:.3f}, {failures}, gap {max(gaps):.1e}")
    assert summary["success_after"] >= 0.9
    assert summary["success_before"] <= 0.6
    assert failures["error/failed_rollouts"] == 0
    assert max(gaps) <= TOLERANCE


def test_what_was_trained_answers_on_vllm_as_it_does_here(trained: Path, runs: Path, tmp_path: Path) -> None:
    """The exported folder loads in vLLM, and its own chat API solves the same held-out tasks."""
    exported = tmp_path / "exported"
    command("export", str(trained), "--out", str(exported))
    common = ["eval", str(RECIPE), f"run.folder={runs}", "eval.max_tasks=64"]
    running = VllmServer(exported, tmp_path / "exported.log")
    try:
        urls = f"engine.servers.urls=[{running.start().url}]"
        command(*common, "engine=openai", urls, "engine.servers.concurrency=32", "--json", str(tmp_path / "vllm.json"))
    finally:
        running.kill()
    command(*common, "--model", str(trained / "hf"), "--json", str(tmp_path / "here.json"))
    there, here = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("vllm", "here"))
    print(there["metrics"]["eval/all/greedy"], here["metrics"]["eval/all/greedy"], there["metrics"])
    assert there["tasks"] == here["tasks"]
    assert there["solved"] == here["solved"]
    assert there["metrics"]["eval/all/response_tokens"] > 0


def test_a_run_survives_the_death_of_its_server(runs: Path, server: VllmServer) -> None:
    overrides = ["trainer.steps=4", "eval.before=false", "eval.max_tasks=16", "engine.servers.lost_seconds=600"]
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_r1.cli", *_train(runs, "killed", server.url, *overrides)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    metrics = runs / "killed" / "metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.read_text()):
        time.sleep(0.2)
    _restarted(server).join()
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output[-3000:]
    steps = [line for line in _metrics(runs / "killed") if "time/step" in line]
    counted = [name for name in sorted(steps[0]) if name.startswith(("error/", "servers/"))]
    print({name: sum(line.get(name, 0.0) for line in steps) for name in counted})
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert max(line["offpolicy/logprob_difference"] for line in steps) <= TOLERANCE


@pytest.mark.parametrize("part", ["VLLM::EngineCore", "api_server"])
def test_a_server_of_the_run_that_dies_is_started_again(runs: Path, part: str) -> None:
    """One part of it is killed; vLLM ends when its engine does."""
    name = f"own_{part.rpartition(':')[2]}"
    settings = [f"run.folder={runs}", f"run.name={name}", "engine=vllm", "engine.servers.start=1"]
    overrides = [f"engine.servers.python={os.environ['VLLM_PYTHON']}", "trainer.steps=3", "eval.before=false"]
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_r1.cli", "train", str(RECIPE), *settings, *overrides, "eval.max_tasks=16"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "500"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    metrics = runs / name / "metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.read_text()):
        time.sleep(0.2)
    [killed] = [pid for pid, command_line in processes_below(process.pid).items() if is_part(command_line, part)]
    os.kill(killed, signal.SIGKILL)
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output[-3000:]
    [line] = [line for line in output.splitlines() if "it is started again (restart 1 of 3)" in line]
    steps = [line for line in _metrics(runs / name) if "time/step" in line]
    counted = [name for name in sorted(steps[0]) if name.startswith(("error/", "servers/"))]
    print(line, {name: sum(line.get(name, 0.0) for line in steps) for name in counted})
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert sum(line["servers/0/restarts"] for line in steps) == 1
    assert sum(line["error/failed_rollouts"] for line in steps) == 0
    assert max(line["offpolicy/logprob_difference"] for line in steps) <= TOLERANCE


def is_part(command_line: str, part: str) -> bool:
    """Whether a process is this part of vLLM, and not what guards it."""
    return part in command_line and "guard.py" not in command_line
