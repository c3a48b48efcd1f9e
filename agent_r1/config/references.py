"""References in a configuration, `${sft.folder}`, that stand beside a text."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig, OmegaConf

from agent_r1.errors import ConfigError, report_problems

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def check_references(composed: DictConfig) -> None:
    """Refuse a text that is made of a key without a value: it would contain the word None, as in
    `path: ${sft.folder}_untrained/hf` with `sft.folder=null`."""
    texts = _flat_texts(OmegaConf.to_container(composed))
    problems = [
        f"{key}={text} is made of {part}, which is null; set {part}, or {key} itself"
        for key, text in texts.items()
        if not _REFERENCE.fullmatch(text)
        for part in (_absolute(reference, key) for reference in _REFERENCE.findall(text))
        if OmegaConf.select(composed, part, default="unknown") is None
    ]
    report_problems(problems, ConfigError, "the configuration cannot be used:")


def _absolute(reference: str, key: str) -> str:
    """The key that a reference in the value of `key` names.

    >>> _absolute("sft.folder", "model.path"), _absolute(".name", "run.folder"), _absolute("..sft.folder", "model.path")
    ('sft.folder', 'run.name', 'sft.folder')
    """
    target = reference.lstrip(".")
    ups = len(reference) - len(target)
    return ".".join([*key.split(".")[:-ups], target]) if ups else target


def _flat_texts(values: Any, prefix: str = "") -> dict[str, str]:
    """The texts in nested mappings and lists, by dotted key."""
    if isinstance(values, str):
        return {prefix: values}
    entries = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    return {
        key: text
        for name, value in entries
        for key, text in _flat_texts(value, f"{prefix}.{name}" if prefix else str(name)).items()
    }
