"""Script that becomes the command it is given, after asking Linux to kill it when its parent dies:
`child.py PARENT COMMAND [ARGUMENT ...]`. It imports little, so that a server starts quickly."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1


def main(parent: int, command: list[str]) -> None:
    """Become `command`, as a child of the process `parent`."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was asked
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
