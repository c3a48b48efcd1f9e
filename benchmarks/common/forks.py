"""Runs that are forked from a process which has imported everything: a run of a minute spends seconds on imports.

The process that forks never touches the GPU, since CUDA does not survive a fork: its checks ask the driver's library
instead.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.common.processes import ROOT

PRELOADED = [
    "agent_r1.cli",
    "agent_r1.api",
    "agent_r1.training.run",
    "agent_r1.engines.local.engine",
    "agent_r1.tools.builtin.search",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
]
"""What each run would import; the first that is forked starts the process that imports it."""


class ForkedProcess:
    """`agent-r1 ARGUMENTS` in a process of its own."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)  # libraries read some of it when they are loaded
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._process = context.Process(target=_become, args=(list(command), str(log), dict(environment)))
        self._process.start()

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("agent-r1", timeout or 0.0)
        return self._process.exitcode

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it."""
        self._process.kill()


def _become(command: Sequence[str], log: str, environment: Mapping[str, str]) -> None:
    """Run a command as it would run from the command line."""
    os.setsid()  # Ctrl-C reaches the process that started it alone
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for number in (1, 2):
        os.dup2(output, number)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update({**environment, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"})
    sys.argv = ["agent-r1", *command]
    from agent_r1.cli import main

    try:
        main()
    finally:
        _wait_for_gpu()


def _wait_for_gpu() -> None:
    """A forked process ends at once. Under NVIDIA's MPS, one that ends before its work on the GPU breaks those beside
    it: seen with six runs, five of which ended with an illegal memory access whenever one was finished."""
    import torch

    if torch.cuda.is_initialized():
        with suppress(RuntimeError):  # a device that has failed computes nothing more
            torch.cuda.synchronize()
