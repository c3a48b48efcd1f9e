"""Which code a process has imported, and whether another one has the same: a worker that starts late imports files that
may have been changed since the run imported them."""

from __future__ import annotations

import hashlib
import sys
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

from agent_r1.errors import AgentR1Error

Code = Mapping[str, str]
"""The digest of the file of each module, by the module's name."""


class CodeChangedError(AgentR1Error, RuntimeError):
    """A file is not the one that the sender of a call, or the driver of a worker, has imported."""


_digests: weakref.WeakKeyDictionary[ModuleType, str] = weakref.WeakKeyDictionary()


def imported_code(names: Iterable[str]) -> dict[str, str]:
    """The code of those of these modules that are imported here."""
    modules = {name: sys.modules.get(name) for name in names}
    return {name: _digest(module) for name, module in modules.items() if module is not None}


def code_on_disk(names: Iterable[str]) -> dict[str, str]:
    """The code that a process which starts now will import for those of these modules that are imported here."""
    modules = {name: sys.modules.get(name) for name in names}
    return {name: _digest_of_file(module) for name, module in modules.items() if module is not None}


def modules_of(package: str) -> list[str]:
    """The modules of a package that are imported here."""
    return [name for name in list(sys.modules) if name.startswith(f"{package}.")]


def refuse_changed_code(code: Code) -> None:
    """Raise `CodeChangedError` when one of these modules has other code here: the process that the code is from runs
    the old one, and this one would run the new."""
    for name, digest in imported_code(code).items():
        if digest != code[name]:
            raise CodeChangedError(
                f"{sys.modules[name].__file__} was changed while a run uses it, and a new worker process would run "
                "other code than the run began with. Undo the change, or start the program again (in a notebook, the "
                "kernel) to continue with the new code"
            )


def _digest(module: ModuleType) -> str:
    """The digest of a module's file, read once, soon after the import: later changes of the file are not in it."""
    if module not in _digests:
        _digests[module] = _digest_of_file(module)
    return _digests[module]


def _digest_of_file(module: ModuleType) -> str:
    try:
        return hashlib.sha256(Path(module.__file__ or "").read_bytes()).hexdigest()
    except OSError:  # built in, or in an archive
        return ""
