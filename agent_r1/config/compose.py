"""Compose a configuration from a recipe folder, presets and overrides; errors say what to change."""

from __future__ import annotations

import pickle
import re
from collections.abc import Hashable, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast, get_type_hints

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from agent_r1.config.algorithm_schema import PART_KEYS, AlgorithmConfig
from agent_r1.config.hydra_compose import PACKAGE_FOLDER, REFUSALS, compose_config
from agent_r1.config.overrides import Overrides, override_texts
from agent_r1.config.quoting import readable
from agent_r1.config.references import check_references
from agent_r1.config.schema import Config
from agent_r1.config.schema_nodes import check_saved, on_schema, read_yaml
from agent_r1.constraints import field_problems, unusable_parts
from agent_r1.errors import ConfigError, UnknownNameError, did_you_mean
from agent_r1.paths import cache_dir
from agent_r1.shipped import find_recipe

OPEN_KEYS = ("env", *(f"algorithm.{key}" for key in PART_KEYS))
"""Keys whose arguments are checked against a signature rather than the schema. On the command line `key=name` replaces
the part and drops the arguments of the old one."""

_NAMED_KEYS = ("tools", "engine.arguments", "data.shares", "rollout.ray.resources")
"""Keys that hold names that the user chooses: `tools.search.timeout=5`, `engine.arguments.url=...`. The code that reads
them checks what they hold."""

AT_SERVER = "at-server"
"""`model.path` of a configuration without one whose engine brings the model: `engine=openai`."""

OmegaConf.register_new_resolver("cached", lambda name: str(cache_dir(name)), replace=True)
_PRESET = re.compile(r"(?!(?:nan|inf|null|true|false)$)[a-z_][a-z0-9_./-]*", re.IGNORECASE | re.ASCII)
_NAME = re.compile(r"[\w.:-]+|[A-Za-z_]\w*:[^\s:].*", re.DOTALL)
"""A registered name, `module:attribute`, or `kind:anything` as in `env=mcp:python my_server.py`."""
_OVERRIDE = re.compile(r"^(?P<sign>\+\+|\+|~)?(?P<key>[\w./@-]+)(?:=(?P<value>.*))?$", re.DOTALL)


def load_config(recipe: str | Path | Config | None = None, overrides: Overrides = ()) -> Config:
    """The configuration of a recipe (the `base.yaml` of its folder; `find_recipe` says which folder a name means), of
    another configuration or of neither, with overrides on top.

    `load_config("quickstart", {"trainer.steps": 20}).trainer.steps` is 20.
    """
    if not isinstance(recipe, str | Path | Config | None):
        raise ConfigError(f"a recipe is a folder, the name of one, or a Config, found {recipe!r:.80}")
    overrides = [_spelled_out(entry) for entry in override_texts(overrides)]
    is_recipe = not isinstance(recipe, Config | None)
    folder = find_recipe(recipe) if isinstance(recipe, str | Path) else PACKAGE_FOLDER
    name = "base" if is_recipe else "default" if recipe is None else "given"
    node_bytes = None
    if isinstance(recipe, Config):
        names_algorithm = any(entry.lstrip("+").startswith("algorithm=") for entry in overrides)
        # A preset replaces the whole algorithm, not only the keys it names.
        base = replace(recipe, algorithm=AlgorithmConfig()) if names_algorithm else recipe
        node_bytes = _pickled_node(base)
    _register_schema()
    GlobalHydra.instance().clear()
    checked = _checked_overrides(overrides)
    try:
        node, preset = compose_config(folder.resolve(), name, checked, node_bytes)
        if preset is not None and node.algorithm.preset is None:
            node.algorithm.preset = preset
        _drop_replaced_arguments(node, overrides)
        if node.engine.name == "openai" and OmegaConf.is_missing(node.model, "path"):
            node.model.path = AT_SERVER
        check_references(node)
        OmegaConf.resolve(node)
        config = cast(Config, OmegaConf.to_object(node))
    except ConfigError:
        raise
    except REFUSALS as error:
        raise _explain(error, folder / f"{name}.yaml") from error
    finally:
        GlobalHydra.instance().clear()
    if is_recipe:
        config.recipe = str(folder)
    return _without_stale_preparation(config, overrides, folder)


def _spelled_out(override: str) -> str:
    """An override without shorthand: `engine=vllm` sets `engine.name`.

    >>> _spelled_out("engine=vllm"), _spelled_out("engine.dtype=float32")
    ('engine.name=vllm', 'engine.dtype=float32')
    """
    key, _, value = override.partition("=")
    return f"engine.name={value}" if key == "engine" and _NAME.fullmatch(value) and value != "null" else override


@cache
def _register_schema() -> None:
    ConfigStore.instance().store(name="agent_r1", node=Config)


def presets(group: str) -> list[str]:
    """The names of the package's presets: `presets("model")` is ["smollm2"]."""
    return sorted(path.stem for path in (PACKAGE_FOLDER / group).glob("*.yaml"))


def preset_values(group: str, name: str | None) -> dict[str, Any] | None:
    """What the file of a preset of the package says; None when there is no such preset."""
    if name not in presets(group):
        return None
    return cast(dict[str, Any], yaml.safe_load((PACKAGE_FOLDER / group / f"{name}.yaml").read_text(encoding="utf-8")))


def _drop_replaced_arguments(composed: DictConfig, overrides: Sequence[str]) -> None:
    """A part named on the command line has the arguments given there, not those of the part it replaces."""
    overridden = {override.split("=", 1)[0].lstrip("+") for override in overrides}
    for key in filter(None, map(_replaced_part, overrides)):
        part = OmegaConf.select(composed, key)
        with open_dict(part):
            _keep_overridden(part, key, {*overridden, f"{key}.name"})


def _keep_overridden(part: DictConfig, prefix: str, overridden: set[str]) -> None:
    """Delete the keys of a part that no override sets; `env.arguments.size=4` sets one key of `env.arguments`."""
    for name in list(part):
        key = f"{prefix}.{name}"
        if key in overridden:
            continue
        if any(other.startswith(f"{key}.") for other in overridden) and isinstance(part[name], DictConfig):
            _keep_overridden(part[name], key, overridden)
        else:
            del part[name]


def _replaced_part(override: str) -> str | None:
    """The open key that an override like `algorithm.estimator=group` sets to a plain name, else None."""
    key, _, value = override.partition("=")
    is_name = _NAME.fullmatch(value) is not None and value != "null"
    return key if key in OPEN_KEYS and is_name else None


def _without_stale_preparation(config: Config, overrides: Sequence[str], recipe: Path) -> Config:
    """A recipe's preparations are for its own model and data, not for those that an override names instead."""
    changed = {override.split("=", 1)[0].lstrip("+") for override in overrides}
    if "model.path" in changed and "model.prepare" not in changed:
        config.model.prepare = None
    if "model" in changed and "model.prepare" not in changed:
        preset = next(entry.split("=", 1)[1] for entry in overrides if entry.lstrip("+").startswith("model="))
        in_recipe, in_package = (place / "model" / f"{preset}.yaml" for place in (recipe, PACKAGE_FOLDER))
        if "prepare" not in OmegaConf.load(in_recipe if in_recipe.is_file() else in_package):
            config.model.prepare = None
    if changed & {"data.train", "data.eval", "data.test"} and "data.prepare" not in changed:
        config.data.prepare = None
    return config


def to_plain(config: Config) -> dict[str, Any]:
    """The configuration as nested mappings, in the form that files have."""
    plain = asdict(config)
    for key in PART_KEYS:
        plain["algorithm"][key] = getattr(config.algorithm, key).as_mapping()
    return plain


def to_yaml(config: Config) -> str:
    """The resolved configuration as YAML, every key included."""
    return OmegaConf.to_yaml(on_schema(to_plain(config)))


def _pickled_node(config: Config) -> bytes:
    plain = to_plain(config)
    try:
        return _pickled_on_schema(pickle.dumps(plain, -1))
    except (pickle.PicklingError, TypeError, AttributeError):  # OmegaConf says which value it cannot hold
        return pickle.dumps(on_schema(plain), -1)


@lru_cache(maxsize=128)
def _pickled_on_schema(plain: bytes) -> bytes:
    return pickle.dumps(on_schema(pickle.loads(plain)), -1)


def value_problems(config: Config) -> list[str]:
    """Every value that is out of its key's range, and every value inside `env`, `tools` and the parts of the algorithm
    that is never usable (NaN, infinity, NUL characters)."""
    problems = list(field_problems(config))
    reported = {problem.partition("=")[0] for problem in problems}
    for problem in unusable_parts(to_plain(config), "", from_data=False):
        if problem.partition(" ")[0] not in reported:
            problems.append(problem)
    return problems


def from_yaml(text: str) -> Config:
    """The configuration that `to_yaml` wrote."""
    try:
        check_saved(text)
        return cast(Config, OmegaConf.to_object(read_yaml(text)))
    except ConfigError:
        raise
    except ConfigKeyError as error:
        raise ConfigError(
            f"a saved configuration has the key '{error.full_key}', which this version does not know: it was written "
            "by another version. Remove the key from it, or use the version that wrote it"
        ) from error
    except REFUSALS as error:
        raise ConfigError(f"a saved configuration is damaged: {' '.join(str(error).split())}") from error


def known_keys() -> list[str]:
    """All dotted keys of the schema."""
    return list(_keys_of(Config, ""))


@cache
def _keys_of(schema: Any, prefix: str) -> tuple[str, ...]:
    keys: list[str] = []
    for entry in fields(schema):
        key = f"{prefix}{entry.name}"
        default = entry.default_factory() if callable(entry.default_factory) else None
        section = cast(Hashable, type(default)) if is_dataclass(default) else None
        keys.extend([key] if section is None else _keys_of(section, f"{key}."))
    return tuple(keys)


def _checked_overrides(overrides: Sequence[str]) -> list[str]:
    """The overrides in Hydra's grammar. Each one's form and key is checked; arguments of open keys get Hydra's `++`."""
    keys = known_keys()
    sections = {key.rsplit(".", depth)[0] for key in keys for depth in range(1, key.count(".") + 1)}
    result, problems = [], []
    for override in overrides:
        match = _OVERRIDE.match(override)
        if match is None or (match["value"] is None and match["sign"] != "~"):
            problems.append(f"'{override}' is not an override; write key=value, for example trainer.steps=20")
            continue
        key = match["key"].lstrip("/")
        if _replaced_part(override) is not None:
            result.append(f"++{key}.name={readable(match['value'], is_text=True)}")
            continue
        if key in _groups() and match["sign"] != "~" and _PRESET.fullmatch(match["value"]) is None:
            problems.append(f"unknown {key} '{match['value']:.60}'. {did_you_mean(match['value'][:60], presets(key))}")
            continue
        override = _quote_where_needed(match)
        is_open = any(key == name or key.startswith(f"{name}.") for name in (*OPEN_KEYS, *_NAMED_KEYS))
        if not is_open and key not in keys and key not in sections:
            problems.append(f"unknown key '{key}'. {_nearest_key(key, keys)}")
        result.append(f"++{override}" if is_open and "." in key and not match["sign"] else override)
    if problems:
        raise ConfigError("the command line has overrides that cannot be used:\n  - " + "\n  - ".join(problems))
    return result


def _quote_where_needed(override: re.Match[str]) -> str:
    """The override with its value in a form that Hydra reads; a preset's name (`algorithm=ppo`) stays as it is."""
    value, key = override["value"], override["key"].lstrip("/")
    if value is None:
        return override[0]
    is_group = key in _groups()
    return (
        override[0]
        if is_group
        else f"{override['sign'] or ''}{override['key']}={readable(value, is_text=_is_text(key))}"
    )


def _groups() -> set[str]:
    return {path.name for path in PACKAGE_FOLDER.iterdir() if path.is_dir() and not path.name.startswith("_")}


@lru_cache(maxsize=1024)
def _is_text(key: str) -> bool:
    """Whether the schema says that the key holds text."""
    schema: Any = Config
    for part in key.split("."):
        schema = get_type_hints(schema).get(part) if is_dataclass(schema) else None
    return schema is str or schema == str | None


def _nearest_key(key: str, keys: Sequence[str]) -> str:
    section = key.rsplit(".", 1)[0] if "." in key else ""
    same_section = [other for other in keys if section and other.startswith(f"{section}.")]
    same_leaf = [other for other in keys if other.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
    if not (same_section or same_leaf or get_close_matches(key, keys, n=1, cutoff=0.5)):
        sections = sorted({other.partition(".")[0] for other in keys})
        return f"Known are keys of {', '.join(sections)}; --dry-run prints all of them."
    return did_you_mean(key, same_section or same_leaf or keys)


def _explain(error: Exception, file: Path) -> ConfigError | UnknownNameError:
    """Hydra's and OmegaConf's errors, reworded."""
    # Hydra wraps the error that says what is wrong. OmegaConf's own has a bare cause under a debugger or tracer.
    text = str(error if isinstance(error, OmegaConfBaseException) else error.__cause__ or error)
    missing_group = re.search(r"Could not find '(?P<group>\w+)/(?P<name>[^']+)'", str(error))
    if missing_group:
        group = missing_group["group"]
        options = [*presets(group), *(path.stem for path in (file.parent / group).glob("*.yaml"))]
        name = missing_group["name"]
        more = " A Hugging Face folder or id, or a GGUF file, is given as model.path=..." if group == "model" else ""
        return UnknownNameError(f"unknown {group} '{name}'. {did_you_mean(name, options)}{more}")
    bad_key = re.search(r"Key '(?P<key>[^']+)' (?:not in|is not in)", text)
    if bad_key:
        full = re.search(r"full_key: (?P<key>\S+)", text)
        key = full["key"] if full else bad_key["key"]
        return ConfigError(f"unknown key '{key}' in {file}. {_nearest_key(key, known_keys())}")
    missing = re.search(r"missing mandatory value.*?full_key: (?P<key>[\w.]+)", text, re.S | re.I)
    if missing:
        place = "" if file.parent == PACKAGE_FOLDER else f"in {file} or "
        return ConfigError(f"the key '{missing['key']}' has no value; set it {place}on the command line")
    wrong_type = re.search(r"^(?P<what>Value .*)\s+full_key: (?P<key>\S+)", text.strip())
    if wrong_type:
        return ConfigError(f"{wrong_type['key']} cannot be used: {wrong_type['what']}")
    no_value = re.search(r"field '(?P<key>[\w.]+)' is not Optional", text)
    if no_value:
        return ConfigError(f"{no_value['key']} cannot be null: it needs a value")
    return ConfigError(f"the configuration of {file} cannot be used: {text.strip()}")
