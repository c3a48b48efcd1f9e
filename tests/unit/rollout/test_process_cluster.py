"""`ProcessWorker`: whenever its start is given up, no socket and no process is left."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from agent_r1.rollout.workers import process_cluster
from agent_r1.rollout.workers.cluster import WorkerLostError
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


GARBAGE = """
import socket, sys
ours = socket.socket(fileno=int(sys.argv[1]))
ours.sendall((7).to_bytes(8, "big") + b"garbage")
ours.recv(1)
"""


def test_a_worker_that_sends_what_cannot_be_read_is_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Code of an episode that writes to every descriptor it finds, for example."""
    (tmp_path / "agent_r1" / "rollout" / "workers").mkdir(parents=True)
    for folder in ("agent_r1", "agent_r1/rollout", "agent_r1/rollout/workers"):
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "agent_r1" / "rollout" / "workers" / "process_child.py").write_text(GARBAGE)
    monkeypatch.setattr(process_cluster, "_STOP_SECONDS", 0.01)
    monkeypatch.chdir(tmp_path)

    async def play() -> None:
        worker = process_cluster.ProcessWorker(b"", {**os.environ, "PYTHONPATH": str(tmp_path)})
        try:
            with pytest.raises(WorkerLostError, match=r"process \d+ sent what cannot be read: .*Unpickling"):
                await worker.start()
        finally:
            await worker.stop()

    asyncio.run(play())
