"""The tool `python`: run code like a notebook, in a sandbox.

    print(2 + 2)               ->  4
    [n * n for n in range(3)]  ->  [0, 1, 4]

By default every call starts a new interpreter. `PythonTool(stateful=True)` keeps one per episode, so that variables
last from call to call:

    env.tools=[{name: python, stateful: true}]

`max_interpreters` bounds how many of these are alive at once (`notebooks.py`), and `preload` is Python text that runs
once for all of them: with "import sympy" the first call of an episode takes milliseconds instead of seconds.
"""

from __future__ import annotations

import inspect
import math
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_r1.constraints import Count, Seconds
from agent_r1.errors import ConfigError
from agent_r1.tools.base import BaseTool, ToolContext, ToolInputError, ToolResponse, ToolResult, ToolTimeoutError
from agent_r1.tools.builtin.notebooks import Interpreters, Notebook
from agent_r1.tools.exit_status import signal_name
from agent_r1.tools.policy import ToolPolicy
from agent_r1.tools.results import cut_middle
from agent_r1.tools.sandbox.layers import SandboxKind, SandboxLimits
from agent_r1.tools.sandbox.sandbox import Sandbox
from agent_r1.tools.sandbox.session import SandboxReply, SandboxSession

_CELLS = (Path(__file__).parent.parent / "sandbox" / "cells.py").read_text()
_MAX_CODE = 100_000
_STARTUP_SECONDS = 30.0
_CALLS_OF_A_TURN = 20
_REPLAYED_CALLS = 2
"""Earlier cells are run again if they took no longer together than so many calls may."""
_GONE = "[the interpreter was restarted: all variables are gone]"
_CELL_LINE = re.compile(r'File "<cell \d+>", line (\d+)')


@BaseTool.register("python")
class PythonTool(BaseTool):
    """Runs Python code and shows what it printed, the value of its last expression, or the traceback.

    A call that takes longer than `seconds` is killed with everything it started; the model still reads what it had
    printed, at most `max_chars`. `sandbox`, `limits`, `packages` and `preload` are those of `Sandbox`. With
    `brief_errors` an exception is shown without its traceback, but with the line of the cell.
    """

    name = "python"

    def __init__(
        self,
        *,
        stateful: bool = False,
        seconds: Seconds = 10.0,
        max_chars: Count = 10_000,
        sandbox: SandboxKind = "auto",
        limits: SandboxLimits | Mapping[str, Any] | None = None,
        packages: bool = False,
        preload: str = "",
        max_interpreters: Count | None = None,
        brief_errors: bool = False,
    ) -> None:
        if not (_is_number(seconds) and 0 < seconds < math.inf) or not (_is_number(max_chars) and max_chars >= 1):
            raise ConfigError(
                f"the Python tool needs seconds above 0 and max_chars of at least 1; found {seconds!r}, {max_chars!r}"
            )
        self.sandbox = Sandbox(sandbox, _as_limits(limits), packages=packages, preload=preload)
        self._max_interpreters = max_interpreters or sys.maxsize
        self._brief_errors = brief_errors
        self._stateful = stateful
        self._seconds = seconds
        self._max_chars = max_chars
        # The runner's limits are a backstop: only the tool's own show what a killed cell had printed. Calls of one turn
        # run one after the other in a stateful interpreter.
        self.policy = ToolPolicy(
            timeout=seconds * (_CALLS_OF_A_TURN if stateful else 1) + _STARTUP_SECONDS,
            max_output_chars=2 * max_chars + 1000,
        )
        lasts = "Variables last from call to call." if stateful else "Every call starts afresh."
        code = {"type": "string", "description": "The code. The value of a last expression is shown, like print."}
        self.tool_schema = {
            "type": "function",
            "function": {
                "name": self.name,
                "description": f"Run Python code and read what it prints. {lasts}",
                "parameters": {"type": "object", "properties": {"code": code}, "required": ["code"]},
            },
        }

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        """Run one cell. An exception inside is part of the answer; `info["ended"]` says how the cell ended. A cell
        killed at its deadline is a `ToolTimeoutError` with what it had printed."""
        code = self._checked_code(args)
        if self._stateful:
            text, ending = await self._run_in_notebook(code, self._notebook(kwargs["context"]))
        else:
            session = await self._open()
            try:
                reply = await self._ask(session, code)
            finally:
                await session.close()
            text, ending = self._show(reply)
        if ending == "timeout":
            raise ToolTimeoutError(text)
        return ToolResponse(text=text), None, {"ended": ending}

    async def close(self, context: ToolContext) -> None:
        """End the episode's interpreter."""
        notebook = context.state.pop(self._state_key, None)
        if notebook is not None:
            await self._interpreters().close(notebook)

    async def _run_in_notebook(self, code: str, notebook: Notebook) -> tuple[str, str]:
        run = await self._interpreters().run(notebook, code, self._open, self._ask)
        text, ending = self._show(run.reply)
        parts = (_GONE if run.lost_before else "", text, _GONE if run.lost_after else "")
        return "\n".join(part for part in parts if part), ending

    def _interpreters(self) -> Interpreters:
        return Interpreters.here(self._max_interpreters, _REPLAYED_CALLS * self._seconds)

    async def _open(self) -> SandboxSession:
        return await self.sandbox.open(_CELLS)

    async def _ask(self, session: SandboxSession, code: str) -> SandboxReply:
        return await session.ask({"code": code}, seconds=self._seconds, max_bytes=4 * self._max_chars)

    def _notebook(self, context: ToolContext) -> Notebook:
        notebook: Notebook = context.state.setdefault(self._state_key, Notebook())
        return notebook

    @property
    def _state_key(self) -> str:
        return f"{self.name} interpreter"

    def _checked_code(self, args: Mapping[str, Any]) -> str:
        code = args.get("code")
        if not isinstance(code, str) or set(args) != {"code"}:
            raise ToolInputError(f"{self.name} takes one argument, 'code', a string; got {sorted(args) or 'none'}")
        if len(code) > _MAX_CODE:
            raise ToolInputError(f"the code is longer than {_MAX_CODE} characters")
        return code

    def _show(self, reply: SandboxReply) -> tuple[str, str]:
        """What the model reads, and how the call ended, in one word."""
        text = reply.report.get("shown", "")
        text = text if isinstance(text, str) else "(the interpreter sent a broken report)"
        if self._brief_errors and reply.report.get("status") == "error":
            text = brief_error(text)
        note, ending = self._verdict(reply)
        parts = (self._output_text(reply).rstrip("\n"), cut_middle(text, self._max_chars), note)
        return "\n".join(part for part in parts if part) or "(no output)", ending

    def _output_text(self, reply: SandboxReply) -> str:
        if not reply.num_bytes_cut:
            return cut_middle(reply.output, self._max_chars)
        head, rest = reply.output[: self._max_chars], reply.output[self._max_chars :]
        return f"{head}\n[... cut: {reply.num_bytes_cut + len(rest)} more bytes ...]"

    def _verdict(self, reply: SandboxReply) -> tuple[str, str]:
        limits = self.sandbox.limits
        match reply.ended:
            case "timeout":
                return f"timed out after {self._seconds:g} s", "timeout"
            case "flood":
                return "killed: it printed too much", "flood"
            case "died":
                return _cause_of_death(reply.exit_code, limits), "died"
        if reply.report.get("status") == "memory":
            return f"MemoryError: the memory limit is {limits.memory_mb} MB", "error"
        return "", "error" if reply.report.get("status") == "error" else "ok"


@BaseTool.register("code_interpreter")
class CodeInterpreter(PythonTool):
    """The Python tool under the name that many datasets and models use."""

    name = "code_interpreter"


def _cause_of_death(exit_code: int | None, limits: SandboxLimits) -> str:
    """Why an interpreter died.

    >>> _cause_of_death(3, SandboxLimits())
    'the interpreter ended with exit code 3'
    """
    if exit_code is None:
        return "killed"
    if exit_code >= 0:
        return f"the interpreter ended with exit code {exit_code}"
    if -exit_code == signal.SIGXCPU:
        return f"killed: CPU limit of {limits.cpu_seconds} s"
    if -exit_code == signal.SIGKILL:
        return f"killed (the limits are {limits.memory_mb} MB of memory and {limits.cpu_seconds} s of CPU)"
    return f"killed by {signal_name(-exit_code)}"


def brief_error(traceback: str) -> str:
    """The last line of a traceback, and the line of the cell that raised.

    >>> brief_error('Traceback ...\\n  File "<cell 1>", line 4, in <module>\\nValueError: no')
    'line 4: ValueError: no'
    """
    lines = _CELL_LINE.findall(traceback)
    last = traceback.rstrip().rpartition("\n")[2]
    return f"line {lines[-1]}: {last}" if lines else last


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_limits(limits: SandboxLimits | Mapping[str, Any] | None) -> SandboxLimits | None:
    """The limits, also from a configuration: `{memory_mb: 2048}`."""
    if not isinstance(limits, Mapping):
        return limits
    try:
        return SandboxLimits(**limits)
    except TypeError as error:
        names = ", ".join(inspect.signature(SandboxLimits).parameters)
        raise ConfigError(f"limits of the Python tool: {error}. There are: {names}") from None
