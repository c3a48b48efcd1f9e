"""`torch`, imported when it is first used: names and arguments of an algorithm are checked without it.

from agent_r1.algorithms.lazy_torch import torch
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _LazyModule(ModuleType):
        """A module that is imported by the first access to one of its names, and keeps the names it was asked for."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(importlib.import_module(self.__name__), name)
            setattr(self, name, value)
            return value

    torch = _LazyModule("torch")
