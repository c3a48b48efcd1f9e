"""`agent_r1.train` and its like with the arguments of a command line: the recipe first, then overrides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import agent_r1
from agent_r1 import api
from agent_r1.config import Config


def train(recipe: str | Path, *overrides: str, **parts: Any) -> Any:
    """`agent-r1 train RECIPE KEY=VALUE...`"""
    return agent_r1.train(recipe, overrides=overrides, **parts)


def evaluate(recipe: str | Path, *overrides: str, **parts: Any) -> Any:
    """`agent-r1 eval RECIPE KEY=VALUE...`"""
    return agent_r1.evaluate(recipe, overrides=overrides, **parts)


def sft(recipe: str | Path, *overrides: str, **parts: Any) -> Any:
    """`agent-r1 sft RECIPE KEY=VALUE...`"""
    return agent_r1.sft(recipe, overrides=overrides, **parts)


def check(recipe: str | Path, *overrides: str, **parts: Any) -> Any:
    """`agent-r1 check RECIPE KEY=VALUE...`"""
    return agent_r1.check(recipe, overrides=overrides, **parts)


def resolve(arguments: Sequence[str], **parts: Any) -> tuple[Path | None, Config]:
    """The recipe folder and the configuration that a command line names."""
    recipe, *overrides = arguments
    config = api.resolve(recipe, overrides=overrides, **parts)
    return api.folder_of(config), config
