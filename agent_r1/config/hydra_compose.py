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

_MOST_KEPT = 128
_SEARCH_PATH = "hydra.searchpath=[pkg://agent_r1.config]"
_HYDRAS_OWN = ("output", "launcher", "sweeper", "help", "hydra_help", "hydra_logging", "job_logging", "env")
_SETTINGS = (_SEARCH_PATH, *(f"~hydra/{group}" for group in _HYDRAS_OWN))
"""Hydra's own groups, for programs that Hydra starts, take 40% of a composition; its section is not in the result."""


class Composed(NamedTuple):
    """What Hydra composed, without its own section, and the preset of the algorithm it chose."""

    config: DictConfig
    preset: str | None


class _Found(NamedTuple):
    """What one name of a configuration stands for: the bytes of the recipe's and of the package's file, and the node
    that is registered under it."""

    own: bytes | None
    shipped: bytes | None
    registered: object

    def same(self, other: _Found) -> bool:
        return self[:2] == other[:2] and self.registered is other.registered


@dataclass(frozen=True)
class _Kept:
    """One composition before values are applied, pickled: that is the fastest copy. None: compose in full."""

    pickled: bytes | None
    preset: str | None
    found: dict[str, _Found]


_kept: dict[tuple[object, ...], _Kept] = {}


def composed(folder: Path, name: str, overrides: Sequence[str], given: bytes | None = None) -> Composed:
    """The configuration `name` of a folder with overrides in Hydra's grammar on top. `given`: the pickled node that
    stands for that name instead of a file."""
    try:
        quick = _quickly_composed(folder, name, overrides, given)
    except REFUSALS:
        quick = None
    return quick or fully_composed(folder, name, overrides, given)


def fully_composed(folder: Path, name: str, overrides: Sequence[str], given: bytes | None = None) -> Composed:
    """The same, by Hydra alone."""
    if given is not None:
        ConfigStore.instance().store(name=name, node=pickle.loads(given))
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


def _quickly_composed(folder: Path, name: str, overrides: Sequence[str], given: bytes | None) -> Composed | None:
    """A copy of a kept composition with the values applied; None when only a full composition is sure to be right."""
    own = given or _bytes_of(folder / f"{name}.yaml")
    # `shuffle` gives another order each time; Hydra's section is not in what is kept.
    if own is None or any("hydra" in entry or "shuffle" in entry for entry in overrides):
        return None
    parsed = [_parsed(entry) for entry in overrides]
    if any(entry.is_sweep_override() or entry.package is not None for entry in parsed):
        return None
    chosen = [_is_group(folder, entry.key_or_group) and not isinstance(entry.value(), dict) for entry in parsed]
    choices = tuple(text for text, is_choice in zip(overrides, chosen, strict=True) if is_choice)
    key = (name, own, choices)
    kept = _kept.pop(key, None)
    if kept is None or not all(seen.same(_find(folder, path, given)) for path, seen in kept.found.items()):
        kept = _kept_composition(folder, name, choices, given)
    _kept[key] = kept  # the last one used is the last one dropped
    while len(_kept) > _MOST_KEPT:
        _kept.pop(next(iter(_kept)), None)
    if kept.pickled is None:
        return None
    config = cast(DictConfig, pickle.loads(kept.pickled))
    values = [entry for entry, is_choice in zip(parsed, chosen, strict=True) if not is_choice]
    ConfigLoaderImpl._apply_overrides_to_config(values, config)
    return Composed(config, kept.preset)


@lru_cache(maxsize=4096)
def _parsed(override: str) -> Override:
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


def _find(folder: Path, path: str, given: bytes | None) -> _Found:
    file = path if path.endswith(".yaml") else f"{path}.yaml"
    own, shipped = (_bytes_of(place / file) for place in (folder, PACKAGE_FOLDER))
    is_given = given is not None and path == "given"  # its content is in the key
    return _Found(own, shipped, None if is_given else ConfigStore.instance()._open(file))


class _RecordingRepository(CachingConfigRepository):
    """Notes what each name that Hydra looks up stands for, before Hydra reads it."""

    def __init__(self, repository: CachingConfigRepository, folder: Path, given: bytes | None) -> None:
        self.delegate, self.cache = repository.delegate, repository.cache  # Hydra's constructor would copy it once more
        self.folder, self.given = folder, given
        self.found: dict[str, _Found] = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self.found:
            self.found[config_path] = _find(self.folder, config_path, self.given)
        return super().load_config(config_path)


class _RecordingLoader(ConfigLoaderImpl):
    """Hydra's loader with such a repository."""

    folder: Path
    given: bytes | None
    repository_used: _RecordingRepository

    def _parse_overrides_and_create_caching_repo(self, config_name: str | None, overrides: list[str]) -> Any:
        parsed, repository = super()._parse_overrides_and_create_caching_repo(config_name, overrides)
        self.repository_used = _RecordingRepository(repository, self.folder, self.given)
        return parsed, self.repository_used


def _kept_composition(folder: Path, name: str, choices: Sequence[str], given: bytes | None) -> _Kept:
    if given is not None:
        ConfigStore.instance().store(name=name, node=pickle.loads(given))
    with initialize_config_dir(config_dir=str(folder), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        loader = _RecordingLoader(hydra.config_loader.get_search_path())
        loader.folder, loader.given = folder, given
        hydra.config_loader = loader
        config, preset = _without_hydra(_compose(name, [*_SETTINGS, *choices]))
    repository = loader.repository_used
    pickled = pickle.dumps(config, -1) if _depends_on_files_only(repository, name) else None
    return _Kept(pickled, preset, repository.found)


def _depends_on_files_only(repository: _RecordingRepository, name: str) -> bool:
    """Whether the composition is the same at each load of these files, warnings included: no `defaults` with a `${...}`
    (the environment) or without `_self_`, no settings of Hydra, no file that has the name of a registered node."""
    for path, found in repository.found.items():
        files = [content for content in (found.own, found.shipped) if content is not None]
        if any(b"hydra" in content for content in files) or (files and found.registered is not None):
            return False
        loaded = repository.cache[f"config_path={path}"]
        defaults = loaded.defaults_list or [] if loaded is not None else []
        if "${" in repr(defaults):
            return False
        if path == name and defaults and not any(entry.is_self() for entry in defaults):
            return False
    return True
