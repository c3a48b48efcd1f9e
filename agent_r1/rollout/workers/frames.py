"""Messages between this process and a worker process on the same machine: eight bytes of length, then a pickle."""

from __future__ import annotations

import asyncio
import pickle
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")


def write_frame(writer: asyncio.StreamWriter, message: Any) -> None:
    """Queue one message."""
    payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    writer.write(_LENGTH.pack(len(payload)))
    writer.write(payload)


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """The next message. Raises `asyncio.IncompleteReadError` or `ConnectionError` when the other end is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))
