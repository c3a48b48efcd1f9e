"""Runs a command and ends it, with all its children, when its own standard input ends.

    python guard.py LOG COMMAND...

A run keeps the other end of that pipe. It ends with the run, also after `kill -9`, and no server outlives its run. The
file is run as a script, and imports only what comes with Python.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

GRACE_SECONDS = 10.0
"""How long a server may take to end by itself."""

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """The exit status of the command."""
    log, command = sys.argv[1], sys.argv[2:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which ends this process
    with open(log, "ab") as output:  # noqa: PTH123 - no pathlib: this starts quickly
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    threading.Thread(target=_end_with_input, args=(process,), daemon=True).start()
    status = process.wait()
    _signal_all(process, signal.SIGKILL)  # what it started
    return status if status >= 0 else 128 - status


def _end_with_input(process: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    _signal_all(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)
    _signal_all(process, signal.SIGKILL)


def _signal_all(process: subprocess.Popen[bytes], number: int) -> None:
    """To the command and all of its session's group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _die_with_parent() -> None:
    """On Linux the command ends when this process is killed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
