"""Running cells in a small sandbox: shared by the tests of what it holds back."""

from __future__ import annotations

import asyncio
import textwrap
from typing import Any

import pytest

from agent_r1.errors import ConfigError
from agent_r1.tools.builtin.python import _CELLS
from agent_r1.tools.sandbox.layers import SandboxKind, SandboxLimits
from agent_r1.tools.sandbox.sandbox import Sandbox
from agent_r1.tools.sandbox.session import SandboxReply

KINDS: tuple[SandboxKind, ...] = ("bubblewrap", "namespaces", "limits")
SMALL = SandboxLimits(memory_mb=256, processes=8, file_mb=4, disk_mb=8, open_files=32, cpu_seconds=20)


def small_sandbox(kind: SandboxKind) -> Sandbox:
    """A sandbox of this kind with low limits; the test is skipped where the machine has none."""
    try:
        return Sandbox(kind, SMALL)
    except ConfigError as error:
        pytest.skip(str(error))


def attempt(sandbox: Sandbox, *cells: str, seconds: float = 20.0, **options: Any) -> list[SandboxReply]:
    """The replies to some cells, in one session that is closed afterwards."""

    async def run() -> list[SandboxReply]:
        session = sandbox.start(_CELLS)
        try:
            return [await session.ask({"code": cell}, seconds=seconds, **options) for cell in cells]
        finally:
            await session.close()

    return asyncio.run(run())


def shown(sandbox: Sandbox, cell: str) -> str:
    """What one cell showed, be it a value or a traceback."""
    [reply] = attempt(sandbox, textwrap.dedent(cell))
    assert reply.ended == "answered", reply
    return str(reply.report["shown"])


def needs(condition: bool, what: str) -> None:
    if not condition:
        pytest.skip(f"not contained by this kind of sandbox here: {what}")
