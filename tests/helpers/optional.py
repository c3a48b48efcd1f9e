"""Packages of extras that a test file needs. Without one the file is skipped; with it, a test that uses it imports it,
and not the collection of all tests: the trackers, clients and clusters together take as long to import as torch."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import pytest


class Later:
    """A module that is imported when one of its names is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for some at every object of a test file
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


def needs(package: str, *, reason: str) -> Later:
    """The package, for later; where it is not installed, the test file that calls this at its top is skipped."""
    if find_spec(package) is None:
        pytest.skip(reason, allow_module_level=True)
    return Later(package)
