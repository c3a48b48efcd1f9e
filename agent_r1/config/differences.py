"""Two configurations side by side: which keys differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from agent_r1.config.schema import Config

_MAX_CHARS = 80


def config_differences(old: Config, new: Config) -> list[str]:
    """One line per key whose value differs: `optimizer.learning_rate: 0.0004 -> 0.001`."""
    before, after = (_flat(OmegaConf.to_container(OmegaConf.structured(config))) for config in (old, new))
    return [
        f"{key}: {_shown(before, key)} -> {_shown(after, key)}"
        for key in sorted({*before, *after})
        if (key in before, before.get(key)) != (key in after, after.get(key))
    ]


def _flat(section: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(section, Mapping) or not section:
        return {prefix: section}
    return {
        key: value
        for name, entry in section.items()
        for key, value in _flat(entry, f"{prefix}.{name}" if prefix else str(name)).items()
    }


def _shown(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "(not set)"
    text = "null" if values[key] is None else str(values[key])
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
