"""Foreign code that raises what is no `Exception`: `sys.exit(0)`, or the panic of a Rust extension. It is its failure,
as any other exception is; only interrupts and cancellations go through."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_r1.chat import ChatRenderer
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import AgentEnv, ToolEnv, check_env
from agent_r1.envs.gym import GymEnv
from agent_r1.envs.wrappers import TimeLimit
from agent_r1.errors import ConfigError, boundary, no_exit, portable
from agent_r1.flows import AgentFlowBase
from agent_r1.registry import load_object
from agent_r1.rewards import RewardFunction
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.tools import BaseTool, FunctionTool, ToolContext, ToolResponse, try_tool
from agent_r1.tools.base import ToolResult
from agent_r1.tools.check import check_tool
from agent_r1.types import Action, Episode, Observation, SamplingParams, StepResult, StopReason, Task, Trajectory
from tests.helpers import commands
from tests.helpers.forks import run_python
from tests.helpers.tiny_gym import Line
from tests.helpers.tiny_runs import tiny_overrides
from tests.integration.test_runs import score_variety

TASK = Task(task_id="t", prompt=({"role": "user", "content": "begin"},))


class PanicException(BaseException):
    """What pyo3 raises for a panic."""


class Unprintable(BaseException):
    def __str__(self) -> str:
        raise SystemExit(0)


RAISED = [SystemExit(0), SystemExit("bye"), PanicException("index out of bounds"), Unprintable()]
raised = pytest.mark.parametrize("error", RAISED, ids=["exit-0", "exit-text", "panic", "unprintable"])


def fine() -> str:
    """Nothing."""
    return "fine"


def played(
    renderer: ChatRenderer,
    *,
    reply: str = "over",
    env: Callable[[Task], AgentEnv] = lambda task: ToolEnv([FunctionTool(fine)]),
    reward: RewardFunction = lambda task, episode: 1.0,
    task: Task = TASK,
) -> Trajectory:
    """One rollout that is tried once. The first turn says `reply`, the others "over"."""

    def sample(prompt: tuple[int, ...], sampling: SamplingParams) -> list[int]:
        first = renderer.tokenizer.decode(list(prompt), skip_special_tokens=False).count("<|assistant|>") == 1
        return [*renderer.encode(reply if first else "over"), renderer.stop_ids[0]]

    rollout = Rollout(
        engine=ScriptedEngine(sample),
        renderer=renderer,
        reward=reward,
        make_env=env,
        limits=RolloutLimits(retries=0, group_refills=0),
    )
    running = rollout.run([task], group_size=1, sampling=SamplingParams(max_tokens=64), seed=0, may_fail=True)
    return asyncio.run(running)[0].trajectories[0]


def failing(error: BaseException) -> Callable[..., Any]:
    def raise_it(*args: Any, **kwargs: Any) -> Any:
        raise error

    return raise_it


# --- rewards ---------------------------------------------------------------------------------------------------------


@raised
def test_a_reward_that_raises_it_fails_its_rollout(renderer: ChatRenderer, error: BaseException) -> None:
    async def later(task: Task, episode: Episode) -> float:
        raise error

    for reward in (failing(error), later):
        trajectory = played(renderer, reward=reward)
        assert trajectory.stop_reason is StopReason.REWARD_ERROR
        assert type(error).__name__ in (trajectory.error or "")


def test_a_reward_that_takes_the_next_of_nothing_fails_its_rollout(renderer: ChatRenderer) -> None:
    trajectory = played(renderer, reward=lambda task, episode: next(iter(())))
    assert trajectory.stop_reason is StopReason.REWARD_ERROR
    assert "StopIteration" in (trajectory.error or "")


def exits_once(task: Task, episode: Episode) -> float:
    if not EXITED:
        EXITED.append(1)
        sys.exit(0)
    return score_variety(task, episode)


EXITED: list[int] = []


@pytest.mark.whole
def test_a_run_whose_reward_exits_goes_on_and_ends_with_its_model(tmp_path: Path, model_folder: Path) -> None:
    EXITED.clear()
    overrides = tiny_overrides(tmp_path, model_folder, "trainer.steps=1")
    summary = commands.train(*overrides, quiet=True, reward=exits_once)
    assert summary.steps == 1
    assert EXITED
    assert (tmp_path / "tiny" / "hf" / "model.safetensors").is_file()


# --- tools -----------------------------------------------------------------------------------------------------------


class Counted(BaseTool):
    """Raises in `execute`, or in a batch, or when it is closed."""

    name = "counted"
    tool_schema = {"type": "function", "function": {"name": "counted", "parameters": {"type": "object"}}}  # noqa: RUF012

    def __init__(self, where: str, error: BaseException) -> None:
        self.where, self.error = where, error

    def raise_at(self, where: str) -> None:
        if self.where == where:
            raise self.error

    def check(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        self.raise_at("check")
        return args

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        self.raise_at("execute")
        return ToolResponse(text="fine"), None, {}

    async def close(self, context: ToolContext) -> None:
        self.raise_at("close")


class Batched(Counted):
    async def batch_execute(self, list_of_args: Sequence[Any], contexts: Sequence[ToolContext]) -> Sequence[Any]:
        if self.where == "batch":
            self.where = "execute"
            raise self.error
        return [self.error for _ in list_of_args]


@raised
@pytest.mark.parametrize("kind", ["async", "sync", "process-less check", "batch", "batch entry"])
def test_a_tool_that_raises_it_is_read_by_the_model(renderer: ChatRenderer, error: BaseException, kind: str) -> None:
    async def counted() -> str:
        """Raise."""
        raise error

    def sync() -> str:
        """Raise."""
        raise error

    tools: dict[str, BaseTool] = {
        "async": FunctionTool(counted),
        "sync": FunctionTool(sync, "counted"),
        "process-less check": Counted("check", error),
        "batch": Batched("batch", error),
        "batch entry": Batched("", error),
    }
    call = '<tool_call>{"name": "counted", "arguments": {}}</tool_call>'
    trajectory = played(renderer, reply=call, env=lambda task: ToolEnv([tools[kind]]))
    assert (trajectory.stop_reason, trajectory.error) == (StopReason.DONE, None)
    assert trajectory.metrics["tool/counted/errors"] == 1.0
    assert trajectory.steps[-1].observation.messages is not None
    assert str(trajectory.steps[-1].observation.messages[-1]["content"]).startswith("Error: ")


def test_an_entry_of_a_batch_that_no_future_can_carry_reaches_its_caller() -> None:
    outcome = try_tool(Batched("", StopIteration()), {})
    assert (outcome.status, outcome.response.text) == ("error", "Error: StopIteration")


@raised
def test_a_tool_whose_close_raises_it_fails_its_rollout(renderer: ChatRenderer, error: BaseException) -> None:
    trajectory = played(renderer, env=lambda task: ToolEnv([Counted("close", error)]))
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert "close of tool 'counted'" in (trajectory.error or "")


@raised
def test_check_tool_reports_it(error: BaseException) -> None:
    tool = Counted("check", error)
    tool.tool_schema = FunctionTool(fine, "counted").tool_schema
    [finding] = check_tool(tool)
    assert type(error).__name__ in finding.observed


# --- environments and flows ------------------------------------------------------------------------------------------


class Raising(AgentEnv):
    def __init__(self, where: str, error: BaseException) -> None:
        self.where, self.error = where, error
        self.at("init")

    def at(self, where: str) -> None:
        if self.where == where:
            raise self.error

    async def reset(self, task: Task) -> Observation:
        self.at("reset")
        return Observation(messages=task.prompt)

    async def step(self, action: Action) -> StepResult:
        self.at("step")
        return StepResult(observation=None, done=True)

    async def close(self) -> None:
        self.at("close")


@raised
@pytest.mark.parametrize("where", ["init", "reset", "step", "close"])
@pytest.mark.parametrize("wrap", [lambda env: env, TimeLimit], ids=["bare", "wrapped"])
def test_an_environment_that_raises_it_fails_its_rollout(
    renderer: ChatRenderer, error: BaseException, where: str, wrap: Callable[[AgentEnv], AgentEnv]
) -> None:
    trajectory = played(renderer, env=lambda task: wrap(Raising(where, error)))
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert type(error).__name__ in (trajectory.error or "")


@raised
@pytest.mark.parametrize("where", ["init", "reset", "step", "close"])
def test_check_env_reports_it(error: BaseException, where: str) -> None:
    findings = check_env(lambda: Raising(where, error), TASK)
    assert "nothing raises" in {finding.rule for finding in findings}


@pytest.mark.parametrize(
    "error", [*RAISED, StopIteration(), KeyboardInterrupt()], ids=lambda error: type(error).__name__
)
def test_a_gym_environment_that_raises_it_is_told_and_does_not_hang(error: BaseException) -> None:
    class Broken(Line):
        def step(self, action: Any) -> Any:
            raise error

    async def run() -> None:
        env = GymEnv(Broken, actions=["left", "right"], observe=str)
        await env.reset(TASK)
        try:
            async with asyncio.timeout(10):
                await env.step(Action(text="left"))
        finally:
            await env.close()

    with pytest.raises(Exception, match=type(error).__name__):
        asyncio.run(run())


@raised
def test_a_flow_that_raises_it_fails_its_rollout(renderer: ChatRenderer, error: BaseException) -> None:
    class Broken(AgentFlowBase):
        async def run(self, task: Task) -> Episode:
            raise error

    AgentFlowBase.registry._entries["broken"] = Broken
    try:
        trajectory = played(renderer, task=Task(task_id="t", prompt=TASK.prompt, agent_name="broken"))
    finally:
        del AgentFlowBase.registry._entries["broken"]
    assert trajectory.stop_reason is StopReason.FLOW_ERROR


def test_code_that_cancels_its_own_task_fails_its_rollout_at_once(renderer: ChatRenderer) -> None:
    trajectory = played(renderer, reward=failing(asyncio.CancelledError()))
    assert trajectory.stop_reason is StopReason.FLOW_ERROR
    assert "cancelled its own task" in (trajectory.error or "")


def test_counts_that_are_no_numbers_fail_the_rollout_and_not_the_run(renderer: ChatRenderer) -> None:
    class Wordy(ToolEnv):
        async def step(self, action: Action) -> StepResult:
            return StepResult(observation=None, done=True, info={"metrics": {"x": "many"}})

    assert played(renderer, env=lambda task: Wordy([FunctionTool(fine)])).stop_reason is StopReason.ENV_ERROR


# --- what goes through -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()], ids=repr)
def test_interrupts_and_cancellations_go_through(error: BaseException) -> None:
    for block in (boundary(StopReason.ENV_ERROR, "x"), no_exit("x")):
        with pytest.raises(type(error)), block:
            raise error


def test_a_run_that_is_cancelled_ends_as_cancelled(renderer: ChatRenderer) -> None:
    started = asyncio.Event()

    async def waits(task: Task, episode: Episode) -> float:
        started.set()
        await asyncio.sleep(60)
        return 1.0

    async def run() -> None:
        rollout = Rollout(
            engine=ScriptedEngine(lambda prompt, sampling: [*renderer.encode("over"), renderer.stop_ids[0]]),
            renderer=renderer,
            reward=waits,
            make_env=lambda task: ToolEnv([FunctionTool(fine)]),
            limits=RolloutLimits(),
        )
        running = asyncio.create_task(rollout.run([TASK], group_size=1, sampling=SamplingParams(), seed=0))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(run())


# --- outside of episodes ---------------------------------------------------------------------------------------------


@raised
def test_a_preparation_that_raises_it_is_one_error(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(ConfigError, match=f"raised {type(error).__name__}"), no_exit("the data preparation"):
        raise error
    with pytest.raises(ValueError, match="as it is"), no_exit("the data preparation"):
        raise ValueError("as it is")


def test_a_module_that_exits_when_it_is_imported_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exits_at_once.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"loading tool 'exits_at_once:x'.*raised SystemExit: 0"):
        load_object("exits_at_once:x", kind="tool")


RECIPE = """
defaults: [agent_r1, {algorithm: grpo}, _self_]
run: {name: exits}
data: {train: [nowhere/rows.jsonl], prepare: "task:make_data"}
model: {path: nowhere/model}
env: {tools: [calculate]}
"""


@pytest.mark.whole
@pytest.mark.parametrize("code", ["def make_data(config):\n    import sys; sys.exit(0)\n", "import sys; sys.exit(0)\n"])
def test_no_command_ends_in_success_because_a_recipe_exits(tmp_path: Path, code: str) -> None:
    (tmp_path / "base.yaml").write_text(RECIPE)
    (tmp_path / "task.py").write_text(code)
    command = ["-m", "agent_r1.cli", "train", str(tmp_path), f"run.folder={tmp_path}"]
    for extra in ([], ["--dry-run"]):
        ended = run_python(*command, *extra, cwd=tmp_path)
        assert ended.returncode == 2, ended.stderr
        assert "raised SystemExit: 0" in ended.stderr


def test_what_a_future_carries_keeps_its_cause() -> None:
    kept = ValueError("kept")
    assert portable(kept) is kept
    carried = portable(SystemExit(3))
    assert (type(carried), str(carried), type(carried.__cause__)) == (RuntimeError, "SystemExit: 3", SystemExit)


# --- processes that foreign code forks --------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [lambda: None, lambda: sys.exit(0), lambda: 1 / 0], ids=["returns", "exits", "raises"])
def test_a_forked_process_that_comes_back_does_not_continue_the_run(
    renderer: ChatRenderer, ends: Callable[[], Any]
) -> None:
    test, codes = os.getpid(), list[int]()

    def score(task: Task, episode: Episode) -> float:
        child = os.fork()
        if child == 0:
            ends()
        else:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return 1.0

    try:
        trajectory = played(renderer, reward=score)
    finally:
        if os.getpid() != test:
            os._exit(99)
    assert codes == [0]
    assert trajectory.outcome_reward == 1.0
