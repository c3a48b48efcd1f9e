"""`FunctionRef`: the name of a function, by which another process finds it."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from agent_r1.errors import ConfigError
from agent_r1.registry import open_recipe_package, recipe_folder_of


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionRef:
    """Where a function or class is defined: `module:qualname`, and the recipe folder when it is a recipe's file."""

    module: str
    """The module's full name."""
    qualname: str
    """The name inside it, dots included."""
    folder: str | None = None
    """The recipe folder that has to be opened first."""

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
        reference = cls(module=module, qualname=qualname, folder=None if folder is None else str(folder))
        try:
            attribute = _attribute(sys.modules[module], qualname)
        except (KeyError, AttributeError):
            attribute = None
        # `@tool` replaces the function with a FunctionTool.
        if inspect.unwrap(target) not in (attribute, getattr(attribute, "function", None)) and target is not attribute:
            raise ConfigError(f"'{reference}' is not the function that was given. {advice}, under its own name")
        return reference

    def load(self) -> Any:
        """Import the function or class."""
        if self.folder is not None:
            open_recipe_package(Path(self.folder))
        return _attribute(importlib.import_module(self.module), self.qualname)


def _attribute(module: Any, qualname: str) -> Any:
    return reduce(getattr, qualname.split("."), module)
