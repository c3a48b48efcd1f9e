"""The Python tool: cells, what the model reads when they go wrong, and an interpreter that lasts for an episode."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from agent_r1.envs.tool_env import ToolEnv
from agent_r1.errors import ConfigError, EpisodeError
from agent_r1.tools import (
    BaseTool,
    CallOutcome,
    PythonTool,
    Sandbox,
    SandboxLimits,
    ToolContext,
    ToolInputError,
    ToolResponse,
    ToolRunner,
    ToolTimeoutError,
    check_process_tool,
    run_call,
)
from agent_r1.tools.base import ToolResult
from agent_r1.tools.sandbox.layers import SandboxKind
from agent_r1.tools.sandbox.session import SandboxSession
from agent_r1.types import Action, StopReason, Task, ToolCall

TASK = Task(task_id="t", prompt=({"role": "user", "content": "Compute."},), env_kwargs={})


def run(*cells: str, **options: Any) -> list[str]:
    """What the model reads for each cell of one episode."""
    made = PythonTool(**options)

    async def episode() -> list[str]:
        context = ToolContext(task=TASK)
        try:
            return [await text_of(made, cell, context) for cell in cells]
        finally:
            await made.close(context)

    return asyncio.run(episode())


async def text_of(made: PythonTool, cell: str, context: ToolContext) -> str:
    try:
        return (await made.execute({"code": cell}, context=context))[0].text
    except ToolTimeoutError as error:
        return str(error)


def ending(cell: str, **options: Any) -> str:
    """In one word, how a cell ended."""
    result = asyncio.run(PythonTool(**options).execute({"code": cell}, context=ToolContext(task=TASK)))
    return str(result[2]["ended"])


# Cells


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print(2 + 2)", "4"),
        ("[n * n for n in range(3)]", "[0, 1, 4]"),
        ("print('a')\n'b'", "a\n'b'"),
        ("x = 1", "(no output)"),
        ("None", "(no output)"),
        ("", "(no output)"),
        ("# nothing", "(no output)"),
        ("print('é', '日本', '🙂')", "é 日本 🙂"),
        ("'🙂'", "'🙂'"),
        ("import sys; print('to stderr', file=sys.stderr)", "to stderr"),
        ("def f(n): return 1 if n < 2 else n * f(n - 1)\nf(5)", "120"),
        ("if True:\n    3", "(no output)"),
        ("__name__", "'__main__'"),
        ("import pickle\nclass C: pass\ntype(pickle.loads(pickle.dumps(C()))) is C", "True"),
        ("exit", "NameError"),
        ("input()", "EOFError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import sys; sys.exit()", "(no output)"),
        ("print('\\ud800')", "\\ud800"),
    ],
)
def test_cell_shows_what_it_printed_and_its_last_value(code: str, text: str) -> None:
    [answer] = run(code)
    assert answer == text or (text.endswith("Error") and text in answer)


def test_exception_shows_only_the_frames_of_the_cell() -> None:
    [answer] = run("def f():\n    return 1 / 0\nprint('first')\nf()")
    assert answer.startswith('first\nTraceback (most recent call last):\n  File "<cell 1>", line 4')
    assert "return 1 / 0" in answer
    assert answer.endswith("ZeroDivisionError: division by zero")
    assert "<sandbox>" not in answer
    assert "<string>" not in answer


def test_syntax_error_shows_the_line() -> None:
    [answer] = run("x = 1\nx = = 2")
    assert "line 2" in answer
    assert "SyntaxError: invalid syntax" in answer
    assert "<sandbox>" not in answer


def test_exception_without_a_text_still_has_a_name() -> None:
    [answer] = run("class Shy(Exception):\n    def __str__(self): raise ValueError\nraise Shy")
    assert "Shy" in answer


@pytest.mark.whole
def test_how_a_cell_ended_is_noted() -> None:
    assert ending("1") == "ok"
    assert ending("1 / 0") == "error"
    with pytest.raises(ToolTimeoutError):
        ending("while True: pass", seconds=0.5)
    assert ending("import os; os._exit(1)") == "died"


# Limits


@pytest.mark.whole
@pytest.mark.parametrize(
    "code", ["while True: pass", "import time; time.sleep(60)", "import os; os.kill(os.getpid(), 19)"]
)
def test_timeout_keeps_what_was_printed(code: str) -> None:
    [answer] = run(f"print('begun', end='')\n{code}", seconds=1.0)
    assert answer == "begun\ntimed out after 1 s"


def test_memory_limit_is_named() -> None:
    [answer] = run("held = bytearray(1 << 30)", limits=SandboxLimits(memory_mb=200))
    assert answer == "MemoryError: the memory limit is 200 MB"


@pytest.mark.whole
def test_cpu_limit_is_named() -> None:
    [answer] = run("while True: pass", seconds=30, limits=SandboxLimits(cpu_seconds=1))
    assert answer == "killed: CPU limit of 1 s"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import os; os._exit(3)", "the interpreter ended with exit code 3"),
        ("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", "killed (the limits are 1024 MB of memory and 120 s of CPU)"),
    ],
)
def test_crash_is_told(code: str, text: str) -> None:
    assert run(code) == [text]


def test_deep_recursion_is_an_error_not_a_crash() -> None:
    [answer] = run("def f(): return f()\nf()")
    assert "RecursionError" in answer
    assert len(answer) < 11_000


def test_long_output_is_cut_in_the_middle() -> None:
    [answer] = run("print('a' * 60 + 'b' * 60)", max_chars=100)
    assert answer == "a" * 50 + "\n[... 21 of 121 characters left out ...]\n" + "b" * 49


def test_flood_is_cut_and_killed() -> None:
    [answer] = run("while True: print('x' * 100000)", max_chars=100)
    assert answer.startswith("x" * 100 + "\n[... cut: ")
    assert answer.endswith("killed: it printed too much")


def test_long_value_and_long_code_are_bounded() -> None:
    [answer] = run("'y' * 10**7", max_chars=1000)
    assert len(answer) < 1100
    [answer] = run(f"x = '{'z' * 90_000}'\nlen(x)")
    assert answer == "90000"


@pytest.mark.parametrize("args", [{}, {"code": 3}, {"code": "1", "more": 1}, {"code": "#" * 100_001}])
def test_wrong_arguments_are_the_models_mistake(args: dict[str, Any]) -> None:
    with pytest.raises(ToolInputError):
        asyncio.run(PythonTool().execute(args, context=ToolContext(task=TASK)))


@pytest.mark.whole
def test_a_cell_that_is_killed_counts_as_a_timeout() -> None:
    async def run() -> CallOutcome:
        [made] = BaseTool.find({"name": "python", "seconds": 0.5})
        call = ToolCall(name="python", arguments={"code": "print('begun')\nwhile True: pass"})
        return await ToolRunner().call({"python": made}, call, ToolContext(task=TASK))

    got = asyncio.run(run())
    assert (got.status, got.response.text) == ("timeout", "Error: begun\ntimed out after 0.5 s")


class WatchedSandbox(Sandbox):
    """Knows the sessions it started."""

    def start(self, program: str) -> SandboxSession:
        self.session = super().start(program)
        return self.session


@pytest.mark.whole
def test_a_shorter_timeout_of_the_configuration_ends_a_cell_too() -> None:
    made = PythonTool(seconds=60)
    made.sandbox = sandbox = WatchedSandbox()
    runner = ToolRunner({"python": {"timeout": 0.5}})
    call = ToolCall(name="python", arguments={"code": "while True: pass"})
    got = asyncio.run(runner.call({"python": made}, call, ToolContext(task=TASK)))
    assert (got.status, got.response.text) == ("timeout", "Error: python timed out after 0.5 seconds")
    assert sandbox.session.is_over


def test_settings_can_stand_in_the_configuration() -> None:
    [made] = BaseTool.find({"name": "python", "limits": {"memory_mb": 200}})
    assert isinstance(made, PythonTool)
    assert made.sandbox.limits == SandboxLimits(memory_mb=200)
    with pytest.raises(ConfigError, match=r"unexpected keyword argument 'memory'"):
        BaseTool.find({"name": "python", "limits": {"memory": 200}})


def test_an_interpreter_that_lasts_cannot_live_in_a_worker_process() -> None:
    with pytest.raises(ConfigError, match="keeps something open for an episode"):
        check_process_tool(PythonTool())


# State


def test_every_call_is_fresh_unless_stateful() -> None:
    assert "NameError" in run("x = 5", "x")[1]
    assert run("x = 5", "x + 1", "_ * 2", stateful=True) == ["(no output)", "6", "12"]


def test_error_keeps_the_state_and_names_its_cell() -> None:
    answers = run("x = 5", "1 / 0", "x", stateful=True)
    assert 'File "<cell 2>"' in answers[1]
    assert answers[2] == "5"


@pytest.mark.whole
@pytest.mark.parametrize("crash", ["while True: pass", "import os; os._exit(1)", "while True: print('x' * 10**6)"])
def test_lost_interpreter_is_replaced_and_said_so(crash: str) -> None:
    _, lost, after, again = run("x = 5", crash, "'x' in globals()", "7", stateful=True, seconds=3.0)
    assert lost.endswith("\n[the interpreter was restarted: all variables are gone]")
    assert (after, again) == ("False", "7")


def test_process_that_a_cell_forked_does_not_answer() -> None:
    assert run("import os; pid = os.fork()\nNone", "1 + 1", "2 + 2", stateful=True)[1:] == ["2", "4"]


def test_calls_of_one_turn_run_in_order_in_one_interpreter() -> None:
    calls = tuple(ToolCall(name="python", arguments={"code": code}) for code in ("x = 1", "x += 1", "x"))

    async def episode() -> list[str]:
        env = ToolEnv([PythonTool(stateful=True)])
        await env.reset(TASK)
        try:
            result = await env.step(Action(text="", tool_calls=calls))
        finally:
            await env.close()
        assert result.observation is not None
        return [str(message["content"]) for message in (result.observation.messages or ())[-3:]]

    assert asyncio.run(episode())[-1] == "2"


def test_episodes_do_not_share_an_interpreter() -> None:
    made = PythonTool(stateful=True)

    async def two() -> str:
        contexts = [ToolContext(task=TASK), ToolContext(task=TASK)]
        await made.execute({"code": "x = 1"}, context=contexts[0])
        answer = (await made.execute({"code": "'x' in globals()"}, context=contexts[1]))[0].text
        for context in contexts:
            await made.close(context)
            assert not context.state
        return answer

    assert asyncio.run(two()) == "False"


# Names and hooks


def test_tool_has_two_names() -> None:
    for name in ("python", "code_interpreter"):
        made = BaseTool.get(name)
        assert isinstance(made, PythonTool)
        assert made.name == made.tool_schema["function"]["name"] == name
        assert made.tool_schema["function"]["parameters"]["required"] == ["code"]


def test_schema_says_whether_variables_last() -> None:
    described = [PythonTool(stateful=value).tool_schema["function"]["description"] for value in (True, False)]
    assert [bool(re.search("Variables last", text)) for text in described] == [True, False]


@pytest.mark.parametrize("kind", ["bubblewrap", "namespaces", "limits"])
def test_packages_can_be_imported_when_asked_for(kind: SandboxKind) -> None:
    try:
        Sandbox(kind)
    except ConfigError as error:
        pytest.skip(str(error))
    code = "import typing_extensions; typing_extensions.__name__"
    assert "ModuleNotFoundError" in run(code, sandbox=kind)[0]
    assert run(code, sandbox=kind, packages=True, seconds=60) == ["'typing_extensions'"]


def test_interpreter_starts_without_slow_modules() -> None:
    slow = {"json", "re", "typing", "signal", "contextlib", "traceback", "site", "asyncio"}
    [answer] = run(f"import sys; sorted({slow!r} & set(sys.modules))")
    assert answer == "[]"


class Noting(BaseTool):
    """A tool that notes how it was closed."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name = name
        self.tool_schema = {"type": "function", "function": {"name": name, "description": "", "parameters": {}}}
        self.closed: list[ToolContext] = []
        self.error = error

    async def execute(self, args: Any, **kwargs: Any) -> ToolResult:
        if self.error is not None:
            raise self.error
        return ToolResponse(text=""), None, {}

    async def close(self, context: ToolContext) -> None:
        self.closed.append(context)
        if self.error is not None:
            raise self.error


def test_environment_closes_its_tools_once_also_when_one_fails() -> None:
    tools = [Noting("a", OSError("stuck")), Noting("b")]

    async def episode() -> None:
        env = ToolEnv(tools)
        await env.close()
        await env.reset(TASK)
        with pytest.raises(EpisodeError, match=r"(?s)close of tool 'a' failed.*stuck"):
            await env.close()
        await env.close()

    asyncio.run(episode())
    assert [len(made.closed) for made in tools] == [1, 1]
    assert tools[0].closed[0].task == TASK


def test_broken_machinery_is_not_shown_to_the_model() -> None:
    broken = Noting("a", EpisodeError(StopReason.TOOL_ERROR, "a sandbox", "no processes left"))
    with pytest.raises(EpisodeError, match="no processes left"):
        asyncio.run(run_call({"a": broken}, ToolCall(name="a", arguments={}), ToolContext(task=TASK)))
