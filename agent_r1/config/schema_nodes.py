"""A configuration as a node of OmegaConf: what OmegaConf makes of its values, in a third of the time.

A run writes and reads its configuration several times before its first step. OmegaConf would make a node of every value
it is given and merge these nodes into those of the schema, and reads YAML in Python. Here a value is set where the
schema has a node for it, only the rest is merged, and libyaml reads. Whatever fails on this way is done by OmegaConf
alone, so that all errors are its own.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import is_dataclass
from functools import cache
from typing import Any, cast

import yaml
from omegaconf import AnyNode, DictConfig, ListConfig, OmegaConf, ValueNode
from omegaconf._utils import get_yaml_loader

from agent_r1.config.hydra_compose import REFUSALS
from agent_r1.config.schema import Config
from agent_r1.errors import ConfigError

_SCALARS = (int, float, bool, str, type(None))
_INTERPOLATION = re.compile(r"(?<!\\)\$\{[^}\n]*\}?")


def on_schema(values: Any) -> DictConfig:
    """The schema's node with these values."""
    if isinstance(values, dict):
        node = _schema_node()
        try:
            rest = _set_scalars(node, values)
            return cast(DictConfig, OmegaConf.unsafe_merge(node, rest)) if rest else node
        except REFUSALS:
            pass
    return cast(DictConfig, OmegaConf.unsafe_merge(_schema_node(), values))


def check_saved(text: str) -> None:
    """Raise `ConfigError` for a YAML text that refers to other values, as no saved configuration does: it could read
    the environment's variables (`${oc.env:KEY}`), or become gigabytes (aliases of aliases)."""
    reference = _INTERPOLATION.search(text)
    found = reference[0] if reference else None
    if found is None and "&" in text:  # an alias needs an anchor
        found = next((f"*{token.value}" for token in yaml.scan(text) if isinstance(token, yaml.AliasToken)), None)
    if found is not None:
        raise ConfigError(
            f"a saved configuration has no references to other values; found {found:.60}. Write the value itself"
        )


def read_yaml(text: str) -> DictConfig:
    """The schema's node with the values of a YAML text."""
    try:
        values = yaml.load(text, Loader=_quick_loader())
    except REFUSALS:
        values = None
    return on_schema(values if isinstance(values, dict) else OmegaConf.create(text))


def _schema_node() -> DictConfig:
    return cast(DictConfig, pickle.loads(_pickled_schema()))


@cache
def _pickled_schema() -> bytes:
    """The schema as a node. Unpickling is the fastest copy."""
    return pickle.dumps(OmegaConf.structured(Config), -1)


def _set_scalars(node: DictConfig, values: dict[Any, Any]) -> dict[Any, Any]:
    """Set the values that have a node of their own; gives those that must be merged."""
    content, rest = cast(dict[Any, Any], node._content), dict[Any, Any]()
    for key, value in values.items():
        present = content.get(key)
        if isinstance(present, ValueNode) and not isinstance(present, AnyNode) and _is_plain(value):
            present._set_value(value)
        elif isinstance(present, DictConfig) and isinstance(value, dict) and _is_section(present):
            inner = _set_scalars(present, value)
            if inner:
                rest[key] = inner
        elif not _both_are_empty(present, value):
            rest[key] = value
    return rest


def _is_plain(value: Any) -> bool:
    """Whether it is a value and no reference (`${model.path}`) or mark for a missing one (`???`)."""
    return type(value) in _SCALARS and not (isinstance(value, str) and ("${" in value or value == "???"))


def _is_section(node: DictConfig) -> bool:
    return isinstance(node._content, dict) and is_dataclass(node._metadata.object_type)


def _both_are_empty(node: Any, value: Any) -> bool:
    kinds = ((ListConfig, list), (DictConfig, dict))
    is_empty = any(isinstance(node, node_type) and type(value) is plain for node_type, plain in kinds) and not value
    return is_empty and isinstance(node._content, list | dict) and not node._content


@cache
def _quick_loader() -> Any:
    """OmegaConf's loader with libyaml's parser, where that is installed."""
    loader = get_yaml_loader()
    if not yaml.__with_libyaml__:
        return loader

    class Loader(yaml.cyaml.CParser, loader):  # type: ignore[misc, valid-type]
        def __init__(self, stream: Any) -> None:
            yaml.cyaml.CParser.__init__(self, stream)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

    return Loader
