"""What a command prints and how it exits when something is wrong."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import typer
from rich.console import Console
from rich.text import Text

from agent_r1.errors import AgentR1Error
from agent_r1.interrupts import RunInterrupted, ours_to_end
from agent_r1.types import printable

_OF_THE_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Failed writes to a file that a shell opened (`> log`), which has no name here."""


@contextmanager
def readable_errors() -> Iterator[None]:
    """Print errors that a user can fix, also files that cannot be read or written, in one message, without a traceback,
    and exit with 2. An interrupted run exits with the code that shells expect (130 for Ctrl-C)."""
    try:
        with ours_to_end():
            yield
    except AgentR1Error as error:
        if not error.is_silent:
            Console(stderr=True, highlight=False).print(Text(printable(f"error: {error}"), style="red"), soft_wrap=True)
        raise typer.Exit(2) from None
    except RunInterrupted as interrupted:
        with suppress(OSError):  # the terminal may be closed
            if interrupted.is_silent:
                raise typer.Exit(interrupted.exit_code) from None
            Console(stderr=True, highlight=False).print(Text(str(interrupted)), soft_wrap=True)
        raise typer.Exit(interrupted.exit_code) from None
    except OSError as error:
        if error.filename is None and error.errno not in _OF_THE_OUTPUT:  # not about a file: a traceback says more
            raise
        message = f"error: {error.filename or 'the output'}: {error.strerror}"
        Console(stderr=True, highlight=False).print(Text(printable(message), style="red"), soft_wrap=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("Interrupted.")
        raise typer.Exit(130) from None


@contextmanager
def script_errors() -> Iterator[None]:
    """`readable_errors` for a Python script that is no command of ours, such as those that make a recipe's data."""
    try:
        with readable_errors():
            yield
    except typer.Exit as ended:
        sys.exit(ended.exit_code)
