"""Whole rollouts through the gateway: agents as functions, as processes, as remote programs; rewards; failures."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_r1.chat import ChatRenderer
from agent_r1.config import AgentConfig
from agent_r1.engines import ScriptedEngine
from agent_r1.errors import ConfigError, EngineError, MissingExtraError
from agent_r1.gateway import Gateway, check_agent
from agent_r1.gateway.agents import Assignment, RemoteAgents
from agent_r1.types import StopReason, Trajectory
from tests.helpers.gateway_agents import CALL, replies_in_order, roll_out, written

PLAIN = """
import json, urllib.error, urllib.request

class Refused(Exception):
    pass

def post(base_url, path, **body):
    request = urllib.request.Request(base_url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            code = json.loads(error.read())["error"]["code"]
    raise Refused(code)

def ask(base_url, messages, **fields):
    answer = post(base_url, "/chat/completions", model="policy", messages=messages, **fields)
    return answer["choices"][0]["message"]["content"]

"""
"""What the agents of these tests are written with: the standard library, no client of OpenAI."""


def solve_with(folder: Path, source: str, **settings: Any) -> AgentConfig:
    return AgentConfig(function=written(folder, PLAIN + source), **settings)


def command_with(folder: Path, source: str, **settings: Any) -> AgentConfig:
    file = folder / "program.py"
    file.write_text(PLAIN + source)
    return AgentConfig(command=f"{sys.executable} {file}", **settings)


# --- functions -------------------------------------------------------------------------------------------------------


def test_a_function_answers_and_is_scored(renderer: ChatRenderer, tokenizer: Any, tmp_path: Path) -> None:
    agent = solve_with(
        tmp_path,
        """
def solve(task, base_url, api_key):
    assert "reward_model" not in task
    answer = {"role": "assistant", "content": ask(base_url, task["prompt"])}
    return ask(base_url, [*task["prompt"], answer, {"role": "user", "content": "Sure?"}])
""",
    )
    [trajectory] = roll_out(replies_in_order(tokenizer, "11", "12"), renderer, agent)
    assert trajectory.stop_reason is StopReason.DONE, trajectory.error
    assert trajectory.outcome_reward == 1.0
    assert [step.action.text for step in trajectory.steps] == ["11", "12"]
    assert [step.parent for step in trajectory.steps] == [-1, 0]
    assert trajectory.metrics["episode/branches"] == 1.0


def test_the_answer_is_what_the_agent_returns_not_what_the_model_said_last(
    renderer: ChatRenderer, tokenizer: Any, tmp_path: Path
) -> None:
    agent = solve_with(
        tmp_path,
        """
async def solve(task, base_url, api_key):
    import asyncio
    first = await asyncio.to_thread(ask, base_url, task["prompt"])
    await asyncio.to_thread(ask, base_url, [{"role": "user", "content": "Something else"}])
    return int(first)
""",
    )
    [trajectory] = roll_out(replies_in_order(tokenizer, "12", "99"), renderer, agent)
    assert (trajectory.outcome_reward, trajectory.vote) == (1.0, "12"), trajectory.error
    assert [step.parent for step in trajectory.steps] == [-1, -1]
    assert trajectory.metrics["episode/branches"] == 2.0


def test_without_an_answer_the_last_completion_is_it(renderer: ChatRenderer, tokenizer: Any, tmp_path: Path) -> None:
    agent = solve_with(tmp_path, "def solve(task, base_url, api_key): ask(base_url, task['prompt'])\n")
    [trajectory] = roll_out(replies_in_order(tokenizer, "12"), renderer, agent)
    assert trajectory.outcome_reward == 1.0, trajectory.error


def test_many_rollouts_run_at_once_and_each_has_its_own_address(
    renderer: ChatRenderer, tokenizer: Any, tmp_path: Path
) -> None:
    agent = solve_with(
        tmp_path,
        """
import threading
together, addresses = threading.Barrier(16, timeout=20), set()

def solve(task, base_url, api_key):
    addresses.add(base_url)
    together.wait()
    assert len(addresses) == 16
    return ask(base_url, task["prompt"])
""",
    )
    found = roll_out(replies_in_order(tokenizer, "12"), renderer, agent, group_size=16)
    assert [t.outcome_reward for t in found] == [1.0] * 16, found[0].error


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("raise ValueError('no network')", "no network"),
        ("raise SystemExit(0)", "SystemExit"),
        ("ask(base_url, task['prompt']); raise KeyError('price')", "KeyError: 'price'"),
        ("return 12", "without a single answered call"),
        ("ask(base_url, task['prompt']); return {'answer': 12}", "got dict"),
    ],
)
def test_an_agent_that_fails_is_a_failed_rollout_never_a_zero_reward(
    renderer: ChatRenderer, tokenizer: Any, tmp_path: Path, body: str, shown: str
) -> None:
    agent = solve_with(tmp_path, f"def solve(task, base_url, api_key):\n    {body}\n")
    [trajectory] = roll_out(replies_in_order(tokenizer, "12"), renderer, agent, retries=1)
    assert trajectory.stop_reason is StopReason.AGENT_ERROR
    assert trajectory.is_failure
    assert trajectory.num_retries == 1
    assert shown in (trajectory.error or "")


def test_an_engine_error_is_not_blamed_on_the_agent(renderer: ChatRenderer, tmp_path: Path) -> None:
    def broken(prompt: Any, sampling: Any) -> list[int]:
        raise EngineError("it is gone")

    agent = solve_with(tmp_path, "def solve(task, base_url, api_key): return ask(base_url, task['prompt'])\n")
    [trajectory] = roll_out(ScriptedEngine(broken), renderer, agent)
    assert trajectory.stop_reason is StopReason.ENGINE_ERROR
    assert "it is gone" in (trajectory.error or "")


def test_calls_after_the_end_are_refused(renderer: ChatRenderer, tokenizer: Any, tmp_path: Path) -> None:
    agent = solve_with(
        tmp_path,
        """
import threading
late, done = [], threading.Event()

def solve(task, base_url, api_key):
    answer = ask(base_url, task["prompt"])
    def again():
        while True:
            try:
                ask(base_url, task["prompt"])
            except Refused as refused:
                late.append(str(refused))
                done.set()
                return
    threading.Thread(target=again, daemon=True).start()
    return answer
""",
    )

    async def until_refused(gateway: Gateway) -> None:
        while not (sys.modules.keys() & loaded()):
            await asyncio.sleep(0.01)
        [module] = [sys.modules[name] for name in loaded()]
        while not module.done.is_set():
            await asyncio.sleep(0.01)
        assert module.late in (["unknown_rollout"], ["rollout_ended"])

    before = set(sys.modules)

    def loaded() -> set[str]:
        return {name for name in sys.modules if name.startswith("agent_r1_agent_") and name not in before}

    [trajectory] = roll_out(replies_in_order(tokenizer, "12"), renderer, agent, max_steps=10_000, beside=until_refused)
    assert trajectory.outcome_reward == 1.0


# --- limits ----------------------------------------------------------------------------------------------------------


def test_an_agent_out_of_steps_is_truncated_not_failed(renderer: ChatRenderer, tokenizer: Any, tmp_path: Path) -> None:
    """Its fourth call is refused, which raises in the agent."""
    agent = solve_with(tmp_path, "def solve(task, base_url, api_key):\n    while True: ask(base_url, task['prompt'])\n")
    [trajectory] = roll_out(replies_in_order(tokenizer, "12"), renderer, agent, max_steps=3)
    assert trajectory.stop_reason is StopReason.MAX_STEPS, trajectory.error
    assert len(trajectory.steps) == 3
    assert trajectory.next_prompt_ids == trajectory.steps[-1].prompt_ids + trajectory.steps[-1].action_ids
    assert trajectory.outcome_reward == 0.0
    assert trajectory.metrics["episode/refused_calls"] == 1.0


def test_an_agent_that_ignores_the_refusal_is_stopped(renderer: ChatRenderer, tokenizer: Any, tmp_path: Path) -> None:
    agent = solve_with(
        tmp_path,
        """
import asyncio

async def solve(task, base_url, api_key):
    while True:
        try:
            await asyncio.to_thread(ask, base_url, task["prompt"])
        except Refused:
            await asyncio.sleep(0.01)
""",
        grace_seconds=0.05,
    )
    [trajectory] = roll_out(replies_in_order(tokenizer, "12"), renderer, agent, max_steps=2)
    assert trajectory.stop_reason is StopReason.MAX_STEPS, trajectory.error


def test_an_agent_that_answers_after_a_refusal_is_done(renderer: ChatRenderer, tokenizer: Any, tmp_path: Path) -> None:
    agent = solve_with(
        tmp_path,
        """
def solve(task, base_url, api_key):
    answer = ask(base_url, task["prompt"])
    try:
        ask(base_url, task["prompt"])
    except Refused:
        return answer
""",
    )
    [trajectory] = roll_out(replies_in_order(tokenizer, "12"), renderer, agent, max_steps=1)
    assert trajectory.stop_reason is StopReason.DONE
    assert trajectory.outcome_reward == 1.0


def test_a_full_context_is_openais_error_and_a_truncated_episode(
    renderer: ChatRenderer, tokenizer: Any, tmp_path: Path
) -> None:
    agent = solve_with(
        tmp_path,
        """
def solve(task, base_url, api_key):
    messages = list(task["prompt"])
    while True:
        try:
            text = ask(base_url, messages)
        except Refused as refused:
            assert str(refused) == "context_length_exceeded"
            raise
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "tea and milk? " * 3}]
""",
    )
    engine = replies_in_order(tokenizer, "12", context_length=64)
    [trajectory] = roll_out(engine, renderer, agent, max_steps=50)
    assert trajectory.stop_reason is StopReason.CONTEXT_FULL, trajectory.error
    assert len(trajectory.steps) > 1


def test_a_last_completion_that_was_cut_truncates_the_episode(
    renderer: ChatRenderer, tokenizer: Any, tmp_path: Path
) -> None:
    agent = solve_with(tmp_path, "def solve(task, base_url, api_key): ask(base_url, task['prompt'])\n")
    engine = replies_in_order(tokenizer, "12 " * 20)
    [trajectory] = roll_out(engine, renderer, agent, max_tokens=5)
    assert trajectory.stop_reason is StopReason.MAX_TOKENS


def test_an_async_agent_that_hangs_is_cancelled_at_the_deadline(
    renderer: ChatRenderer, tokenizer: Any, tmp_path: Path
) -> None:
    agent = solve_with(
        tmp_path,
        """
import asyncio
cancelled = []

async def solve(task, base_url, api_key):
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.append(task["task_id"])
        raise
""",
    )
    [trajectory] = roll_out(replies_in_order(tokenizer, "12"), renderer, agent, deadline_seconds=0.2)
    assert trajectory.stop_reason is StopReason.TIMEOUT


# --- processes -------------------------------------------------------------------------------------------------------


def test_a_process_gets_address_and_task_and_prints_its_answer(
    renderer: ChatRenderer, tokenizer: Any, tmp_path: Path
) -> None:
    agent = command_with(
        tmp_path,
        """
import os, sys
task = json.load(sys.stdin)
assert json.loads(os.environ["AGENT_R1_TASK"]) == task
print("thinking ...")
print(ask(os.environ["OPENAI_BASE_URL"], task["prompt"]))
""",
    )
    found = roll_out(replies_in_order(tokenizer, "12"), renderer, agent, group_size=2)
    assert [(t.stop_reason, t.outcome_reward) for t in found] == [(StopReason.DONE, 1.0)] * 2, found[0].error


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (
            "import sys; print('bad key', file=sys.stderr); sys.exit(3)",
            "exit code 3. The end of its standard error:\nbad key",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
    ],
)
def test_a_process_that_ends_badly_is_counted_and_retried(
    renderer: ChatRenderer, tokenizer: Any, tmp_path: Path, source: str, shown: str
) -> None:
    [trajectory] = roll_out(replies_in_order(tokenizer, "12"), renderer, command_with(tmp_path, source), retries=1)
    assert trajectory.stop_reason is StopReason.AGENT_ERROR
    assert shown in (trajectory.error or "")
    assert trajectory.num_retries == 1


def test_a_program_that_does_not_exist_is_an_agent_error(renderer: ChatRenderer, tokenizer: Any) -> None:
    [trajectory] = roll_out(replies_in_order(tokenizer, "12"), renderer, AgentConfig(command="/no/such/program"))
    assert trajectory.stop_reason is StopReason.AGENT_ERROR
    assert "/no/such/program" in (trajectory.error or "")


def test_kill_minus_nine_of_an_agent_is_counted_and_the_retry_succeeds(
    renderer: ChatRenderer, tokenizer: Any, tmp_path: Path
) -> None:
    """The first process makes a call, says its id and waits; it is killed from outside. The second one answers."""
    agent = command_with(
        tmp_path,
        f"""
import os, pathlib, sys, time
folder = pathlib.Path({str(tmp_path)!r})
task = json.load(sys.stdin)
answer = ask(os.environ["OPENAI_BASE_URL"], task["prompt"])
if not (folder / "pid").exists():
    (folder / "starting").write_text(str(os.getpid()))
    (folder / "starting").rename(folder / "pid")
    time.sleep(600)
print(answer)
""",
    )

    async def kill(gateway: Gateway) -> None:
        while not (tmp_path / "pid").exists():
            await asyncio.sleep(0.01)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    [trajectory] = roll_out(replies_in_order(tokenizer, "12"), renderer, agent, retries=1, beside=kill)
    assert trajectory.stop_reason is StopReason.DONE, trajectory.error
    assert trajectory.outcome_reward == 1.0
    [attempt] = trajectory.failed_attempts
    assert attempt.stop_reason is StopReason.AGENT_ERROR
    assert "killed by SIGKILL" in attempt.error
    assert attempt.num_steps == 1


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.whole
def test_at_the_deadline_the_agent_is_killed_with_its_children(
    renderer: ChatRenderer, tokenizer: Any, tmp_path: Path
) -> None:
    file = tmp_path / "agent.sh"
    file.write_text(f"sleep 600 &\necho $$ $! > {tmp_path}/pids\nwait\n")
    agent = AgentConfig(command=f"bash {file}")
    [trajectory] = roll_out(replies_in_order(tokenizer, "12"), renderer, agent, deadline_seconds=1.0)
    assert trajectory.stop_reason is StopReason.TIMEOUT
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    end = time.monotonic() + 10
    while any(map(is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(map(is_alive, pids))


# --- posted rewards --------------------------------------------------------------------------------------------------


def test_rewards_are_posted_for_steps_and_for_the_rollout(
    renderer: ChatRenderer, tokenizer: Any, tmp_path: Path
) -> None:
    agent = solve_with(
        tmp_path,
        """
def solve(task, base_url, api_key):
    first = post(base_url, "/chat/completions", model="m", messages=task["prompt"])
    ask(base_url, [{"role": "user", "content": "Another question"}])
    post(base_url, "/reward", reward=0.5, id=first["id"])
    post(base_url, "/reward", reward=-0.25, step=1)
    post(base_url, "/reward", reward=0.75)
""",
        reward="posted",
    )
    [trajectory] = roll_out(replies_in_order(tokenizer, "no"), renderer, agent)
    assert trajectory.outcome_reward == 0.75, trajectory.error
    assert [step.reward for step in trajectory.steps] == [0.5, -0.25]


def test_a_late_reward_is_waited_for(renderer: ChatRenderer, tokenizer: Any, tmp_path: Path) -> None:
    """The agent ends at once; somebody else posts the outcome while the rollout waits."""
    agent = solve_with(
        tmp_path,
        f"""
import pathlib

def solve(task, base_url, api_key):
    ask(base_url, task["prompt"])
    pathlib.Path({str(tmp_path)!r}, "starting").write_text(base_url)
    pathlib.Path({str(tmp_path)!r}, "starting").rename({str(tmp_path / "address")!r})
""",
        reward="posted",
        grace_seconds=20.0,
    )

    async def judge(gateway: Gateway) -> None:
        while not (tmp_path / "address").exists() or any(r._is_open for r in gateway.rollouts.values()):
            await asyncio.sleep(0.01)
        async with httpx.AsyncClient(base_url=(tmp_path / "address").read_text()) as client:
            step = await client.post("/reward", json={"reward": 0.1, "step": 0})
            assert step.status_code == 200, step.text
            late = await client.post(
                "/chat/completions", json={"model": "m", "messages": [{"role": "user", "content": "?"}]}
            )
            assert late.status_code == 410
            outcome = await client.post("/reward", json={"reward": 1})
            assert outcome.status_code == 200, outcome.text

    [trajectory] = roll_out(replies_in_order(tokenizer, "12"), renderer, agent, beside=judge)
    assert trajectory.outcome_reward == 1.0, trajectory.error
    assert trajectory.steps[0].reward == 0.1


def test_a_reward_that_is_never_posted_fails_the_rollout(
    renderer: ChatRenderer, tokenizer: Any, tmp_path: Path
) -> None:
    agent = solve_with(
        tmp_path,
        "def solve(task, base_url, api_key): return ask(base_url, task['prompt'])\n",
        reward="posted",
        grace_seconds=0.05,
    )
    [trajectory] = roll_out(replies_in_order(tokenizer, "12"), renderer, agent)
    assert trajectory.stop_reason is StopReason.REWARD_ERROR


# --- remote programs -------------------------------------------------------------------------------------------------


async def work(gateway: Gateway, num_rollouts: int, *, error: str | None = None) -> None:
    """A worker on another machine: claims rollouts, plays them, finishes them."""
    while gateway._url is None:
        await asyncio.sleep(0.01)
    async with httpx.AsyncClient(base_url=gateway._url, timeout=20) as client:
        for _ in range(num_rollouts):
            claimed = await client.post("/rollouts", json={"wait_seconds": 20})
            given = claimed.json()
            body = {"model": "m", "messages": given["task"]["prompt"]}
            headers = {"Authorization": f"Bearer {given['api_key']}"}
            answer = await client.post(given["base_url"] + "/chat/completions", json=body, headers=headers)
            text = answer.json()["choices"][0]["message"]["content"]
            end = {"error": error} if error else {"answer": text}
            finished = await client.post(given["base_url"] + "/finish", json=end)
            assert finished.status_code == 200, finished.text
        assert (await client.post("/rollouts", json={"wait_seconds": 0})).status_code == 204


@pytest.mark.whole
def test_a_remote_worker_claims_rollouts_and_finishes_them(renderer: ChatRenderer, tokenizer: Any) -> None:
    found = roll_out(
        replies_in_order(tokenizer, "12"),
        renderer,
        AgentConfig(remote=True),
        group_size=3,
        beside=lambda gateway: work(gateway, 3),
    )
    assert [(t.stop_reason, t.outcome_reward) for t in found] == [(StopReason.DONE, 1.0)] * 3, found[0].error


def test_a_remote_worker_reports_a_failure(renderer: ChatRenderer, tokenizer: Any) -> None:
    [trajectory] = roll_out(
        replies_in_order(tokenizer, "12"),
        renderer,
        AgentConfig(remote=True),
        beside=lambda gateway: work(gateway, 1, error="the browser crashed"),
    )
    assert trajectory.stop_reason is StopReason.AGENT_ERROR
    assert "the browser crashed" in (trajectory.error or "")


@pytest.mark.parametrize("num_ticks", range(-2, 8))
def test_a_rollout_that_is_handed_to_a_worker_that_left_goes_to_the_next(num_ticks: int) -> None:
    """The worker disconnects so many ticks of the event loop before the rollout comes; negative: after it."""

    async def run() -> int:
        async with Gateway(AgentConfig(remote=True)) as gateway:
            url = httpx.URL(await gateway._start())
            agents: Any = gateway.agent
            _, leaving = await asyncio.open_connection(url.host, url.port)
            leaving.write(b"POST /rollouts HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            while not agents._arrived._waiters:
                await asyncio.sleep(0.005)
            finished: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
            rollout = Assignment(task={"task_id": "t"}, base_url="", api_key="", finished=finished)
            if num_ticks >= 0:
                leaving.close()
            for _ in range(num_ticks):
                await asyncio.sleep(0)
            running = asyncio.ensure_future(agents.run(rollout))
            for _ in range(-num_ticks):
                await asyncio.sleep(0)
            leaving.close()
            async with httpx.AsyncClient(base_url=url, timeout=20) as client:
                claimed = await client.post("/rollouts", json={"wait_seconds": 0.5})
            running.cancel()
            return claimed.status_code

    assert asyncio.run(run()) == 200


def test_a_rollout_that_has_ended_is_not_handed_over_again() -> None:
    async def run() -> Assignment | None:
        agents = RemoteAgents()
        finished: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        running = asyncio.ensure_future(agents.run(Assignment(task={}, base_url="", api_key="", finished=finished)))
        claimed = await agents.claim(5)
        assert claimed is not None
        running.cancel()
        await asyncio.wait({running})
        agents.take_back(claimed)
        return await agents.claim(0.01)

    assert asyncio.run(run()) is None


def test_a_worker_that_disconnects_while_it_sends_its_answer_fails_its_rollout_at_once(
    renderer: ChatRenderer, tokenizer: Any
) -> None:
    async def work_twice(gateway: Gateway) -> None:
        while gateway._url is None:
            await asyncio.sleep(0.01)
        async with httpx.AsyncClient(base_url=gateway._url, timeout=20) as client:
            url = httpx.URL((await client.post("/rollouts")).json()["base_url"] + "/finish")
        _, leaving = await asyncio.open_connection(url.host, url.port)
        leaving.write(f"POST {url.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n".encode())
        leaving.write(b'{"answer": "1')
        await leaving.drain()
        leaving.close()
        await work(gateway, 1)

    begin = time.monotonic()
    [trajectory] = roll_out(
        replies_in_order(tokenizer, "12"), renderer, AgentConfig(remote=True), retries=1, beside=work_twice
    )
    assert time.monotonic() - begin < 15, "not at the deadline, which is 30 s"
    assert (trajectory.stop_reason, trajectory.outcome_reward) == (StopReason.DONE, 1.0), trajectory.error
    [failure] = trajectory.failed_attempts
    assert failure.stop_reason is StopReason.AGENT_ERROR
    assert "disconnected while it sent its answer" in failure.error


def test_a_worker_that_waits_at_the_end_of_the_run_is_told_so() -> None:
    async def run() -> int:
        async with Gateway(AgentConfig(remote=True)) as gateway:
            url = await gateway._start()
            async with httpx.AsyncClient(base_url=url, timeout=20) as client:
                waiting = asyncio.ensure_future(client.post("/rollouts", json={"wait_seconds": 20}))
                agent: Any = gateway.agent
                while not agent._arrived._waiters:
                    await asyncio.sleep(0.005)
                closing = asyncio.ensure_future(gateway.__aexit__(None, None, None))
                status = (await waiting).status_code
            await closing
        return status

    assert asyncio.run(run()) == 410


def test_a_worker_that_never_comes_is_a_timeout(renderer: ChatRenderer, tokenizer: Any) -> None:
    [trajectory] = roll_out(replies_in_order(tokenizer, "12"), renderer, AgentConfig(remote=True), deadline_seconds=0.2)
    assert trajectory.stop_reason is StopReason.TIMEOUT


# --- the configuration -----------------------------------------------------------------------------------------------


def test_exactly_one_kind_of_agent_is_needed(tmp_path: Path) -> None:
    for wrong in (AgentConfig(), AgentConfig(command="true", remote=True)):
        with pytest.raises(ConfigError, match="exactly one of"):
            check_agent(wrong)


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        ("{folder}/none.py:solve", "there is no file"),
        ("{folder}/agent.py:other", "has no function 'other'"),
        ("{folder}/broken.py:solve", "cannot be loaded: ModuleNotFoundError"),
        ("no_such_module:solve", "there is no module"),
    ],
)
def test_an_agent_that_cannot_be_found_is_refused_before_the_run(tmp_path: Path, function: str, shown: str) -> None:
    (tmp_path / "agent.py").write_text("solve = 3\n")
    (tmp_path / "broken.py").write_text("import no_such_library\n")
    with pytest.raises((ConfigError, LookupError), match=shown):
        check_agent(AgentConfig(function=function.format(folder=tmp_path)))


def test_an_open_address_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_R1_GATEWAY_KEY", raising=False)
    with pytest.raises(ConfigError, match="AGENT_R1_GATEWAY_KEY"):
        check_agent(AgentConfig(remote=True, host="0.0.0.0"))
    monkeypatch.setenv("AGENT_R1_GATEWAY_KEY", "secret")
    check_agent(AgentConfig(remote=True, host="0.0.0.0"))


def test_without_the_extra_the_pip_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_r1.errors.find_spec", lambda module: None)
    with pytest.raises(MissingExtraError, match=r"agent-r1\[serve\]"):
        check_agent(AgentConfig(command="true"))


def test_a_trajectory_with_branches_is_written_and_read_back(
    renderer: ChatRenderer, tokenizer: Any, tmp_path: Path
) -> None:
    from agent_r1.runs import read_trajectories, write_trajectories
    from agent_r1.types import Group
    from tests.helpers.gateway_agents import TASK

    agent = solve_with(
        tmp_path,
        """
def solve(task, base_url, api_key):
    for question in ("a", "b"):
        ask(base_url, [{"role": "user", "content": question}])
    return "12"
""",
    )
    found: list[Trajectory] = roll_out(replies_in_order(tokenizer, CALL), renderer, agent)
    write_trajectories(tmp_path / "t.jsonl", [Group(task=TASK, group_id=0, trajectories=tuple(found))], policy_step=0)
    [read] = read_trajectories(tmp_path / "t.jsonl")
    assert [step.parent for step in read.steps] == [-1, -1]
    assert [step.prompt_ids for step in read.steps] == [step.prompt_ids for step in found[0].steps]
    assert json.loads((tmp_path / "t.jsonl").read_text())["vote"] == "12"
