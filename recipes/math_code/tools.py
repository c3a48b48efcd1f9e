"""The tool of math_code: Python with sympy, in a sandbox, with variables that last over an episode."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

from agent_r1.constraints import Count, Seconds
from agent_r1.errors import ConfigError
from agent_r1.tools import BaseTool, PythonTool, num_cores

MEMORY_MB = 1024
MAX_INTERPRETERS = 64
"""Living interpreters of all episodes: about 15 MB and three processes each."""

PRELOAD = """
import sympy
from sympy import *
x, y = symbols("x y")
solve(x**2 - 2, x)
solve([x + y - 1, x - y - 3], [x, y], dict=True)
solveset(x**2 - 1, x)
integrate(x**2, x)
nsolve(x**2 - 2, 1)
simplify(sin(x) ** 2 + cos(x) ** 2)
"""
"""Runs once, in the process that interpreters are forked from: sympy imports half of itself when it is first used."""


@BaseTool.register("math_python")
class MathPython(PythonTool):
    """The library's Python tool, by the same name, with settings for short programs.

    Programs run on as many cores as there are, so that `seconds` means the same for one episode and for 512.
    """

    def __init__(
        self, *, seconds: Seconds = 5.0, max_chars: Count = 400, max_interpreters: Count = MAX_INTERPRETERS
    ) -> None:
        if importlib.util.find_spec("sympy") is None:
            raise ConfigError("math_code needs sympy: pip install 'agent-r1[math]'")
        super().__init__(
            stateful=True,
            seconds=seconds,
            max_chars=max_chars,
            packages=True,
            preload=PRELOAD,
            max_interpreters=max_interpreters,
            brief_errors=True,
            limits={"memory_mb": MEMORY_MB},
        )
        self.policy = replace(self.policy, max_concurrency=min(num_cores(), max_interpreters))
