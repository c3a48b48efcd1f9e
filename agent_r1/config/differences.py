"""Which keys differ: between two configurations, and between an algorithm and its preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from agent_r1.config.algorithm_schema import PART_KEYS
from agent_r1.config.compose import presets, to_plain
from agent_r1.config.overrides import override_texts
from agent_r1.config.schema import Config

_MAX_CHARS = 80
_MAX_CHANGES = 3


def config_differences(old: Config, new: Config) -> list[str]:
    """One line per key whose value differs: `optimizer.learning_rate: 0.0004 -> 0.001`."""
    before, after = _flat(to_plain(old)), _flat(to_plain(new))
    return [
        f"{key}: {_value_text(before, key)} -> {_value_text(after, key)}"
        for key in sorted({*before, *after})
        if (key in before, before.get(key)) != (key in after, after.get(key))
    ]


def changed_settings(old: Config, new: Config) -> list[str]:
    """The changes that make one configuration of another, as overrides: `rollout.max_steps=8`, `~env.size`."""
    before, after = _flat(to_plain(old)), _flat(to_plain(new))
    changed = {key: after[key] for key in sorted(after) if key not in before or before[key] != after[key]}
    return [*override_texts(changed), *(f"~{key}" for key in sorted({*before} - {*after}))]


def algorithm_name(config: Config) -> str:
    """The preset of a configuration's algorithm, with what was changed in it: "grpo, kl.coefficient=0.01".

    A preset of a recipe's own has only its name. An algorithm without a preset is called by its parts: "mine / clip".
    """
    algorithm = config.algorithm
    if algorithm.preset is None:
        return f"{algorithm.estimator.name} / {algorithm.loss.name}"
    if algorithm.preset not in presets("algorithm"):
        return algorithm.preset
    changes = _changes(_preset_keys(algorithm.preset, config), _flat(to_plain(config)["algorithm"]))
    if len(changes) > _MAX_CHANGES:
        return f"{algorithm.preset}, {len(changes)} changes"
    return ", ".join([algorithm.preset, *(f"{key}={value}" for key, value in changes.items())])


def _preset_keys(name: str, config: Config) -> dict[str, Any]:
    """The keys of one of our presets over the defaults; some of its values refer to the rest of the configuration."""
    defaults = to_plain(Config())["algorithm"]
    preset = OmegaConf.load(Path(__file__).parent / "algorithm" / f"{name}.yaml")
    whole = OmegaConf.create({"rollout": asdict(config.rollout), "algorithm": OmegaConf.merge(defaults, preset)})
    return _flat(OmegaConf.to_container(whole.algorithm, resolve=True))


def _changes(preset: Mapping[str, Any], algorithm: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that differ. Of a part that was replaced only the name counts, of an absent critic nothing."""
    replaced = [part for part in PART_KEYS if preset[f"{part}.name"] != algorithm[f"{part}.name"]]
    ignored = ["preset", *(f"{part}." for part in replaced)]
    if not preset["critic.kind"] and not algorithm["critic.kind"]:
        ignored.append("critic.")
    changed = {
        key: algorithm.get(key)
        for key in {**preset, **algorithm}
        if preset.get(key) != algorithm.get(key) and not key.startswith(tuple(ignored))
    }
    return {**{part: algorithm[f"{part}.name"] for part in replaced}, **changed}


def _flat(section: Any, prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones: {"kl": {"target": 1}} is {"kl.target": 1}."""
    if not isinstance(section, Mapping) or not section:
        return {prefix: section}
    return {
        key: value
        for name, entry in section.items()
        for key, value in _flat(entry, f"{prefix}.{name}" if prefix else str(name)).items()
    }


def _value_text(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "(not set)"
    text = "null" if values[key] is None else str(values[key])
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
