"""Data rows never name code and never loosen a policy: what they may name, and what is refused before it is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agent_r1.envs import AgentEnv, GymEnv, ToolEnv, make_env
from agent_r1.errors import AgentR1Error, ConfigError, DataError, UnknownNameError
from agent_r1.flows import AgentFlowBase
from agent_r1.registry import recipe_folder
from agent_r1.tools import BaseTool, PythonTool, ToolContext, ToolEntry, ToolPolicy, ToolResponse, tool, tools_of_row
from agent_r1.tools.base import ToolResult
from agent_r1.training.plan import RunPlan
from agent_r1.training.prepare import prepare_plan
from agent_r1.types import Action, Observation, StepResult, Task
from tests.helpers import commands
from tests.helpers.commands import resolve
from tests.helpers.tiny_runs import tiny_overrides

TOUCHED: list[str] = []
"""What was called although only named."""


def touch(*args: Any, **kwargs: Any) -> None:
    TOUCHED.append("called")


@AgentEnv.register("tests_row_env")
class RowEnv(AgentEnv):
    async def reset(self, task: Task) -> Observation:
        return Observation(messages=task.prompt)

    async def step(self, action: Action) -> StepResult:
        return StepResult(observation=None, done=True)


@BaseTool.register("tests_level")
class LevelTool(BaseTool):
    name = "tests_level"
    tool_schema: ClassVar[Any] = {"type": "function", "function": {"name": "tests_level", "parameters": {}}}
    row_arguments = ("level",)

    def __init__(self, level: int = 1, timeout: float = 5.0) -> None:
        self.level = level
        self.policy = ToolPolicy(timeout=timeout)

    async def execute(self, args: Any, **kwargs: Any) -> ToolResult:
        return ToolResponse(text=str(self.level)), None, {}


@tool
def row_price(item: str, context: ToolContext) -> int:
    """What an item costs."""
    return 1


def task(**env_kwargs: Any) -> Task:
    return Task(task_id="t", prompt=({"role": "user", "content": "?"},), env_kwargs=env_kwargs)


def plan_of(folder: Path, model: Path, row: dict[str, Any], *extra: str) -> RunPlan:
    """The plan of a run whose one row is this one."""
    run = tiny_overrides(folder, model, *extra)
    (folder / "tasks.jsonl").write_text(
        json.dumps({"prompt": "?", "reward_model": {"ground_truth": "1"}, **row}) + "\n"
    )
    recipe, config = resolve(run)
    with recipe_folder(recipe):
        return prepare_plan(config)


def test_row_that_names_code_is_refused_before_it_is_called(tmp_path: Path, model_folder: Path) -> None:
    TOUCHED.clear()
    code = f"{__name__}:touch"
    for row in (
        {"env_kwargs": {"env": code}},
        {"env_kwargs": {"tools": [code]}},
        {"env_kwargs": {"tools": [{"name": code}]}},
        {"agent_name": code},
    ):
        with pytest.raises(DataError, match="may not name") as caught:
            plan_of(tmp_path, model_folder, row)
        assert code in str(caught.value)
        assert "configuration" in str(caught.value)
    assert TOUCHED == []


def test_os_abort_in_a_row_does_not_end_the_process(tmp_path: Path, model_folder: Path) -> None:
    with pytest.raises(DataError, match="os:abort"):
        plan_of(tmp_path, model_folder, {"env_kwargs": {"env": "os:abort"}})


def test_row_may_name_what_is_registered(tmp_path: Path, model_folder: Path) -> None:
    plan = plan_of(tmp_path, model_folder, {"env_kwargs": {"env": "tests_row_env"}, "agent_name": "env_loop"})
    assert isinstance(plan.make_env(plan.train_tasks[0]), RowEnv)
    plan = plan_of(tmp_path, model_folder, {"env_kwargs": {"tools": ["calculate"]}})
    [schema] = plan.make_env(plan.train_tasks[0]).preview(plan.train_tasks[0]).tools
    assert schema["function"]["name"] == "calculate"


def test_row_may_repeat_code_that_the_configuration_names(tmp_path: Path, model_folder: Path) -> None:
    named = f"{__name__}:row_price"
    plan = plan_of(tmp_path, model_folder, {"env_kwargs": {"tools": [named]}}, f"env.tools=['{named}']")
    assert plan.train_tasks[0].env_kwargs["tools"] == [named]


def test_environment_of_a_row_must_work_without_arguments(tmp_path: Path, model_folder: Path) -> None:
    with pytest.raises(DataError, match=r"'remote' needs arguments.*url.*env\.name=remote"):
        plan_of(tmp_path, model_folder, {"env_kwargs": {"env": "remote"}})


@pytest.mark.parametrize(
    "arguments",
    [
        {"sandbox": "limits"},
        {"seconds": 3600},
        {"limits": {"memory_mb": 100_000}},
        {"max_chars": 10**6},
        {"packages": True},
    ],
)
def test_row_cannot_loosen_the_python_tool(tmp_path: Path, model_folder: Path, arguments: dict[str, Any]) -> None:
    row = {"env_kwargs": {"tools": [{"name": "python", **arguments}]}}
    configured = "env.tools=[{name: python, sandbox: auto, seconds: 5}]"
    with pytest.raises(DataError, match=rf"may not set '{next(iter(arguments))}' of the tool 'python'"):
        plan_of(tmp_path, model_folder, row, configured)


def test_tool_that_a_row_names_has_the_configured_settings() -> None:
    listed: list[ToolEntry] = [{"name": "python", "sandbox": "limits", "seconds": 2.0}]
    for named in ("python", {"name": "python"}, {"name": "python", "sandbox": "limits"}):
        [found] = tools_of_row("t", [named], listed)
        assert isinstance(found, PythonTool)
        assert found.made_with == {"sandbox": "limits", "seconds": 2.0}


def test_row_chooses_the_listed_entry_that_has_all_it_says() -> None:
    listed: list[ToolEntry] = [{"name": "tests_level", "timeout": 1.0}, {"name": "tests_level", "timeout": 2.0}]
    [second] = tools_of_row("t", [{"name": "tests_level", "timeout": 2.0}], listed)
    assert second.policy.timeout == 2.0
    [first] = tools_of_row("t", ["tests_level"], listed)
    assert first.policy.timeout == 1.0
    with pytest.raises(DataError, match="may not set 'timeout'"):
        tools_of_row("t", [{"name": "tests_level", "timeout": 3.0}], listed)


def test_row_sets_only_the_arguments_that_the_tool_leaves_to_rows() -> None:
    [found] = tools_of_row("t", [{"name": "tests_level", "level": 7}], [{"name": "tests_level", "timeout": 1.0}])
    assert isinstance(found, LevelTool)
    assert (found.level, found.policy.timeout) == (7, 1.0)
    with pytest.raises(DataError, match=r"may not set 'timeout'.*it may set level.*env\.tools"):
        tools_of_row("t", [{"name": "tests_level", "level": 7, "timeout": 9.0}], [])
    with pytest.raises(DataError, match=r"level='many'|level=many must be a whole number"):
        tools_of_row("t", [{"name": "tests_level", "level": "many"}], [])


def test_tool_given_as_an_object_is_found_by_its_name() -> None:
    mine = LevelTool(level=3)
    assert ToolEnv([mine])._find_tools(task(tools=["tests_level"])) == {"tests_level": mine}


def test_path_of_an_index_in_a_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="may not set 'index' of the tool 'search'"):
        tools_of_row("t", [{"name": "search", "index": str(tmp_path)}], [])


def test_server_of_a_row_must_be_configured() -> None:
    with pytest.raises(DataError, match="unknown MCP server 'evil'"):
        tools_of_row("t", ["mcp:evil"], [])
    with pytest.raises(DataError, match="mcp"):
        tools_of_row("t", [{"name": "mcp:evil", "command": ["touch", "/tmp/x"]}], [])


@pytest.mark.parametrize("named", [None, 5, "calculate", {"name": "calculate"}, [5], [None], [{}], [{"name": 5}]])
def test_odd_tools_of_a_row_are_one_clear_error(named: Any) -> None:
    with pytest.raises(DataError, match="task 't'"):
        ToolEnv(["calculate"]).preview(task(tools=named))


@pytest.mark.parametrize("named", [5, ["tool"], {"name": "tool"}])
def test_odd_environment_of_a_row_is_one_clear_error(named: Any) -> None:
    with pytest.raises(DataError, match=r"env_kwargs\.env"):
        make_env(task(env=named), {"tools": ["calculate"]})


def test_code_in_a_task_is_refused_where_environments_are_made() -> None:
    with pytest.raises(UnknownNameError, match="may not name the environment 'os:abort'"):
        make_env(task(env="os:abort"), {"tools": ["calculate"]})
    configured = f"{__name__}:RowEnv"
    assert isinstance(make_env(task(env=configured), {"name": configured}), RowEnv)


@pytest.mark.parametrize("env_kwargs", [{"seed": "x"}, {"seed": -1}, {"seed": 2**70}, {"seed": True}, {"options": 5}])
def test_odd_seed_or_options_of_a_gym_row_are_found_before_an_episode(env_kwargs: dict[str, Any]) -> None:
    pytest.importorskip("gymnasium")
    with pytest.raises(DataError, match=r"env_kwargs\."):
        GymEnv("FrozenLake-v1").preview(task(**env_kwargs))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("env.name={code}", "expected a subclass of AgentEnv"),
        ("env.tools=['{code}']", "expected a function under @tool"),
        ("data.agent_name={code}", "expected a subclass of AgentFlowBase"),
        ("model.tool_format={code}", "expected a class with the methods of ToolFormat"),
        ("env.context={code}", "expected a subclass of ContextPolicy"),
        ("env.limits=[{{name: '{code}'}}]", "expected a subclass of EnvWrapper"),
        ("reward.function=math:pi", "is a float; expected a function of a task and an episode"),
        ("reward.function=math:sin", "expected a function of a task and an episode"),
        ("algorithm.loss=math:pi", "expected a function of LossInputs"),
        ("algorithm.kl.estimator=os:abort", "expected a function of log-probs"),
    ],
)
def test_kind_of_what_a_configuration_names_is_checked_before_it_is_called(
    tmp_path: Path, model_folder: Path, override: str, expected: str
) -> None:
    TOUCHED.clear()
    with pytest.raises(AgentR1Error, match=expected):
        plan_of(tmp_path, model_folder, {}, override.format(code=f"{__name__}:touch"))
    assert TOUCHED == []


def test_all_rows_with_wrong_names_are_reported_at_once(tmp_path: Path, model_folder: Path) -> None:
    run = tiny_overrides(tmp_path, model_folder)
    rows = [{"env_kwargs": {"env": "a:b"}}, {"env_kwargs": {"tools": ["c:d"]}}, {"agent_name": "no_such_flow"}]
    (tmp_path / "tasks.jsonl").write_text(
        "".join(json.dumps({"prompt": "?", "reward_model": {"ground_truth": "1"}, **row}) + "\n" for row in rows)
    )
    with pytest.raises(DataError) as caught:
        commands.train(*run, quiet=True)
    assert all(word in str(caught.value) for word in ("'a:b'", "'c:d'", "no_such_flow"))


def test_registered_names_are_all_that_registered_finds() -> None:
    assert AgentEnv.registry.registered("tool") is ToolEnv
    for registry in (AgentEnv.registry, AgentFlowBase.registry, BaseTool.registry):
        with pytest.raises(UnknownNameError, match="may not name"):
            registry.registered("os:abort")


def test_preparation_that_cannot_be_called_is_refused(tmp_path: Path, model_folder: Path) -> None:
    with pytest.raises(ConfigError, match="is a float; expected a function"):
        plan_of(tmp_path, model_folder, {}, "data.prepare=math:pi", f"data.eval=[{tmp_path}/missing.jsonl]")
