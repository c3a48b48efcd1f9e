"""`ProcessWorker`: whenever its start is given up, no socket and no process is left."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress

import pytest

from agent_r1.rollout.workers import process_cluster
from tests.helpers.worker_runs import processes_below

UNREADABLE = b"x" * (8 << 20)
"""Longer than a socket's buffer, so that a part is not sent yet when the worker has failed."""


@pytest.mark.parametrize("ticks", [0, 1, 2, 3, 5, 8, 13, 21])
def test_a_start_that_is_cancelled_leaves_no_socket_and_no_process(ticks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[socket.socket] = []
    real = socket.socketpair

    def socketpair(*args: int) -> tuple[socket.socket, socket.socket]:
        pair = real(*args)
        pairs.extend(pair)
        return pair

    async def play() -> None:
        monkeypatch.setattr(socket, "socketpair", socketpair)
        monkeypatch.setattr(process_cluster, "_STOP_SECONDS", 0.01)
        worker = process_cluster.ProcessWorker(UNREADABLE, dict(os.environ))
        starting = asyncio.create_task(worker.start())
        for _ in range(ticks):
            await asyncio.sleep(0)
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        await worker.stop()
        assert [each.fileno() for each in pairs] == [-1] * len(pairs)

    asyncio.run(play())
    assert len(pairs) in {0, 2}
    assert not [name for name in processes_below(os.getpid()).values() if "process_child" in name]
