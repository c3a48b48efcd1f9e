"""`FunctionRef`: the name of a function, by which another process finds it."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from agent_r1.errors import AgentR1Error, ConfigError
from agent_r1.registry import open_recipe_package, recipe_folder_of


class CodeChangedError(AgentR1Error, RuntimeError):
    """The file of a function is not the one that the sender of its reference has imported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionRef:
    """Where a function or class is defined: `module:qualname`, and the recipe folder when it is a recipe's file."""

    module: str
    """The module's full name."""
    qualname: str
    """The name inside it, dots included."""
    folder: str | None = None
    """The recipe folder that has to be opened first."""
    code: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The digests of the module's file, and of the recipe's others that were imported where the reference was made."""

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"

    @classmethod
    def of(cls, target: Callable[..., Any]) -> FunctionRef:
        """The reference to a function or class; `ConfigError` for one that another process could not find.

        >>> import json
        >>> str(FunctionRef.of(json.dumps))
        'json:dumps'
        """
        module, qualname = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
        advice = "Define it with `def` at the top level of a module that can be imported"
        if not module or not qualname:
            raise ConfigError(f"{target!r} has no name a worker process could find it by. {advice}")
        if "<lambda>" in qualname or "<locals>" in qualname:
            raise ConfigError(f"'{module}:{qualname}' exists only inside another function or as a lambda. {advice}")
        if module == "__main__":
            raise ConfigError(f"'{qualname}' is defined in the script that was started. {advice}, and import it")
        folder = recipe_folder_of(module)
        code = _code_with(module, is_recipe=folder is not None)
        reference = cls(module=module, qualname=qualname, folder=None if folder is None else str(folder), code=code)
        try:
            attribute = _attribute(sys.modules[module], qualname)
        except (KeyError, AttributeError):
            attribute = None
        # `@tool` replaces the function with a FunctionTool.
        if inspect.unwrap(target) not in (attribute, getattr(attribute, "function", None)) and target is not attribute:
            raise ConfigError(f"'{reference}' is not the function that was given. {advice}, under its own name")
        return reference

    def load(self) -> Any:
        """Import the function or class. `CodeChangedError` when its file was changed in the meantime: the process that
        made the reference runs the old code, and this one would run the new."""
        if self.folder is not None:
            open_recipe_package(Path(self.folder))
        module = importlib.import_module(self.module)
        for name, code in self.code.items():
            imported = sys.modules.get(name)
            if imported is not None and _code_of(imported) != code:
                raise CodeChangedError(
                    f"{imported.__file__} was changed while a run uses it, and a new worker process would run other "
                    "code than the run began with. Undo the change, or restart the run to continue with the new code"
                )
        return _attribute(module, self.qualname)


_codes: weakref.WeakKeyDictionary[ModuleType, str] = weakref.WeakKeyDictionary()
_code_with_others: weakref.WeakKeyDictionary[ModuleType, Mapping[str, str]] = weakref.WeakKeyDictionary()


def _code_of(module: ModuleType) -> str:
    """The digest of a module's file, read once, soon after the import: later changes of the file are not in it."""
    code = _codes.get(module)
    if code is None:
        try:
            code = hashlib.sha256(Path(module.__file__ or "").read_bytes()).hexdigest()
        except OSError:  # built in, or in an archive
            code = ""
        _codes[module] = code
    return code


def _code_with(name: str, *, is_recipe: bool) -> Mapping[str, str]:
    """The digests of a module, and of those of its recipe that are imported when it is first asked for."""
    module = sys.modules.get(name)
    if module is None:
        return {}
    if module not in _code_with_others:
        package = name.partition(".")[0] + "."
        others = [other for other in sys.modules if is_recipe and other.startswith(package)]
        _code_with_others[module] = {other: _code_of(sys.modules[other]) for other in {name, *others}}
    return _code_with_others[module]


def _attribute(module: Any, qualname: str) -> Any:
    return reduce(getattr, qualname.split("."), module)
