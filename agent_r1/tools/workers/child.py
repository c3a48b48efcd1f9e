"""The code inside a worker process: receive a request, call the function, send plain data back.

A message is eight bytes of length and that many bytes of pickle. Requests come from the parent, which the worker
trusts. Replies are plain data (numbers, text, bytes, lists, tuples, dicts, sets): the parent reads them with an
unpickler that accepts nothing else, so a reply cannot run code there.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import inspect
import io
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from agent_r1.registry import open_recipe_package, recipe_folder
from agent_r1.tools.results import describe
from agent_r1.tools.workers.function_ref import FunctionRef
from agent_r1.tools.workers.imported_code import CodeChangedError

HEADER = struct.Struct("!Q")
_MAX_TRACEBACK_CHARS = 20_000
_PR_SET_CHILD_SUBREAPER = 36
_MAX_GENERATIONS, _REAP_SECONDS = 50, 0.002


def serve(requests_fd: int, lifeline_fd: int, max_result_bytes: int, memory_bytes: int) -> None:
    """Answer requests until the parent closes the connection."""
    # What a tool prints goes to stderr: it must not mix with the program's own output.
    os.dup2(2, 1)
    connection = socket.socket(fileno=requests_fd)
    lifeline = socket.socket(fileno=lifeline_fd)
    _die_with_the_parent(lifeline)
    _adopt_orphans()
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    # If a child kept the connection open, the parent would not notice the end of the worker.
    os.register_at_fork(after_in_child=connection.close)
    own_pid = os.getpid()
    connection.sendall(HEADER.pack(0))
    while (request := _receive(connection)) is not None:
        reply = _answer(request, max_result_bytes)
        if os.getpid() != own_pid:  # a tool forked and its child returned here
            os._exit(0)
        connection.sendall(HEADER.pack(len(reply)) + reply)


def _die_with_the_parent(lifeline: socket.socket) -> None:
    """Have this process and its children killed when the parent's end of `lifeline` closes, however it ends.

    On Linux the kernel does it, also while C code holds the interpreter; elsewhere a thread.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
        try:
            if lifeline.recv(1) == b"":
                sys.exit()
        except BlockingIOError:
            return
    else:

        def wait() -> None:
            lifeline.recv(1)
            os.killpg(0, signal.SIGKILL)

        threading.Thread(target=wait, daemon=True).start()


def _adopt_orphans() -> None:
    """Become the parent of processes whose own parent ends, as with `sh -c "server &"`: a call that left them behind is
    noticed. On Linux; elsewhere they are not seen."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _receive(connection: socket.socket) -> bytes | None:
    header = _exactly(connection, HEADER.size)
    return None if header is None else _exactly(connection, HEADER.unpack(header)[0])


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _answer(request: bytes, max_bytes: int) -> bytes:
    """The reply: `("ok", result, children_left)`, `("raised", message, traceback, children_left)`, or the same with
    "changed" when this process has other code than its parent."""
    outcome = "raised"
    try:
        reference, payload = pickle.loads(request)
        if reference.folder is not None:
            open_recipe_package(Path(reference.folder))
        with recipe_folder(None if reference.folder is None else Path(reference.folder)):
            args = pickle.loads(payload)
            returned = _call(reference, args)
        reply = pickle.dumps(("ok", as_plain_result(returned), _children_left()), protocol=5)
        if len(reply) <= max_bytes:
            return reply
        problem, details = f"the result has {len(reply):,} bytes; at most {max_bytes:,} are taken", ""
    except BaseException as error:
        outcome = "changed" if isinstance(error, CodeChangedError) else outcome
        problem = describe(error)[:_MAX_TRACEBACK_CHARS]
        details = "".join(traceback.format_exception(error))[-_MAX_TRACEBACK_CHARS:]
    return pickle.dumps((outcome, problem, details, _children_left()), protocol=5)


def _call(reference: FunctionRef, args: tuple[Any, ...]) -> Any:
    returned = reference.load()(*args)
    if inspect.isawaitable(returned):

        async def wait() -> Any:
            return await returned

        return asyncio.run(wait())
    return returned


def _children_left() -> bool:
    """Whether the call started processes that still run: the parent then kills this worker and its process group.
    Those in sessions of their own are killed here."""
    if not _some_child_runs():
        return False
    for _ in range(_MAX_GENERATIONS):
        for pid in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_REAP_SECONDS)
        if not _some_child_runs():  # where orphans are adopted: none is left in any generation
            break
    return True


def _some_child_runs() -> bool:
    """Whether this process has children that have not ended; those that have are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    """The children of this process; empty where the kernel does not list them."""
    pids: list[int] = []
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            pids += map(int, file.read_text().split())
    return pids


def as_plain_result(returned: Any) -> Any:
    """What a function returned as plain data; a dataclass, such as the `Score` of a reward, as a mapping. One inside of
    something else is refused: `context.state` of a tool would hold a mapping in its place."""
    if is_dataclass(returned) and not isinstance(returned, type):
        return {field.name: plain(getattr(returned, field.name)) for field in fields(returned)}
    return plain(returned)


def plain(value: Any) -> Any:
    """The same value as plain data; a TypeError names what is not.

    >>> plain({"scores": (1, Fraction(5, 2))})
    {'scores': (1, 2.5)}
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str, bytes):
        return value
    bases: tuple[Any, ...] = (int, float, str, bytes)
    if isinstance(value, bases):  # an enum, a numpy number
        return next(base(value) for base in bases if isinstance(value, base))
    if isinstance(value, Decimal | Fraction):
        return float(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        entries = [plain(entry) for entry in value]
        return tuple(entries) if isinstance(value, tuple) else entries
    if isinstance(value, (set, frozenset)):
        return {plain(entry) for entry in value}
    if callable(getattr(value, "item", None)) and getattr(value, "size", 1) == 1:  # an array's or tensor's number
        return plain(value.item())
    raise TypeError(
        f"a worker process returned a {kind.__name__}; only numbers, text, bytes, lists, tuples, dicts and sets of "
        "them can be sent back, and a dataclass of them as the result itself"
    )


class PlainUnpickler(pickle.Unpickler):
    """Reads plain data and rejects everything that would import or call something."""

    def find_class(self, module: str, name: str) -> Any:
        """Only sets need a class by name."""
        if (module, name) in (("builtins", "set"), ("builtins", "frozenset")):
            return getattr(__import__(module), name)
        raise pickle.UnpicklingError(f"a worker's reply names {module}.{name}; replies are plain data")


def read_reply(reply: bytes) -> tuple[Any, ...]:
    """What `_answer` wrote."""
    value = PlainUnpickler(io.BytesIO(reply)).load()
    if not isinstance(value, tuple):
        raise pickle.UnpicklingError("a worker's reply is not a tuple")
    return value
