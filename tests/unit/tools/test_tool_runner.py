"""The runner of tool calls: limits, retries, batches, worker processes, and answers no model could read."""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import BaseModel, Field

from agent_r1.chat import ChatRenderer
from agent_r1.config import from_yaml
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import ToolEnv
from agent_r1.errors import ConfigError, RolloutsFailingError
from agent_r1.images import read_picture
from agent_r1.rewards import in_workers, score_episode
from agent_r1.tools import (
    BaseTool,
    CallOutcome,
    FunctionTool,
    ToolContext,
    ToolPolicy,
    ToolResponse,
    ToolResult,
    ToolRunner,
    ToolUnavailableError,
    run_call,
    tool,
)
from agent_r1.tools.batching import Batcher
from agent_r1.tools.builtin.notebooks import Notebook
from agent_r1.tools.results import cut_middle
from agent_r1.tools.workers import tool_call
from agent_r1.tools.workers.pool import WorkerPool
from agent_r1.tools.workers.threads import num_abandoned_threads
from agent_r1.types import Action, Episode, SamplingParams, StopReason, Task, ToolCall
from tests.helpers import commands, foreign_code
from tests.helpers.tiny_runs import tiny_overrides
from tests.helpers.virtual_clock import seconds_waited
from tests.unit.rollout.test_rollout import ids_of, rollout_with, run, task

TASK = Task(task_id="t", prompt=({"role": "user", "content": "Go."},), reward_model={"ground_truth": "secret"})


def outcomes(
    made: BaseTool, *arguments: dict[str, Any], runner: ToolRunner | None = None, context: ToolContext | None = None
) -> list[CallOutcome]:
    """What becomes of calls made at the same moment; half a minute is a hang."""

    async def all_at_once() -> list[CallOutcome]:
        shared = runner or ToolRunner()
        calls = [ToolCall(name=made.name, arguments=given) for given in arguments]
        try:
            async with asyncio.timeout(30):
                return await asyncio.gather(
                    *(shared.call({made.name: made}, one, context or ToolContext(task=TASK)) for one in calls)
                )
        finally:
            await shared.close()

    return asyncio.run(all_at_once())


def outcome(made: BaseTool, **arguments: Any) -> CallOutcome:
    [only] = outcomes(made, arguments)
    return only


def giving(value: Any, **limits: Any) -> FunctionTool:
    def give() -> Any:
        """Give it."""
        return value

    return FunctionTool(give, policy=ToolPolicy(**limits))


# Policies


def test_limits_come_from_the_decorator_and_the_configuration_changes_them() -> None:
    @tool(name="tests_limited", timeout=5, max_concurrency=2)
    def limited() -> str:
        """Do it."""
        return "done"

    assert limited.policy == ToolPolicy(timeout=5, max_concurrency=2)
    runner = ToolRunner({"tests_limited": {"timeout": 7}})
    assert runner.policy_of(limited) == ToolPolicy(timeout=7, max_concurrency=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timeut": 5}, "unknown key 'tools.search.timeut'. Did you mean 'timeout'"),
        ({"timeout": 0}, "timeout=0 of a tool must be a number, more than 0"),
        ({"timeout": math.nan}, "timeout=nan"),
        ({"retries": -1}, "retries=-1 of a tool must be a whole number, 0 or more"),
        ({"max_concurrency": 1.5}, "max_concurrency=1.5"),
        ({"process": "yes"}, "process='yes'"),
    ],
)
def test_wrong_limits_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ToolPolicy().with_overrides("search", changes)
    assert message in str(caught.value)


def test_unknown_limits_of_a_decorator_are_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'timeout'"):
        tool(time_out=3)(lambda: "x")


# Timeouts


def test_async_tool_that_hangs_times_out() -> None:
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(1000)
        return "never"

    got = outcome(FunctionTool(wait, policy=ToolPolicy(timeout=0.05)))
    assert (got.status, got.response.text) == ("timeout", "Error: wait timed out after 0.05 seconds")
    assert got.seconds < 5


@pytest.mark.whole
@pytest.mark.parametrize("in_thread", [True, False])
def test_a_call_that_ended_while_the_process_was_stopped_is_no_timeout(in_thread: bool) -> None:
    """A blocked event loop is what a process sees that is stopped and continued: one long gap."""
    continued = threading.Event()

    def block() -> str:
        """Wait in a thread, which stands still as well."""
        continued.wait()
        return "done"

    async def wait() -> str:
        """Wait in tasks of its own."""
        await asyncio.gather(asyncio.gather(asyncio.sleep(0.03)))
        return "done"

    def stop() -> None:
        time.sleep(0.2)
        continued.set()

    async def stopped_meanwhile() -> CallOutcome:
        made = FunctionTool(block if in_thread else wait, policy=ToolPolicy(timeout=0.05))
        asyncio.get_running_loop().call_later(0.01, stop)
        call = ToolCall(name=made.name, arguments={})
        return await ToolRunner().call({made.name: made}, call, ToolContext(task=TASK))

    got = asyncio.run(stopped_meanwhile())
    assert (got.status, got.response.text) == ("ok", "done")


def test_async_tool_that_ignores_its_cancellation_times_out() -> None:
    async def stubborn() -> str:
        """Stay."""
        for _ in range(30):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue
        return "late"

    assert outcome(FunctionTool(stubborn, policy=ToolPolicy(timeout=0.05))).status == "timeout"


def test_threads_that_hang_are_abandoned_counted_and_hold_up_nobody() -> None:
    release = threading.Event()

    def hang(here: bool) -> str:
        """Hang."""
        if here:
            release.wait(20)
        return "free"

    made = FunctionTool(hang, policy=ToolPolicy(timeout=0.3, max_concurrency=100))
    before = num_abandoned_threads()
    got = outcomes(made, *[{"here": True}] * 40, {"here": False})
    assert [one.status for one in got] == ["timeout"] * 40 + ["ok"]
    assert num_abandoned_threads() == before + 40
    release.set()
    end = time.monotonic() + 5
    while num_abandoned_threads() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert num_abandoned_threads() == before


def test_timeout_of_the_tools_own_making_is_an_error() -> None:
    def ask() -> str:
        """Ask a server."""
        raise TimeoutError("the server did not answer")

    got = outcome(FunctionTool(ask))
    assert (got.status, got.response.text) == ("error", "Error: the server did not answer")


@pytest.mark.parametrize("error", [SystemExit(2), asyncio.CancelledError()])
def test_async_tool_that_exits_or_cancels_itself_is_an_error(error: BaseException) -> None:
    async def leave() -> str:
        """Leave."""
        raise error

    assert outcome(FunctionTool(leave)).status == "error"


# Answers


class Strange:
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"raw", "raw bytes"),
        ([1, b"raw"], "raw bytes"),
        (Strange(), "holds a Strange"),
        ({"deep": [Strange()]}, "holds a Strange"),
        (foreign_code.circle(), "Circular reference"),
        (("text", math.nan), "reward is nan"),
        (("text", math.inf), "reward is inf"),
        (("text", "much"), "reward is a str"),
        (("text", 1.0, 5), "notes are a int"),
        (ToolResponse(text=5), "answer is a int"),  # type: ignore[arg-type]
        ({(1, 2): 3}, "keys must be str"),
    ],
)
def test_answers_that_cannot_be_read_say_so(value: Any, message: str) -> None:
    got = outcome(giving(value))
    assert (got.status, got.reward) == ("error", 0.0)
    assert message in got.response.text


@pytest.mark.parametrize(
    ("value", "text"), [(date(2026, 1, 2), '"2026-01-02"'), ({"a": date(2026, 1, 2)}, '{"a": "2026-01-02"}')]
)
def test_things_that_print_well_are_answers(value: Any, text: str) -> None:
    assert outcome(giving(value)).response.text == text


@pytest.mark.parametrize("returned", [None, "text", ("text", 1.0), [1, 2, 3], (5, 1.0, {})])
def test_class_that_returns_something_else_is_told_what_it_should_return(returned: Any) -> None:
    class Careless(BaseTool):
        name = "careless"

        async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
            return returned  # type: ignore[no-any-return]

    got = outcome(Careless())
    assert got.status == "error"
    assert "the tool" in got.response.text


def test_long_answers_lose_their_middle_and_say_so() -> None:
    got = outcome(giving("a" * 60 + "z" * 60, max_output_chars=100))
    assert got.truncated
    assert got.response.text == "a" * 50 + "\n[... 20 of 120 characters left out ...]\n" + "z" * 50
    assert not outcome(giving("a" * 100, max_output_chars=100)).truncated


def test_answers_of_calls_that_end_together_are_not_all_held_in_full() -> None:
    @tool(name="tests_floods", max_output_chars=100)
    async def floods() -> str:
        """Too much."""
        return "x" * 10_000_000

    tracemalloc.start()
    got = outcomes(floods, *[{}] * 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all(one.truncated and one.status == "ok" for one in got)
    assert peak < 40_000_000


def test_long_errors_are_cut_too() -> None:
    def fail() -> str:
        """Fail."""
        raise ValueError("x" * 100_000_000)

    assert len(outcome(FunctionTool(fail)).response.text) < 20_100


def test_half_characters_are_replaced() -> None:
    assert cut_middle("a\ud800b", 10) == "a?b"
    assert cut_middle("ä€", 10) == "ä€"


def test_error_that_cannot_be_printed_is_named() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fail() -> str:
        """Fail."""
        raise MuteError

    assert outcome(FunctionTool(fail)).response.text == "Error: MuteError"


# Arguments of classes


class SearchArguments(BaseModel):
    query: str
    top: int = Field(default=3, ge=1)


class Search(BaseTool):
    """Counts its batches."""

    name = "search"
    tool_schema: Mapping[str, Any] = {"type": "function", "function": {"name": "search", "parameters": {}}}
    arguments = SearchArguments
    policy = ToolPolicy(batch_size=8, batch_wait=0.05)

    def __init__(self, fail_on: str | None = None, seconds: float = 0.0) -> None:
        self.batches: list[list[str]] = []
        self.singles: list[str] = []
        self.fail_on = fail_on
        self.seconds = seconds

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        self.singles.append(args["query"])
        if args["query"] == self.fail_on:
            raise ValueError("bad query")
        return ToolResponse(text=f"{args['query']}/{args['top']} for {kwargs['context'].task.task_id}"), None, {}

    async def batch_execute(
        self, list_of_args: Sequence[Mapping[str, Any]], contexts: Sequence[ToolContext]
    ) -> Sequence[ToolResult | Exception]:
        self.batches.append([args["query"] for args in list_of_args])
        await asyncio.sleep(self.seconds)
        if any(args["query"] == self.fail_on for args in list_of_args):
            raise ValueError("bad query")
        return [
            (ToolResponse(text=f"{args['query']}/{args['top']} for {context.task.task_id}"), None, {})
            if args["query"] != "odd"
            else LookupError("no such thing")
            for args, context in zip(list_of_args, contexts, strict=True)
        ]


def test_arguments_of_a_class_are_checked_and_filled_by_its_model() -> None:
    good, bad = outcomes(Search(), {"query": "tea"}, {"top": 0})
    assert (good.status, good.response.text) == ("ok", "tea/3 for t")
    assert bad.status == "invalid"
    assert bad.response.text.startswith(
        "Error: wrong arguments for search: query: Field required; top: Input should be"
    )


def test_text_without_a_name_is_the_one_thing_a_tool_needs() -> None:
    def power(base: float, exponent: int = 2) -> float:
        """A power."""
        return base**exponent

    def both(left: str, right: str) -> str:
        """Both together."""
        return left + right

    def echo(input: str, times: int) -> str:
        """Say it several times."""
        return input * times

    text = {"input": "3"}
    assert outcome(FunctionTool(power), **text).response.text == "9.0"
    assert outcome(FunctionTool(both), **text).status == "invalid"
    assert outcome(FunctionTool(echo), **text).status == "invalid"
    assert outcome(FunctionTool(power), input="3", exponent=3).status == "invalid"
    assert outcome(giving(1), **text).status == "invalid"


# Batches


def test_calls_that_wait_at_the_same_moment_are_one_batch() -> None:
    search = Search()
    got = outcomes(search, *({"query": str(number)} for number in range(20)))
    assert [one.response.text for one in got] == [f"{number}/3 for t" for number in range(20)]
    assert [len(batch) for batch in search.batches] == [8, 8, 4]


def test_batches_gather_calls_of_several_episodes(renderer: ChatRenderer) -> None:
    search = Search()
    texts = '<tool_call>{"name": "search", "arguments": {"query": "tea"}}</tool_call>'
    engine = ScriptedEngine(lambda prompt, sampling: ids_of(renderer, texts))
    rollout = rollout_with(renderer, engine=engine, make_env=lambda task: ToolEnv([search]), max_steps=1)
    groups = run(rollout, task("a"), task("b"), group_size=8)
    assert len(search.batches) == 2
    assert {t.metrics["tool/search/calls"] for group in groups for t in group} == {1.0}


def test_a_batch_that_fails_is_run_one_by_one_so_that_others_are_not_lost() -> None:
    search = Search(fail_on="bad")
    got = outcomes(search, {"query": "good"}, {"query": "bad"}, {"query": "fine"})
    assert [one.status for one in got] == ["ok", "error", "ok"]
    assert search.singles == ["good", "bad", "fine"]


def test_a_batch_may_hold_an_exception_for_one_call() -> None:
    search = Search()
    got = outcomes(search, {"query": "good"}, {"query": "odd"})
    assert [(one.status, one.response.text) for one in got] == [
        ("ok", "good/3 for t"),
        ("error", "Error: no such thing"),
    ]
    assert not search.singles


def test_a_batch_that_hangs_times_out_for_all_of_it() -> None:
    got = outcomes(Search(seconds=100), *[{"query": "tea"}] * 3, runner=ToolRunner({"search": {"timeout": 0.1}}))
    assert [one.status for one in got] == ["timeout"] * 3


class HeldSearch(Search):
    """Its batches end when they may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()

    async def batch_execute(
        self, list_of_args: Sequence[Mapping[str, Any]], contexts: Sequence[ToolContext]
    ) -> Sequence[ToolResult | Exception]:
        found = await super().batch_execute(list_of_args, contexts)
        await self.may_end.wait()
        return found


def test_calls_that_come_while_batches_run_join_the_next_one() -> None:
    async def trickle() -> list[list[str]]:
        search, runner = HeldSearch(), ToolRunner({"search": {"max_concurrency": 1, "batch_wait": 0.0}})

        def one(number: int) -> asyncio.Task[Any]:
            call = ToolCall(name="search", arguments={"query": str(number)})
            return asyncio.create_task(runner.call({"search": search}, call, ToolContext(task=TASK)))

        calls = [one(0)]
        while not search.batches:
            await asyncio.sleep(0)
        for number in range(1, 7):
            calls.append(one(number))
            await asyncio.sleep(0.001)
        search.may_end.set()
        await asyncio.gather(*calls)
        return search.batches

    assert [len(batch) for batch in asyncio.run(trickle())] == [1, 6]


def test_a_call_that_is_cancelled_leaves_its_batch() -> None:
    async def gone() -> list[list[int]]:
        ran: list[list[int]] = []

        async def work(items: Sequence[int]) -> list[int]:
            ran.append(list(items))
            return list(items)

        batcher: Batcher[int, int] = Batcher(work, size=4, wait=0.05, slots=asyncio.Semaphore(1))
        first, second = (asyncio.create_task(batcher.submit(number)) for number in (1, 2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == 2
        return ran

    assert asyncio.run(gone()) == [[2]]


# Concurrency


class Counting(BaseTool):
    """Knows how many of its calls ran at once."""

    name = "counting"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = self.most = 0

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.seconds)
        self.now -= 1
        return ToolResponse(text="done"), None, {}


def test_the_concurrency_limit_holds_over_all_calls() -> None:
    counting = Counting(0.01)
    got = outcomes(counting, *[{}] * 20, runner=ToolRunner({"counting": {"max_concurrency": 3}}))
    assert {one.status for one in got} == {"ok"}
    assert counting.most == 3


def test_the_concurrency_limit_holds_over_the_objects_that_episodes_have_of_one_tool() -> None:
    counted = Counting(0.01)

    class OfAnEpisode(Counting):
        async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
            return await counted.execute(args)

    async def run() -> None:
        runner = ToolRunner({"counting": {"max_concurrency": 2}})
        one = ToolCall(name="counting", arguments={})
        own = [OfAnEpisode(0) for _ in range(10)]
        await asyncio.gather(*(runner.call({"counting": made}, one, ToolContext(task=TASK)) for made in own))

    asyncio.run(run())
    assert counted.most == 2


@pytest.mark.whole
def test_waiting_for_a_place_does_not_count_as_running() -> None:
    got = outcomes(Counting(0.1), *[{}] * 8, runner=ToolRunner({"counting": {"max_concurrency": 1, "timeout": 0.4}}))
    assert {one.status for one in got} == {"ok"}
    assert max(one.seconds for one in got) > 0.75


@pytest.mark.whole
def test_512_chains_of_calls_wait_as_long_as_one_chain() -> None:
    counting, runner = Counting(0.05), ToolRunner()

    async def chain() -> None:
        asked = ToolCall(name="counting", arguments={})
        for _ in range(8):
            await runner.call({"counting": counting}, asked, ToolContext(task=TASK))

    async def chains() -> None:
        await asyncio.gather(*(chain() for _ in range(512)))

    assert seconds_waited(chains()) == pytest.approx(8 * 0.05, rel=0.01)
    assert counting.most == 512


def test_chains_wait_for_each_other_where_a_tool_says_so() -> None:
    counting, runner = Counting(0.05), ToolRunner({"counting": {"max_concurrency": 128}})

    async def calls() -> None:
        asked = ToolCall(name="counting", arguments={})
        await asyncio.gather(*(runner.call({"counting": counting}, asked, ToolContext(task=TASK)) for _ in range(512)))

    assert seconds_waited(calls()) == pytest.approx(4 * 0.05, rel=0.01)


# Retries


class Flaky(BaseTool):
    """Works at the third attempt."""

    name = "flaky"
    policy = ToolPolicy(retries=2)

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.attempts = 0

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        self.attempts += 1
        if self.attempts < 3:
            raise self.error
        return ToolResponse(text="at last"), None, {}


@pytest.mark.parametrize("error", [ConnectionResetError("lost"), ToolUnavailableError("busy")])
def test_what_a_retry_may_mend_is_tried_again(error: Exception) -> None:
    got = outcome(Flaky(error))
    assert (got.status, got.response.text, got.retries) == ("ok", "at last", 2)


class Popping(BaseTool):
    """Takes its arguments apart, and is unavailable the first time."""

    name = "tests_popping"
    tool_schema: Mapping[str, Any] = {"type": "function", "function": {"name": "tests_popping"}}
    policy = ToolPolicy(retries=1)
    attempts = 0

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        changed: Any = args
        words = changed.pop("words")
        words[0].append(words[0].pop() * 2)
        self.attempts += 1
        if self.attempts == 1:
            raise ConnectionError("lost")
        return ToolResponse(text=str(words)), None, {}


def test_arguments_that_a_tool_changes_are_whole_in_the_next_attempt_and_in_the_history() -> None:
    tool = Popping()
    [call] = calls = (ToolCall(name=tool.name, arguments={"words": [["tea"]]}),)
    got = asyncio.run(run_call({tool.name: tool}, call, ToolContext(task=TASK)))
    assert (got.status, got.response.text, got.retries) == ("ok", "[['teatea']]", 1)
    assert Action(text="", tool_calls=calls).as_message()["tool_calls"][0]["function"]["arguments"] == {
        "words": [["tea"]]
    }


def test_a_tool_that_stays_away_is_an_error() -> None:
    flaky = Flaky(ConnectionResetError("lost"))
    flaky.policy = ToolPolicy(retries=1)
    got = outcome(flaky)
    assert (got.status, got.response.text, got.retries) == ("error", "Error: lost", 1)


@pytest.mark.parametrize("error", [ValueError("wrong"), TimeoutError("slow")])
def test_errors_of_the_tool_itself_are_not_tried_again(error: Exception) -> None:
    flaky = Flaky(error)
    assert (outcome(flaky).status, flaky.attempts) == ("error", 1)


def test_timeouts_are_not_tried_again() -> None:
    counting = Counting(100)
    counting.policy = ToolPolicy(timeout=0.05, retries=3)
    assert (outcome(counting).status, counting.now) == ("timeout", 1)


# The block of a runner


@pytest.mark.whole
def test_the_end_of_a_runners_block_kills_its_workers() -> None:
    async def pid() -> int:
        async with ToolRunner() as runner:
            call = ToolCall(name="tests_in_process", arguments={"text": "tea"})
            result = await runner.call({call.name: foreign_code.in_process}, call, ToolContext(task=TASK))
            os.kill(result.info["pid"], 0)
            return int(result.info["pid"])

    with pytest.raises(ProcessLookupError):
        os.kill(asyncio.run(pid()), 0)


def test_a_call_runs_with_the_runner_that_is_passed() -> None:
    made = giving("x" * 50)

    async def lengths() -> list[bool]:
        call, context = ToolCall(name=made.name, arguments={}), ToolContext(task=TASK)
        async with ToolRunner({made.name: {"max_output_chars": 10}}) as runner:
            passed = await run_call({made.name: made}, call, context, runner=runner)
            default = await run_call({made.name: made}, call, context)
        return [passed.truncated, default.truncated]

    assert asyncio.run(lengths()) == [True, False]


# Worker processes


@pytest.mark.whole
def test_process_tool_answers_keeps_its_state_and_never_sees_the_ground_truth() -> None:
    context = ToolContext(task=TASK)

    async def twice() -> list[CallOutcome]:
        async with ToolRunner() as runner:
            call = ToolCall(name="tests_in_process", arguments={"text": "tea"})
            return [await runner.call({call.name: foreign_code.in_process}, call, context) for _ in range(2)]

    first, second = asyncio.run(twice())
    assert (first.response.text, first.status, first.reward) == ("TEA t None", "ok", 0.5)
    assert first.info["pid"] == second.info["pid"] != os.getpid()
    assert context.state == {"calls": 2}


@pytest.mark.whole
def test_calls_of_one_action_in_worker_processes_keep_each_others_state() -> None:
    state: dict[str, Any] = {"python interpreter": Notebook(), "old": "kept here"}
    context = ToolContext(task=TASK, state=dict(state))
    tools: dict[str, BaseTool] = {one.name: one for one in (foreign_code.notes, foreign_code.removes)}
    calls = [ToolCall(name="tests_notes", arguments={"key": key}) for key in "abc"]

    async def run() -> list[CallOutcome]:
        async with ToolRunner() as runner:
            calls.append(ToolCall(name="tests_removes", arguments={"key": "old"}))
            return await asyncio.gather(*(runner.call(tools, call, context) for call in calls))

    assert [one.response.text for one in asyncio.run(run())] == ["a", "b", "c", "kept here"]
    noted = {"a": True, "b": True, "c": True, "notes": 3}
    assert context.state == {"python interpreter": state["python interpreter"], **noted}


def test_process_tool_with_wrong_arguments_is_the_models_mistake() -> None:
    assert outcome(foreign_code.in_process, words="tea").status == "invalid"


@pytest.mark.whole
def test_process_tool_that_hangs_is_killed() -> None:
    got = outcome(foreign_code.hangs)
    assert (got.status, got.response.text) == ("timeout", "Error: tests_hangs timed out after 0.3 seconds")


@pytest.mark.whole
def test_answer_of_100_megabytes_is_cut_before_it_travels() -> None:
    got = outcome(foreign_code.huge, size=100_000_000)
    assert (got.status, got.truncated) == ("ok", True)
    assert got.response.text.startswith("axx")
    assert got.response.text.endswith("xxz")
    assert "[... 99,980,002 of 100,000,002 characters left out ...]" in got.response.text
    assert len(got.response.text) < 20_100


def submit(answer: str) -> ToolResponse:
    """Give the answer, which ends the episode."""
    return ToolResponse(text=answer, ends_episode=True)


@pytest.mark.parametrize("answer", ["12", "é" * 40, "1" * 40])
def test_a_call_that_ends_the_episode_ends_it_however_it_is_run_and_cut(answer: str) -> None:
    made = FunctionTool(submit, policy=ToolPolicy(max_output_chars=20))
    assert outcome(made, answer=answer).response.ends_episode
    context = ToolContext(task=TASK)
    packed = asyncio.run(tool_call.run_tool(tool_call.origin_of(made), made.name, {"answer": answer}, context, 20))
    [response, _, _], _ = tool_call.unpack(packed, context)
    assert response.ends_episode


@pytest.mark.whole
def test_process_tool_that_dies_is_tried_again_and_then_an_error() -> None:
    got = outcome(foreign_code.dies)
    assert (got.status, got.retries) == ("error", 1)
    assert got.response.text == "Error: the worker process of tests_dies ended with exit code 3"


@pytest.mark.whole
def test_class_runs_in_a_worker_process() -> None:
    got = outcome(foreign_code.EchoTool(), text="hi")
    assert (got.status, got.response.text) == ("ok", "hi t")
    assert got.info["pid"] != os.getpid()


@pytest.mark.whole
def test_a_worker_process_makes_a_class_with_the_same_arguments() -> None:
    [made] = BaseTool.find({"name": "tests.helpers.foreign_code:PrefixTool", "prefix": "said: "})
    assert outcome(made, text="hi").response.text == "said: hi"


def test_a_tool_whose_arguments_no_process_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"give them in env\.tools: \{name: tests_prefix, \.\.\.\}"):
        outcome(foreign_code.PrefixTool(prefix="said: "), text="hi")


def test_tool_that_no_process_could_find_is_refused() -> None:
    with pytest.raises(ConfigError, match="Define it with `def`"):
        outcome(giving("x", process=True))


@pytest.mark.whole
@pytest.mark.parametrize("made", [foreign_code.told, foreign_code.told_elsewhere])
def test_a_tool_never_sees_what_the_reward_is_computed_from(made: FunctionTool) -> None:
    async def run() -> str:
        env = ToolEnv([made])
        await env.reset(TASK)
        result = await env.step(Action(text="", tool_calls=(ToolCall(name=made.name, arguments={}),)))
        assert result.observation is not None
        return str((result.observation.messages or ())[-1]["content"])

    assert asyncio.run(run()) == "t None"


# Images


async def look(tool: FunctionTool, runner: ToolRunner | None = None) -> Any:
    """The step of an environment whose model calls the tool."""
    env = ToolEnv([tool])
    if runner is not None:
        env.set_tool_runner(runner)
    await env.reset(TASK)
    return await env.step(Action(text="", tool_calls=(ToolCall(name=tool.name, arguments={}),)))


@pytest.mark.whole
def test_an_answer_with_images_is_an_error_for_a_model_that_sees_none() -> None:
    result = asyncio.run(look(foreign_code.picture, ToolRunner(sees_images=False)))
    said = result.observation.messages[-1]["content"]
    assert said.startswith("Error: the answer of tests_picture holds image content, which")
    assert result.info["metrics"]["tool/tests_picture/errors"] == 1.0


def shown(returned: Any) -> FunctionTool:
    def draw() -> Any:
        """Draw."""
        return returned

    return FunctionTool(draw)


DOT = Image.new("RGB", (3, 2), (9, 8, 7))


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (ToolResponse(text="a dot", images=(DOT,)), "a dot"),
        (ToolResponse(text="a dot", images=(np.asarray(DOT), read_picture(DOT))), "a dot"),
        ((DOT, 0.5), ""),
        (read_picture(DOT), ""),
    ],
)
def test_the_model_sees_the_text_and_then_the_images_of_an_answer(returned: Any, text: str) -> None:
    result = asyncio.run(look(shown(returned)))
    said = result.observation.messages[-1]["content"]
    assert "".join(part.get("text", "") for part in said) == text
    assert {part["image"] for part in said if part["type"] == "image"} == {read_picture(DOT)}
    assert said[-1]["type"] == "image"


@pytest.mark.parametrize(
    ("images", "problem"),
    [
        ((DOT, b"png"), "image 1 of the answer of draw is no image"),
        ("x.png", "the images of the answer of draw are a str"),
        (("x.png",), "image 0 of the answer of draw is the path 'x.png'"),
        ((Path("there/is/none.png"),), "which cannot be read"),
        ((DOT,) * 17, "the answer of draw has 17 images; at most 16"),
        ((Image.new("1", (40_000, 1)),), "40000 x 1 pixels; images of at most"),
    ],
)
def test_an_image_that_cannot_be_read_is_an_error_that_the_model_reads(images: Any, problem: str) -> None:
    result = asyncio.run(look(shown(ToolResponse(text="", images=images))))
    said = result.observation.messages[-1]["content"]
    assert said.startswith("Error: ")
    assert problem in said


def test_a_tool_may_give_the_path_of_an_image(tmp_path: Path) -> None:
    DOT.save(tmp_path / "dot.png")
    result = asyncio.run(look(shown(ToolResponse(text="", images=(tmp_path / "dot.png",)))))
    assert [part["image"] for part in result.observation.messages[-1]["content"]] == [read_picture(DOT)]


@pytest.mark.whole
def test_a_worker_process_carries_images() -> None:
    async def run() -> Any:
        async with ToolRunner() as runner:
            return await look(foreign_code.picture, runner)

    said = asyncio.run(run()).observation.messages[-1]["content"]
    assert [part["type"] for part in said] == ["text", "image"]
    assert said[1]["image"].pil().getpixel((0, 0)) == (9, 8, 7)


# Metrics


def test_every_kind_of_outcome_is_counted() -> None:
    async def slow() -> str:
        """Slow."""
        await asyncio.sleep(100)
        return ""

    tools = [
        FunctionTool(slow, policy=ToolPolicy(timeout=0.02)),
        giving("x" * 50, max_output_chars=10),
        Flaky(ConnectionResetError("lost")),
    ]

    async def step() -> Mapping[str, float]:
        env = ToolEnv(tools)
        for made in tools:
            made.tool_schema = {}
        await env.reset(TASK)
        calls = tuple(ToolCall(name=name, arguments={}) for name in ("slow", "give", "flaky"))
        result = await env.step(Action(text="", tool_calls=calls))
        metrics: Mapping[str, float] = result.info["metrics"]
        return metrics

    metrics = asyncio.run(step())
    assert metrics["tool/slow/timeouts"] == metrics["tool/give/truncated"] == 1
    assert metrics["tool/flaky/retries"] == 2
    assert metrics["tool/flaky/seconds"] > 0.1
    assert [metrics[f"tool/{name}/calls"] for name in ("slow", "give", "flaky")] == [1, 1, 1]
    assert not {"tool/slow/errors", "tool/flaky/errors", "tool/give/errors"} & set(metrics)


# Rewards


def scored(function: Callable[..., Any], timeout: float = 20) -> Any:
    async def score() -> Any:
        pool = WorkerPool(1)
        try:
            return await score_episode(
                in_workers(function, pool, timeout=timeout), TASK, Episode(steps=(), stop_reason=StopReason.DONE)
            )
        finally:
            await pool.close()

    return asyncio.run(score())


@pytest.mark.whole
def test_reward_in_a_worker_process_scores() -> None:
    score = scored(foreign_code.length_reward)
    assert (score.value, score.answer, score.parts) == (0.5, "secret", {"steps": 0.0})


@pytest.mark.whole
@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (foreign_code.hanging_reward, "took longer than 0.5 s and was killed"),
        (foreign_code.raising_reward, "in raising_reward"),
        (foreign_code.nan_reward, "rewards must be finite"),
    ],
)
def test_reward_that_hangs_or_breaks_in_its_process_fails_the_rollout(
    renderer: ChatRenderer, reward: Callable[..., float], message: str
) -> None:
    async def roll() -> Any:
        pool = WorkerPool(1)
        rollout = rollout_with(renderer, reward=in_workers(reward, pool, timeout=0.5), retries=0)
        try:
            return await rollout.run([task("a")], group_size=1, sampling=SamplingParams(), seed=0, may_fail=True)
        finally:
            await pool.close()

    [group] = asyncio.run(roll())
    [failed] = group.trajectories
    assert failed.stop_reason is StopReason.REWARD_ERROR
    assert message in str(failed.error)


# Whole runs


@pytest.mark.whole
def test_a_run_with_tools_and_reward_in_processes_equals_one_without(tmp_path: Path, model_folder: Path) -> None:
    def rewards(name: str, *overrides: str) -> list[tuple[float, float]]:
        commands.train(
            *tiny_overrides(tmp_path, model_folder, "trainer.steps=2", f"run.name={name}"), *overrides, quiet=True
        )
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        return [(line["reward/outcome"], line["error/failed_rollouts"]) for line in lines if "reward/outcome" in line]

    here = rewards("here")
    there = rewards("there", "reward.timeout=20", "tools.price.process=true", "tools.price.timeout=20")
    assert len(here) == 2
    assert there == here
    saved = from_yaml((tmp_path / "there" / "config.yaml").read_text())
    assert saved.tools == {"price": {"process": True, "timeout": 20}}


@pytest.mark.whole
def test_a_reward_that_hangs_stops_a_run_with_a_reason(tmp_path: Path, model_folder: Path) -> None:
    overrides = tiny_overrides(tmp_path, model_folder, "reward.timeout=0.3", "rollout.retries=0")
    with pytest.raises(RolloutsFailingError, match=r"reward_error(.|\n)*hanging_reward took longer than 0.3 s"):
        commands.train(
            *overrides,
            "reward.function=tests.helpers.foreign_code:hanging_reward",
            "rollout.group_size=2",
            "rollout.groups_per_step=1",
            quiet=True,
        )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tools.prize.timeout=5", "unknown tool in 'tools.prize'. Did you mean 'price'"),
        ("tools.price.timeut=5", "unknown key 'tools.price.timeut'. Did you mean 'timeout'"),
        ("tools.price.timeout=soon", "tools.price: timeout='soon' of a tool must be a number, more than 0"),
        ("tools.price=5", "tools.price=5 is not a policy"),
        ("reward.timeout=0", "reward.timeout=0"),
    ],
)
def test_wrong_policies_are_refused_before_anything_is_loaded(
    override: str, message: str, tmp_path: Path, model_folder: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        commands.train(*tiny_overrides(tmp_path, model_folder), override, quiet=True)
    assert message in str(caught.value)


def test_a_reward_that_no_process_could_find_is_refused_before_anything_is_loaded(
    tmp_path: Path, model_folder: Path
) -> None:
    def local_reward(task: Task, episode: Episode) -> float:
        return 0.0

    with pytest.raises(ConfigError, match="Define it with `def`"):
        commands.train(*tiny_overrides(tmp_path, model_folder), "reward.timeout=5", reward=local_reward, quiet=True)
