"""Overrides given as Python objects, as the texts of a command line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from agent_r1.config.quoting import quoted
from agent_r1.errors import ConfigError

Overrides = Sequence[str] | Mapping[str, object]
"""`["trainer.steps=20", "algorithm=ppo"]` as on the command line, or `{"trainer.steps": 20, "algorithm": "ppo"}`."""


def override_texts(overrides: Overrides) -> list[str]:
    """Overrides as `key=value` texts.

    >>> override_texts({"trainer.steps": 20, "eval.max_tasks": None, "env.tools": ["price"]})
    ['trainer.steps=20', 'eval.max_tasks=null', "env.tools=['price']"]
    """
    if isinstance(overrides, str):
        raise ConfigError(f"overrides={overrides!r:.80} is one text; give a list, such as ['trainer.steps=20']")
    if isinstance(overrides, bytes) or not isinstance(overrides, Iterable):
        raise ConfigError(
            f"overrides must be a list such as ['trainer.steps=20'], or a mapping, found {overrides!r:.80}"
        )
    wrong = [entry for entry in overrides if not isinstance(entry, str)]
    if wrong:
        raise ConfigError(f"an override is a text such as 'trainer.steps=20', found {wrong[0]!r:.80}")
    if not isinstance(overrides, Mapping):
        return list(overrides)
    return [
        f"{key}={value if isinstance(value, str | Path) else _in_grammar(value)}" for key, value in overrides.items()
    ]


def _in_grammar(value: object) -> str:
    """A Python value as Hydra reads it: `[1, "a b"]` is "[1,'a b']"."""
    if isinstance(value, str | Path):
        return quoted(str(value))
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_in_grammar(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_in_grammar, value)) + "]"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
