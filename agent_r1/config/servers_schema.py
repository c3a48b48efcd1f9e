"""The section `engine.servers`: inference servers in processes of their own, for `engine=vllm`, `sglang`, `http`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from agent_r1.constraints import Count, CountOrZero, PathText, Positive, Seconds


@dataclass
class ServersConfig:
    """Inference servers, for engines that are not in this process."""

    urls: list[str] = field(default_factory=list)
    """Addresses of running servers, such as `[http://127.0.0.1:8000]`."""
    key_env: Optional[str] = None
    """Name of the environment variable that holds the servers' API key; null: they need none."""
    model: Optional[str] = None
    """The model's name at the servers; null: the one that they serve."""
    concurrency: Count = 256
    """Maximum requests at once per server; the others wait in this process."""
    timeout: Seconds = 600.0
    """Maximum seconds per request to a server; a request that takes longer is retried."""
    retries: CountOrZero = 4
    """How often a request is sent again after a failure, with the tokens that it has."""
    admin_timeout: Seconds = 300.0
    """Maximum seconds per call that updates the weights of a server."""
    lost_seconds: Seconds = 120.0
    """The run ends when no server can be used for this long, or for `start_timeout` where it started some. A started
    server that was ready and is not well for this long is ended and started again."""
    weights_folder: Optional[PathText] = None
    """Where weights are written for the servers to load; servers on other machines need a shared one. null: a temporary
    folder."""
    tolerance: Optional[Positive] = None
    """Maximum mean difference between the log-probs of a server and the trainer's on a probe. null: what rounding
    explains, 0.001 for float32 and 0.1 for bfloat16."""
    start: CountOrZero = 0
    """Servers that the run starts on this machine and stops at its end, beside `urls`. One whose process ends is
    started again."""
    restarts: CountOrZero = 3
    """How often in a row a started server is started again; a request that it answers ends the row. One that has never
    been ready is started again once."""
    python: Optional[PathText] = None
    """The Python in whose environment vLLM or SGLang is installed, for `start`; null: the one that runs Agent-R1."""
    devices: list[str] = field(default_factory=list)
    """GPUs of the started servers, one entry per server (CUDA_VISIBLE_DEVICES): `["1", "2,3"]`; empty: not set."""
    arguments: list[str] = field(default_factory=list)
    """Further command-line arguments of the started servers, such as `[--max-num-seqs, "512"]`."""
    environment: list[str] = field(default_factory=list)
    """Further environment variables of the started servers, such as `[PYTHONPATH=/opt/vllm]`. They have those of the
    run, but not its PYTHONPATH."""
    start_timeout: Seconds = 900.0
    """Maximum seconds until a started server answers; one that takes longer is ended and started again."""
