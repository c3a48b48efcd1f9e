"""Compose with Hydra, and keep what it composed for the next load.

Hydra reads the files of a recipe and of the presets it names, merges them, and then applies the overrides of values.
The first two are the slow part, and depend only on those files and on the overrides that name a preset
(`algorithm=ppo`). So their result is kept, and each load copies it and lets Hydra's own code apply the values. It is
used as long as every file that Hydra looked for has the bytes it had (or is still absent) and every registered
configuration is the same object. Whatever fails on this way is composed in full, so that all errors are Hydra's.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

PACKAGE_FOLDER = Path(__file__).parent
REFUSALS = (
    *(HydraException, OmegaConfBaseException, YAMLError),
    *(ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError, AssertionError),
)
"""What Hydra and OmegaConf raise for a file or an override that they cannot use: not only their own errors."""

_MAX_COMPOSITIONS = 128
_SEARCH_PATH = "hydra.searchpath=[pkg://agent_r1.config]"
_HYDRAS_OWN = ("output", "launcher", "sweeper", "help", "hydra_help", "hydra_logging", "job_logging", "env")
_SETTINGS = (_SEARCH_PATH, *(f"~hydra/{group}" for group in _HYDRAS_OWN))
"""Hydra's own groups, for programs that Hydra starts, take 40% of a composition; its section is not in the result."""


class Composed(NamedTuple):
    """What Hydra composed, without its own section, and the preset of the algorithm it chose."""

    config: DictConfig
    preset: str | None


class _Sources(NamedTuple):
    """What one name of a configuration stands for: the bytes of the recipe's and of the package's file, and the node
    that is registered under it."""

    in_recipe: bytes | None
    in_package: bytes | None
    registered: object

    def same(self, other: _Sources) -> bool:
        return self[:2] == other[:2] and self.registered is other.registered


@dataclass(frozen=True)
class _Composition:
    """One composition before values are applied, pickled: that is the fastest copy. None: compose in full."""

    pickled: bytes | None
    preset: str | None
    sources: dict[str, _Sources]


_compositions: dict[tuple[object, ...], _Composition] = {}


def compose_config(folder: Path, name: str, overrides: Sequence[str], node_bytes: bytes | None = None) -> Composed:
    """The configuration `name` of a folder with overrides in Hydra's grammar on top. `node_bytes`: the pickled node
    that stands for that name instead of a file."""
    try:
        quick = _compose_quickly(folder, name, overrides, node_bytes)
    except REFUSALS:
        quick = None
    return quick or compose_fully(folder, name, overrides, node_bytes)


def compose_fully(folder: Path, name: str, overrides: Sequence[str], node_bytes: bytes | None = None) -> Composed:
    """What `compose_config` returns, composed by Hydra alone."""
    if node_bytes is not None:
        ConfigStore.instance().store(name=name, node=pickle.loads(node_bytes))
    with initialize_config_dir(config_dir=str(folder), version_base="1.3"):
        return _without_hydra(_compose(name, [*_SETTINGS, *overrides]))


def _compose(name: str, overrides: Sequence[str]) -> DictConfig:
    """Compose; a preset of a group that the recipe's `defaults` do not name is merged over the recipe."""
    try:
        return compose(name, overrides=list(overrides), return_hydra_config=True)
    except ConfigCompositionException as error:
        unnamed = re.match(r"Could not override '(?P<group>\w+)'\. No match in the defaults list", str(error))
        if unnamed is None:
            raise
        group = f"{unnamed['group']}="
        return _compose(name, [f"+{entry}" if entry.startswith(group) else entry for entry in overrides])


def _without_hydra(config: DictConfig) -> Composed:
    preset = config.hydra.runtime.choices.get("algorithm")
    with open_dict(config):
        del config["hydra"]
    return Composed(config, preset)


# --- the kept compositions -----------------------------------------------------------------------------------------


def _compose_quickly(folder: Path, name: str, overrides: Sequence[str], node_bytes: bytes | None) -> Composed | None:
    """A copy of a kept composition with the values applied; None when only a full composition is sure to be right."""
    content = node_bytes or _bytes_of(folder / f"{name}.yaml")
    # `shuffle` gives another order each time; Hydra's section is not in what is kept.
    if content is None or any("hydra" in entry or "shuffle" in entry for entry in overrides):
        return None
    parsed = [_parse_override(entry) for entry in overrides]
    if any(entry.is_sweep_override() or entry.package is not None for entry in parsed):
        return None
    chosen = [_is_group(folder, entry.key_or_group) and not isinstance(entry.value(), dict) for entry in parsed]
    choices = tuple(text for text, is_choice in zip(overrides, chosen, strict=True) if is_choice)
    key = (name, content, choices)
    composition = _compositions.pop(key, None)
    if composition is None or not all(
        sources.same(_find(folder, path, node_bytes)) for path, sources in composition.sources.items()
    ):
        composition = _new_composition(folder, name, choices, node_bytes)
    _compositions[key] = composition  # the last one used is the last one dropped
    while len(_compositions) > _MAX_COMPOSITIONS:
        _compositions.pop(next(iter(_compositions)), None)
    if composition.pickled is None:
        return None
    config = cast(DictConfig, pickle.loads(composition.pickled))
    values = [entry for entry, is_choice in zip(parsed, chosen, strict=True) if not is_choice]
    ConfigLoaderImpl._apply_overrides_to_config(values, config)
    return Composed(config, composition.preset)


@lru_cache(maxsize=4096)
def _parse_override(override: str) -> Override:
    return OverridesParser.create().parse_overrides([override])[0]


def _is_group(folder: Path, key: str) -> bool:
    """Whether Hydra takes `key=name` for a preset: there is a folder of that name, or one is registered."""
    in_files = any((place / key).is_dir() for place in (folder, PACKAGE_FOLDER))
    return in_files or ConfigStore.instance().get_type(key) == ObjectType.GROUP


def _bytes_of(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def _find(folder: Path, path: str, node_bytes: bytes | None) -> _Sources:
    file = path if path.endswith(".yaml") else f"{path}.yaml"
    in_recipe, in_package = (_bytes_of(place / file) for place in (folder, PACKAGE_FOLDER))
    is_node = node_bytes is not None and path == "given"  # its content is in the key
    return _Sources(in_recipe, in_package, None if is_node else ConfigStore.instance()._open(file))


class _RecordingRepository(CachingConfigRepository):
    """Notes what each name that Hydra looks up stands for, before Hydra reads it."""

    def __init__(self, repository: CachingConfigRepository, folder: Path, node_bytes: bytes | None) -> None:
        self.delegate, self.cache = repository.delegate, repository.cache  # Hydra's constructor would copy it once more
        self.folder, self.node_bytes = folder, node_bytes
        self.sources: dict[str, _Sources] = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self.sources:
            self.sources[config_path] = _find(self.folder, config_path, self.node_bytes)
        return super().load_config(config_path)


class _RecordingLoader(ConfigLoaderImpl):
    """Hydra's loader with such a repository."""

    folder: Path
    node_bytes: bytes | None
    repository_used: _RecordingRepository

    def _parse_overrides_and_create_caching_repo(self, config_name: str | None, overrides: list[str]) -> Any:
        parsed, repository = super()._parse_overrides_and_create_caching_repo(config_name, overrides)
        self.repository_used = _RecordingRepository(repository, self.folder, self.node_bytes)
        return parsed, self.repository_used


def _new_composition(folder: Path, name: str, choices: Sequence[str], node_bytes: bytes | None) -> _Composition:
    if node_bytes is not None:
        ConfigStore.instance().store(name=name, node=pickle.loads(node_bytes))
    with initialize_config_dir(config_dir=str(folder), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        loader = _RecordingLoader(hydra.config_loader.get_search_path())
        loader.folder, loader.node_bytes = folder, node_bytes
        hydra.config_loader = loader
        config, preset = _without_hydra(_compose(name, [*_SETTINGS, *choices]))
    repository = loader.repository_used
    pickled = pickle.dumps(config, -1) if _depends_on_files_only(repository, name) else None
    return _Composition(pickled, preset, repository.sources)


def _depends_on_files_only(repository: _RecordingRepository, name: str) -> bool:
    """Whether the composition is the same at each load of these files, warnings included: no `defaults` with a `${...}`
    (the environment) or without `_self_`, no settings of Hydra, no file that has the name of a registered node."""
    for path, sources in repository.sources.items():
        files = [content for content in (sources.in_recipe, sources.in_package) if content is not None]
        if any(b"hydra" in content for content in files) or (files and sources.registered is not None):
            return False
        loaded = repository.cache[f"config_path={path}"]
        defaults = loaded.defaults_list or [] if loaded is not None else []
        if "${" in repr(defaults):
            return False
        if path == name and defaults and not any(entry.is_self() for entry in defaults):
            return False
    return True
