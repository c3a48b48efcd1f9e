"""How a process ended, in words."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """A signal's name, or its number: most real-time signals have no name.

    >>> signal_name(9), signal_name(40)
    ('SIGKILL', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
