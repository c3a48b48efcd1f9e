"""The main program of a worker process on this machine: a `RolloutWorker` at one end of a socket.

`python -m agent_r1.rollout.workers.process_child FD`, which only `process_cluster` starts. The first message is the
set-up, the first answer how the start went. Then batches of messages travel in both directions until the driver sends
None, or is gone.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from contextlib import suppress

from agent_r1.rollout.workers.frames import read_frame, write_frame
from agent_r1.rollout.workers.worker import RolloutWorker

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the driver at the other end of the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver stops its workers when the run has saved
    os.dup2(2, 1)  # what the recipe's code prints must not mix with the command's own output
    if sys.platform == "linux":  # also when code of the recipe blocks the event loop
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(asyncio.IncompleteReadError, ConnectionError):  # the driver is gone
        asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1]))))


async def _serve(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    worker = RolloutWorker(await read_frame(reader))
    write_frame(writer, await worker.start())
    sending = asyncio.create_task(_send(worker, writer))
    try:
        batch = 0
        while (messages := await read_frame(reader)) is not None:
            await worker.deliver(batch, messages)
            batch += 1
    finally:
        sending.cancel()
        await worker.close()
        writer.close()


async def _send(worker: RolloutWorker, writer: asyncio.StreamWriter) -> None:
    while True:
        write_frame(writer, await worker.poll())
        await writer.drain()


if __name__ == "__main__":
    main()
