"""The program of a fork server: it runs a preload once (imports), and forks a process for every session.

Like `child.py` it is passed as text. The server itself runs nothing of a model: each fork first confines itself as
`child.py` says, and only then runs the program. A request is a Python literal with the settings of one session, and
brings the descriptors of its pipes; `{"kill": number}` kills a session's guard.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_REQUEST, _MAX_DESCRIPTORS = 1 << 16, 4
_REAP_SECONDS = 1.0


def serve(server: dict[str, Any]) -> None:
    """Run the preload, then fork until the owner closes the connection."""
    control = socket.socket(fileno=server["control"])
    sys.path.extend(server["fixed"]["packages"])
    try:
        exec(compile(server["preload"], "<preload>", "exec"), {"__name__": "preload"})
    except Exception as error:  # noqa: BLE001 - whatever it raises is told
        control.send(f"its preload raised {type(error).__name__}: {error}"[:1000].encode())
        return
    # Objects that the collector never touches stay in memory that all forks share.
    gc.collect()
    gc.freeze()
    control.send(b"ready")
    guards: dict[int, int] = {}
    while True:
        readable, _, _ = select.select([control], [], [], _REAP_SECONDS if guards else None)
        _reap(guards)
        if not readable:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, _MAX_REQUEST, _MAX_DESCRIPTORS)
        if not message:
            return
        request = eval(message)
        if "kill" in request:
            if request["kill"] in guards:
                _kill(guards[request["kill"]])
            continue
        guard = _fork(descriptors, 3 if request["settings"]["group"] is None else 4)
        if guard == 0:
            _become_session(server, request, descriptors, control)
        if guard is not None:
            guards[request["number"]] = guard
        for descriptor in descriptors:
            os.close(descriptor)


def _fork(descriptors: list[int], expected: int) -> int | None:
    """Like `os.fork`; None where no more processes are allowed, or not all descriptors came since too many are open:
    then only this session fails, and is told why."""
    if len(descriptors) < expected:
        return None  # closing those that came ends the session
    try:
        return os.fork()
    except OSError as error:
        os.write(descriptors[2], f'{{"failed": "its fork server cannot fork ({error.strerror})"}}\n'.encode())
        return None


def _kill(guard: int) -> None:
    """Kill a guard with its group. One that was just forked may lead none yet; it is not reaped, so the number is its
    own."""
    try:
        os.killpg(guard, 9)
    except ProcessLookupError:
        os.kill(guard, 9)


def _reap(guards: dict[int, int]) -> None:
    for number, guard in list(guards.items()):
        if os.waitpid(guard, os.WNOHANG)[0]:
            del guards[number]


def _become_session(
    server: dict[str, Any], request: dict[str, Any], descriptors: list[int], control: socket.socket
) -> None:
    control.close()
    os.setsid()
    requests, output, reports, *group = descriptors
    for descriptor, standard in ((requests, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, standard)
    os.close(requests)
    os.close(output)
    settings = {**server["fixed"], **request["settings"], "reports": reports, "group": group[0] if group else None}
    namespace: dict[str, Any] = {"__name__": "sandbox_child"}
    exec(compile(server["child"], "<sandbox>", "exec"), namespace)
    namespace["confine"](settings)


if __name__ == "__main__":
    serve(eval(sys.argv[1]))
