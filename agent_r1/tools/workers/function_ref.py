"""`FunctionRef`: the name of a function, by which another process finds it."""

from __future__ import annotations

import importlib
import inspect
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from agent_r1.errors import ConfigError
from agent_r1.registry import open_recipe_package, recipe_folder_of
from agent_r1.tools.workers.imported_code import Code, imported_code, modules_of, refuse_changed_code


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionRef:
    """Where a function or class is defined: `module:qualname`, and the recipe folder when it is a recipe's file."""

    module: str
    """The module's full name."""
    qualname: str
    """The name inside it, dots included."""
    folder: str | None = None
    """The recipe folder that has to be opened first."""
    code: Code = field(default_factory=dict, repr=False, compare=False)
    """The code of the module, and of the recipe's others that were imported where the reference was made."""

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
        refuse_changed_code(self.code)
        return _attribute(module, self.qualname)


_code_with_others: weakref.WeakKeyDictionary[ModuleType, Code] = weakref.WeakKeyDictionary()


def _code_with(name: str, *, is_recipe: bool) -> Code:
    """The code of a module, and of those of its recipe that are imported when it is first asked for."""
    module = sys.modules.get(name)
    if module is None:
        return {}
    if module not in _code_with_others:
        others = modules_of(name.partition(".")[0]) if is_recipe else []
        _code_with_others[module] = imported_code([name, *others])
    return _code_with_others[module]


def _attribute(module: Any, qualname: str) -> Any:
    return reduce(getattr, qualname.split("."), module)
