"""Ports for servers that are started later, or again, in another process."""

from __future__ import annotations

import itertools
import os
import socket

# Below the range that systems take ports from for outgoing connections and for port 0: there, another process may be
# given a port between the moment it was found free and the moment a server listens on it.
_FIRST, _COUNT = 20_000, 10_000
_turns = itertools.count()


def free_port() -> int:
    """A port that is free now, and that neither this process nor another test process is given soon."""
    for _ in range(_COUNT):
        port = _FIRST + (os.getpid() * 37 + next(_turns)) % _COUNT
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no port from {_FIRST} to {_FIRST + _COUNT - 1} is free")
