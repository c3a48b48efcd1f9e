"""The program that the Python tool runs inside its sandbox: it runs cells and reports what they showed.

Like `child.py` it is passed as text, and it imports little, so that it starts quickly. A request is a Python literal
on one line, `{"code": "1 + 1"}`; the report is one line of JSON, `{"status": "ok", "shown": "2"}`. What a cell prints
goes to standard output as it comes.
"""

from __future__ import annotations

import _ast
import io
import os
import sys
import types
from _json import encode_basestring_ascii as quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ONLY_TREE = 0x400
_MAX_SHOWN = 50_000


def serve(reports: int, packages: list[str]) -> None:
    """Run the cells that come in on standard input, in one namespace, until there are no more."""
    requests = os.fdopen(os.dup(0), "rb")
    output = os.dup(1)
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.path.extend(packages)
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    worker = os.getpid()
    for number, line in enumerate(requests, start=1):
        _restore_output(output)
        report = run_cell(eval(line)["code"], main.__dict__, f"<cell {number}>")
        if os.getpid() != worker:
            os._exit(0)  # a cell that forked returns twice
        pairs = ", ".join(f"{quoted(key)}: {quoted(value)}" for key, value in report.items())
        _write_all(reports, f"{{{pairs}}}\n".encode())


def run_cell(code: str, namespace: dict[str, Any], name: str) -> dict[str, str]:
    """Run one cell like a notebook: the value of a last expression is shown.

    >>> run_cell("x = 2\\nx + 1", {}, "<cell 1>")
    {'status': 'ok', 'shown': '3'}
    """
    status = "ok"
    text = ""
    try:
        tree = compile(code, name, "exec", _ONLY_TREE)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
        exec(compile(tree, name, "exec"), namespace)
        if last is not None:
            value = eval(compile(_ast.Expression(last.value), name, "eval"), namespace)
            if value is not None:
                namespace["_"] = value
                text = repr(value)
    except SystemExit as error:
        status, text = "exit", "" if error.code in (None, 0) else f"SystemExit: {error.code}"
    except MemoryError:
        status = "memory"
    except BaseException as error:  # noqa: BLE001 - whatever the cell raised is what it shows
        status, text = "error", _explain(error, code, name)
    _flush()
    return {"status": status, "shown": text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."}


def _explain(error: BaseException, code: str, name: str) -> str:
    """The traceback without our own frames; less if even that fails (no file descriptors, an unprintable error)."""
    try:
        import linecache
        import traceback

        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        trace = error.__traceback__
        while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell"):
            trace = trace.tb_next
        return "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    except Exception:  # noqa: BLE001
        return _explain_briefly(error)


def _explain_briefly(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - some exceptions cannot be printed
        return type(error).__name__


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105 - contextlib takes long to import
            stream.flush()
        except Exception:  # noqa: BLE001 - the cell closed or replaced it
            pass


def _restore_output(output: int) -> None:
    """Reset the output for a cell, whatever an earlier one did to it."""
    for number in (1, 2):
        os.dup2(output, number)
    sys.stdout, sys.stderr = _open_unbuffered(1), _open_unbuffered(2)


def _open_unbuffered(descriptor: int) -> io.TextIOWrapper:
    """An unbuffered stream: what was printed before a deadline can be read."""
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


if __name__ == "sandbox_program":
    serve(globals()["settings"]["reports"], globals()["settings"]["packages"])
