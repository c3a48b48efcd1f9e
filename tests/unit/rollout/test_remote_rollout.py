"""Rollouts in workers: equal to those in one process, whatever is lost; limits, deadlines and cancellation."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_r1.chat import ChatRenderer, portable_tokenizer
from agent_r1.config import Config
from agent_r1.engines import Engine, MessageEngine, ScriptedEngine
from agent_r1.envs import AgentEnv
from agent_r1.errors import (
    ConfigError,
    EngineLostError,
    EngineRequestError,
    MissingExtraError,
    RolloutsFailingError,
    WorkersError,
)
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.rollout.workers import RemoteRollout, RolloutWorker, WorkerLimits, check_workers
from agent_r1.rollout.workers.connection import Connection
from agent_r1.rollout.workers.messages import ClockChanged, EngineRequest, StartFailure
from agent_r1.types import Action, Completion, Episode, Group, Observation, SamplingParams, StepResult, Task, TokenIds
from tests.helpers.fuzzing import cases
from tests.helpers.process_free_cluster import WORKER_LIMITS, LoopCluster, Setup
from tests.helpers.virtual_clock import in_virtual_time
from tests.unit.rollout.test_rollout import BreaksOn, OneStep, always, ids_of, task


class TwoSteps(OneStep):
    """Ends after two steps, and takes a moment for each."""

    async def reset(self, task: Task) -> Observation:
        self.left = 2
        return await super().reset(task)

    async def step(self, action: Action) -> StepResult:
        await asyncio.sleep(1.0)
        self.left -= 1
        following = None if not self.left else Observation(messages=({"role": "user", "content": action.text},))
        return StepResult(observation=following, reward=0.5, done=not self.left)


class SlowEngine(ScriptedEngine):
    """What it says depends on the prompt and the seed; every request takes a second."""

    def __init__(self, renderer: ChatRenderer) -> None:
        super().__init__(lambda prompt, sampling: ids_of(renderer, str((sum(prompt) + sampling.seed) % 97)))
        self.num_running = 0

    async def generate(self, prompt_ids: Any, sampling: SamplingParams) -> Completion:
        self.num_running += 1
        try:
            await asyncio.sleep(1.0)
            return await super().generate(prompt_ids, sampling)
        finally:
            self.num_running -= 1


def length(task: Task, episode: Episode) -> float:
    return float(len(episode.final_text))


class Remote:
    """A `RemoteRollout`, the same in one process, and the cluster."""

    def __init__(
        self,
        renderer: ChatRenderer,
        *,
        engine: Engine | None = None,
        make_env: Callable[[Task], AgentEnv] = lambda task: TwoSteps(),
        settings: WorkerLimits | None = None,
        **limits: Any,
    ) -> None:
        self.engine = engine or SlowEngine(renderer)
        parts: Any = {
            "renderer": renderer,
            "reward": length,
            "make_env": make_env,
            "limits": RolloutLimits(**{"concurrency": 4, **limits}),
        }
        self.cluster = LoopCluster(lambda proxy: Rollout(engine=proxy, **parts))
        self.lines: list[str] = []
        self.rollout = RemoteRollout(
            cluster=self.cluster,
            settings=settings or WORKER_LIMITS,
            announce=self.lines.append,
            engine=self.engine,
            **parts,
        )
        self.plain = Rollout(engine=self.engine, **parts)

    def run(self, *tasks: Task, group_size: int = 3, meanwhile: Coroutine[Any, Any, None] | None = None) -> list[Group]:
        async def work() -> list[Group]:
            async with self.rollout.opened():
                background = asyncio.ensure_future(meanwhile) if meanwhile is not None else None
                try:
                    return await groups_of(self.rollout, *tasks, group_size=group_size)
                finally:
                    if background is not None:
                        background.cancel()

        return in_virtual_time(work())

    def run_plain(self, *tasks: Task, group_size: int = 3) -> list[Group]:
        return in_virtual_time(groups_of(self.plain, *tasks, group_size=group_size))


async def groups_of(rollout: Rollout, *tasks: Task, group_size: int) -> list[Group]:
    return await rollout.run(tasks, group_size=group_size, sampling=SamplingParams(), seed=5)


def without_times(groups: list[Group]) -> list[Group]:
    return [
        replace(
            group,
            trajectories=tuple(
                replace(trajectory, steps=tuple(replace(step, timings={}) for step in trajectory.steps))
                for trajectory in group
            ),
        )
        for group in groups
    ]


TASKS = [task("one"), task("two"), task("three")]


def test_workers_make_the_same_rollouts_as_one_process(renderer: ChatRenderer) -> None:
    remote = Remote(renderer)
    groups = remote.run(*TASKS)
    assert without_times(groups) == without_times(remote.run_plain(*TASKS))
    assert len({trajectory.steps[0].action.text for group in groups for trajectory in group}) > 3
    assert remote.rollout.take_counts() == {"perf/workers": 0.0, "error/lost_workers": 0.0, "error/lost_rollouts": 0.0}
    assert not remote.cluster.is_open


def test_no_worker_has_more_than_its_share(renderer: ChatRenderer) -> None:
    remote = Remote(renderer, concurrency=5)
    remote.run(*TASKS, group_size=4)
    assert max(worker.most_held for worker in remote.cluster.workers) == 3


@pytest.mark.whole
@settings(max_examples=cases(25), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(kills=st.lists(st.tuples(st.floats(0.0, 9.0), st.integers(0, 2)), max_size=5))
def test_whenever_workers_are_killed_the_rollouts_are_the_same_and_none_is_missing(
    renderer: ChatRenderer, kills: list[tuple[float, int]]
) -> None:
    remote = Remote(renderer, settings=replace(WORKER_LIMITS, num_workers=3, max_losses=9))

    async def kill() -> None:
        for moment, index in sorted(kills):
            await asyncio.sleep(max(0.0, moment - asyncio.get_running_loop().time()))
            if index < len(remote.cluster.alive):
                remote.cluster.alive[index].kill()

    groups = remote.run(*TASKS, meanwhile=kill())
    assert without_times(groups) == without_times(remote.run_plain(*TASKS))
    assert isinstance(remote.engine, SlowEngine)
    assert not remote.engine.num_running, "requests of a lost worker are dropped"


def test_a_lost_worker_is_counted_announced_and_replaced(renderer: ChatRenderer) -> None:
    remote = Remote(renderer)
    seen: dict[str, float] = {}

    async def kill() -> None:
        await asyncio.sleep(1.5)
        remote.cluster.alive[0].kill()
        await asyncio.sleep(1.0)
        seen.update(remote.rollout.take_counts())

    remote.run(*TASKS, meanwhile=kill())
    assert seen == {"perf/workers": 2.0, "error/lost_workers": 1.0, "error/lost_rollouts": 2.0}
    assert len(remote.cluster.workers) == 3
    [line] = remote.lines
    assert "a rollout worker was lost (killed by the test); 2 of its rollouts are made again by others" in line


class Kills(OneStep):
    """Kills its worker when the task is named `deadly`."""

    remote: Remote

    async def step(self, action: Action) -> StepResult:
        if self.task.task_id == "deadly":
            for worker in self.remote.cluster.alive:
                if "deadly" in worker.task_ids:
                    worker.kill()
            await asyncio.sleep(60)
        return await super().step(action)


def test_a_rollout_that_kills_its_workers_fails_and_the_others_finish(renderer: ChatRenderer) -> None:
    remote = Remote(renderer, make_env=lambda task: Kills())
    Kills.remote = remote
    groups = remote.run(*TASKS, task("deadly"), group_size=1)
    [deadly] = groups[3].trajectories
    assert deadly.is_failure
    assert deadly.error is not None
    assert "its worker was lost 3 times while it ran" in deadly.error
    assert groups[3].dropped
    assert [trajectory.is_failure for group in groups[:3] for trajectory in group] == [False] * 3


def test_workers_that_keep_dying_end_the_run_with_one_line(renderer: ChatRenderer) -> None:
    remote = Remote(renderer, settings=replace(WORKER_LIMITS, num_workers=1))

    async def kill() -> None:
        while True:
            await asyncio.sleep(0.1)
            for worker in remote.cluster.alive:
                worker.kill()

    with pytest.raises(WorkersError, match="lost 6 times in a row before it finished a rollout") as caught:
        remote.run(*TASKS, meanwhile=kill())
    assert "\n" not in str(caught.value)
    assert not remote.cluster.is_open


def test_a_worker_whose_loop_is_blocked_is_replaced_after_the_deadline(renderer: ChatRenderer) -> None:
    remote = Remote(renderer, deadline_seconds=30.0)

    async def block() -> None:
        await asyncio.sleep(1.5)
        remote.cluster.alive[0].is_blocked = True

    groups = remote.run(*TASKS, meanwhile=block())
    assert without_times(groups) == without_times(remote.run_plain(*TASKS))
    assert "did not answer for 30 s (rollout.deadline_seconds)" in remote.lines[0]


def test_deadlines_of_episodes_in_workers_stand_still_while_the_clock_is_stopped(renderer: ChatRenderer) -> None:
    class Waits(TwoSteps):
        async def step(self, action: Action) -> StepResult:
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, 103.0 - now))
            return await super().step(action)

    remote = Remote(renderer, make_env=lambda task: Waits(), deadline_seconds=8.0, retries=0)

    async def stop_clock() -> None:
        await asyncio.sleep(1.5)
        with remote.rollout.clock_stopped():
            await asyncio.sleep(100.0)

    groups = remote.run(task("one"), group_size=2, meanwhile=stop_clock())
    assert [trajectory.is_failure for trajectory in groups[0]] == [False, False]
    with pytest.raises(RolloutsFailingError, match=r"no end in 8\.0 s"):
        Remote(renderer, make_env=lambda task: Waits(), deadline_seconds=8.0, retries=0).run(task("one"))


def test_a_failing_rollout_is_retried_in_its_worker_as_in_one_process(renderer: ChatRenderer) -> None:
    remote = Remote(renderer, make_env=lambda task: BreaksOn(), retries=1)
    groups = remote.run(task("broken"), task("good"))
    assert [trajectory.num_retries for trajectory in groups[0]] == [3, 3, 3], "one retry, and a refill with one retry"
    assert "the door is stuck" in (groups[0].trajectories[0].error or "")
    assert groups[0].dropped


def test_the_circuit_breaker_counts_over_all_workers(renderer: ChatRenderer) -> None:
    remote = Remote(renderer, make_env=lambda task: BreaksOn(), retries=0, max_failures_in_a_row=7)
    with pytest.raises(RolloutsFailingError, match="7 rollouts in a row failed"):
        remote.run(*[task(f"broken {number}") for number in range(9)], group_size=1)


def test_cancelled_rollouts_are_cancelled_in_their_workers_and_in_the_engine(renderer: ChatRenderer) -> None:
    remote = Remote(renderer)
    engine = remote.engine
    assert isinstance(engine, SlowEngine)

    async def work() -> None:
        async with remote.rollout.opened():
            running = asyncio.ensure_future(groups_of(remote.rollout, *TASKS, group_size=3))
            while engine.num_running < 4:
                await asyncio.sleep(0.1)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            while engine.num_running:
                await asyncio.sleep(0.1)
            assert not any(worker._worker._running for worker in remote.cluster.workers)
            assert without_times(await groups_of(remote.rollout, task("one"), group_size=2))

    in_virtual_time(asyncio.wait_for(work(), 600))


def test_no_room_in_the_cluster_is_an_error_that_says_what_there_is(renderer: ChatRenderer) -> None:
    remote = Remote(renderer, settings=replace(WORKER_LIMITS, start_seconds=20.0))

    async def never() -> None:
        await asyncio.Event().wait()

    original = remote.cluster.new_worker

    def new_worker() -> Any:
        worker = original()
        worker.start = never
        return worker

    remote.cluster.new_worker = new_worker
    with pytest.raises(
        WorkersError, match=r"no rollout worker could be started for 20 s .*; the test gives it no room"
    ):
        remote.run(*TASKS)


def test_an_engine_that_refuses_or_fails_does_so_for_the_episode(renderer: ChatRenderer) -> None:
    def refuse(prompt: TokenIds, sampling: SamplingParams) -> list[int]:
        raise EngineRequestError("the prompt does not fit")

    remote = Remote(renderer, engine=ScriptedEngine(refuse), retries=0)
    with pytest.raises(RolloutsFailingError, match=r"engine_error(.|\n)*EngineRequestError(.|\n)*does not fit"):
        remote.run(task("one"))


def test_an_engine_that_is_lost_ends_the_run(renderer: ChatRenderer) -> None:
    def lose(prompt: TokenIds, sampling: SamplingParams) -> list[int]:
        raise EngineLostError("no server is left")

    with pytest.raises(EngineLostError, match="no server is left"):
        Remote(renderer, engine=ScriptedEngine(lose)).run(task("one"))


class Chats(ScriptedEngine, MessageEngine):
    """An engine behind a chat API."""

    async def chat(
        self, observation: Observation, sampling: SamplingParams, on_text: Callable[[str], None] | None = None
    ) -> tuple[Completion, Action]:
        completion = await self.generate((1,), sampling)
        return completion, Action(text="21", content="21", token_ids=completion.token_ids)


def test_workers_can_use_an_engine_that_takes_messages(renderer: ChatRenderer) -> None:
    remote = Remote(renderer, engine=Chats(lambda prompt, sampling: [3, 4]), make_env=lambda task: OneStep())
    remote.cluster.setup = replace(remote.cluster.setup, takes_messages=True)
    [group] = remote.run(task("one"))
    assert {(trajectory.steps[0].action.text, trajectory.steps[0].action_ids) for trajectory in group} == {
        ("21", (3, 4))
    }


# The worker itself


def test_batches_that_overtake_each_other_are_read_in_order() -> None:
    worker, read = RolloutWorker(b""), []
    worker._read = lambda message: read.append(message.is_stopped)

    async def deliver() -> None:
        numbers = list(range(20))
        random.Random(0).shuffle(numbers)
        for number in numbers:
            await worker.deliver(number, [ClockChanged(is_stopped=number % 3 == 0)])

    asyncio.run(deliver())
    assert read == [number % 3 == 0 for number in range(20)]


@pytest.mark.parametrize(
    ("setup", "message"), [(pickle.dumps(Setup(10**9)), "KeyError: 1000000000"), (b"x", "Unpickl")]
)
def test_a_set_up_that_cannot_work_is_an_answer_not_a_crash(setup: bytes, message: str) -> None:
    async def start() -> Any:
        return await RolloutWorker(setup).start()

    answer = asyncio.run(start())
    assert isinstance(answer, StartFailure)
    assert message in answer.error


def test_a_worker_with_other_code_than_the_driver_says_so() -> None:
    async def start() -> Any:
        return await RolloutWorker(b"", "another digest").start()

    answer = asyncio.run(start())
    assert isinstance(answer, StartFailure)
    assert "whose code differs from that of this run" in answer.error


def test_what_cannot_be_sent_ends_the_run_and_says_what_to_change(renderer: ChatRenderer) -> None:
    class Unsendable(OneStep):
        async def step(self, action: Action) -> StepResult:
            return StepResult(observation=None, reward=0.5, done=True, info={"door": lambda: None})

    remote = Remote(renderer, make_env=lambda task: Unsendable())
    with pytest.raises(WorkersError, match=r"task 'one' cannot be sent .* put plain values there"):
        remote.run(task("one"))


def test_messages_of_one_round_travel_as_one_batch(renderer: ChatRenderer) -> None:
    class Counting:
        batches: list[int]

        def deliver(self, batch: int, messages: Any) -> None:
            self.batches.append(len(messages))

    handle = Counting()
    handle.batches = []

    async def send() -> None:
        connection = Connection(handle, always(renderer), lambda error: None)
        for number in range(50):
            connection.request(EngineRequest(number=number, prompt_ids=(1, 2), sampling=SamplingParams()))
        while sum(handle.batches) < 50:
            await asyncio.sleep(0)

    asyncio.run(send())
    assert handle.batches == [50]


# What cannot work is refused


def ray_config(**agent: Any) -> Config:
    config = Config()
    config.rollout.workers = "ray"
    config.agent = replace(config.agent, **agent)
    return config


def test_what_workers_cannot_do_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_r1.rollout.workers.check.require_installed", lambda *names: None)
    config = ray_config(remote=True, port=8000)
    config.rollout.ray.address = "ray://head:10001"
    config.rollout.ray.modules = ["nowhere/tools"]
    with pytest.raises(ConfigError) as caught:
        check_workers(config)
    for key in ("agent.remote=true", "agent.port=8000", "rollout.ray.address=ray://head:10001", "'nowhere/tools'"):
        assert key in str(caught.value)
    check_workers(ray_config(function="my_agent:solve"))


def test_without_ray_the_error_has_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_r1.errors.find_spec", lambda module: None)
    check_workers(Config())
    with pytest.raises(MissingExtraError, match=r"rollout.workers=ray needs .* pip install 'agent-r1\[ray\]'"):
        check_workers(ray_config())


# The tokenizer that travels


def test_the_tokenizer_that_travels_writes_and_reads_the_same(renderer: ChatRenderer) -> None:
    observations = [Observation(messages=entry.prompt) for entry in TASKS]
    tokenizer = portable_tokenizer(renderer, "hermes", observations)
    assert tokenizer is not None
    assert "transformers" not in type(tokenizer).__module__
    other = ChatRenderer(pickle.loads(pickle.dumps(tokenizer)), "hermes", stop_ids=renderer.stop_ids)
    assert other.stop_ids == renderer.stop_ids
    for observation in observations:
        prompt, mine = renderer.render(observation), other.render(observation)
        assert mine.token_ids == prompt.token_ids
        action = renderer.parse(ids_of(renderer, "21 <|im_start|> ü"), truncated=False)
        assert other.parse(action.token_ids, truncated=False) == action
        following = replace(
            observation,
            messages=(*observation.messages, action.as_message(), {"role": "user", "content": "<|im_end|> and then?"}),
        )
        expected = renderer.next_prompt(prompt, action, following).token_ids
        assert other.next_prompt(mine, action, following).token_ids == expected


def test_a_tokenizer_that_would_differ_does_not_travel(renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer._encoder, "encode", lambda text: (1, 2, 3))
    assert portable_tokenizer(renderer, "hermes", [Observation(messages=TASKS[0].prompt)]) is None
