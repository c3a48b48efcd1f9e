"""A real vLLM server in a process of its own, on a port that stays: it can be killed and started again.

The Python in whose environment vLLM is installed is in the variable VLLM_PYTHON (`make vllm` makes one for CPUs).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.helpers.ports import free_port

START_SECONDS = 600.0
"""vLLM starts in one to five minutes on two cores."""


class VllmServer:
    """vLLM with what training needs, and with tools on its chat API."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        self.log = log
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[Any] | None = None

    def start(self) -> VllmServer:
        """Start it, and wait until it answers."""
        self.begin()
        deadline = time.monotonic() + START_SECONDS
        while not self.is_up():
            assert self._process is not None
            assert self._process.poll() is None, f"the server ended:\n{self.log.read_text()[-4000:]}"
            assert time.monotonic() < deadline, f"no answer in {START_SECONDS} s:\n{self.log.read_text()[-4000:]}"
            time.sleep(0.5)
        return self

    def begin(self) -> None:
        """Start it, and return at once."""
        command = [
            *(os.environ["VLLM_PYTHON"], "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self.folder), "--served-model-name", "policy", "--dtype", "float32"),
            *("--host", "127.0.0.1", "--port", str(self.port), "--enforce-eager"),
            *("--enable-scale-out", "--logprobs-mode", "processed_logprobs"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            # On a CPU a prompt that is computed in several steps, with a seed, ends the server.
            *("--no-enable-chunked-prefill", "--max-num-batched-tokens", "16384"),
        ]
        variables = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env={**environment, **variables, "HF_HUB_OFFLINE": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_up(self) -> bool:
        """Whether it says that it is well."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        """SIGSTOP: it keeps its port and answers nothing."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """SIGKILL to the process and all that it started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
