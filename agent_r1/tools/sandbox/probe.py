"""Find the strongest sandbox that works on this machine, by running a small program in it."""

from __future__ import annotations

import functools
import os
import select
import shutil
import sys
import time
from dataclasses import replace
from typing import Literal, get_args

from agent_r1.errors import ConfigError, EpisodeError, did_you_mean
from agent_r1.tools.sandbox import cgroup, seccomp
from agent_r1.tools.sandbox.launch import launch
from agent_r1.tools.sandbox.layers import Layers, SandboxKind, SandboxLimits
from agent_r1.tools.sandbox.session import parse_report

_PROBE_SECONDS = 20.0
# What the interpreter loads late must still be readable when its rights are gone.
_PROBE = "import decimal, sqlite3.dbapi2, os; os.write(settings['reports'], b'{\"works\": true}\\n')"


def find_layers(kind: str) -> Layers:
    """The layers of `kind`, or of the strongest kind that works; `ConfigError` says why there are none."""
    if kind not in get_args(SandboxKind):
        raise ConfigError(f"unknown sandbox '{kind}'. {did_you_mean(kind, get_args(SandboxKind))}")
    if sys.platform != "linux":
        raise ConfigError(f"the sandbox needs Linux, this is {sys.platform}; run it in a container (docs/sandbox.md)")
    problems = []
    for candidate in ("bubblewrap", "namespaces", "limits") if kind == "auto" else (kind,):
        layers, problem = layers_of_kind(candidate)
        if layers is not None:
            return layers
        problems.append(f"{candidate}: {problem}")
    raise ConfigError(f"sandbox '{kind}' does not work here. " + "; ".join(problems) + ". See docs/sandbox.md.")


@functools.cache
def layers_of_kind(kind: Literal["bubblewrap", "namespaces", "limits"]) -> tuple[Layers | None, str]:
    """The layers of a kind, found by running a program in them, or the reason why it does not work."""
    if kind == "bubblewrap" and shutil.which("bwrap") is None:
        return None, "the program 'bwrap' is not installed (apt install bubblewrap, dnf install bubblewrap)"
    problem = ""
    isolated = kind != "limits"
    is_root = os.getuid() == 0
    for own_user in (True, False) if is_root else (False,):
        layers = Layers(
            kind=kind,
            no_network=isolated,
            files_hidden=isolated,
            processes_hidden=isolated,
            own_user=own_user,
            processes_limited="by counting" if is_root and not own_user else "by the kernel",
            calls_filtered=seccomp.is_known_machine(os.uname().machine),
            memory_limited="per process" if cgroup.find_parent() is None else "in sum",
        )
        working, problem = _without_failing_layers(layers)
        if working is not None:
            return working, ""
    return None, problem


def _without_failing_layers(layers: Layers) -> tuple[Layers | None, str]:
    """The layers that work: some kernels and containers have no control groups for us, or no seccomp."""
    problem = _problem(layers)
    if "cgroup" in problem and layers.memory_limited == "in sum":
        return _without_failing_layers(replace(layers, memory_limited="per process"))
    if "seccomp" in problem and layers.calls_filtered:
        return _without_failing_layers(replace(layers, calls_filtered=False))
    return (None, problem) if problem else (layers, "")


def _problem(layers: Layers) -> str:
    """Run a small program under these layers: "" when it works, else what went wrong."""
    try:
        interpreter = launch(_PROBE, layers, SandboxLimits(), ())
    except EpisodeError as error:
        return f"{error.where}: {error.details}"
    ends = (interpreter.reports, interpreter.output)
    output = dict.fromkeys(ends, b"")
    deadline = time.monotonic() + _PROBE_SECONDS
    while b"works" not in output[interpreter.reports] and time.monotonic() < deadline:
        ready, _, _ = select.select(ends, (), (), 0.1)
        chunks = {end: os.read(end, 65536) for end in ready}
        for end, data in chunks.items():
            output[end] += data
        if interpreter.reports in chunks and not chunks[interpreter.reports]:
            break
    for descriptor in (*ends, interpreter.requests):
        os.close(descriptor)
    interpreter.process.wait()
    cgroup.remove_group(interpreter.group)
    if interpreter.folder is not None:
        shutil.rmtree(interpreter.folder, ignore_errors=True)
    if b"works" in output[interpreter.reports]:
        return ""
    return (
        _first_failure(output[interpreter.reports])
        or output[interpreter.output].decode(errors="replace")[-300:].strip()
    )


def _first_failure(reports: bytes) -> str:
    for line in reports.splitlines():
        message = parse_report(line)
        if message is not None and "failed" in message:
            return str(message["failed"])
    return ""
