"""The name of an algorithm whose configuration is all that is left of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from agent_r1.config.compose import presets
from agent_r1.config.schema import AlgorithmConfig, Config

_MOST_CHANGES = 3


def algorithm_name(config: Config) -> str:
    """The preset that a configuration's algorithm is, with what was changed in it.

    With `algorithm=grpo algorithm.kl.coefficient=0.01` it is "grpo, kl.coefficient=0.01". An algorithm that is far from
    every preset goes by its parts: "my_estimator / clip".
    """
    found = _flat(asdict(config.algorithm))
    changes = {name: _changes(_preset(name, config), found) for name in presets("algorithm")}
    nearest = min(changes, key=lambda name: len(changes[name]))
    if len(changes[nearest]) > _MOST_CHANGES:
        return f"{config.algorithm.estimator.get('name')} / {config.algorithm.loss.get('name')}"
    return ", ".join([nearest, *(f"{key}={value}" for key, value in changes[nearest].items())])


def _preset(name: str, config: Config) -> dict[str, Any]:
    """A preset's keys; some of its values follow the rest of the configuration."""
    whole = OmegaConf.create({"rollout": asdict(config.rollout), "algorithm": _written(name)})
    return _flat(OmegaConf.to_container(whole.algorithm, resolve=True))


@cache
def _written(name: str) -> Any:
    """A preset over the defaults, as it is written."""
    defaults = OmegaConf.create(asdict(AlgorithmConfig()))
    preset = OmegaConf.load(Path(__file__).parent / "algorithm" / f"{name}.yaml")
    return OmegaConf.to_container(OmegaConf.merge(defaults, preset))


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones: {"kl": {"target": 1}} is {"kl.target": 1}."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    return {
        key: leaf
        for name, entry in value.items()
        for key, leaf in _flat(entry, f"{prefix}.{name}" if prefix else str(name)).items()
    }


def _changes(preset: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that differ; what a recipe says of a critic is no change where there is none."""
    without_critic = not (preset.get("critic.kind") or found.get("critic.kind"))
    return {
        key: found.get(key)
        for key in {**preset, **found}
        if preset.get(key) != found.get(key) and not (without_critic and key.startswith("critic."))
    }
