"""Registries: everything that can be extended is found by a registered name or by `module:attribute`.

    @BaseTool.register("price")        ->  env.tools=[price]
    reward_fn.py: def score(...)       ->  reward.function=reward_fn:score

`module:attribute` is looked up first in the recipe folder that was opened with `recipe_folder(...)`, then among
installed modules, so that two recipes may each have a `reward_fn.py`.

`{name: clip, clip_low: 0.2}` in a configuration is an entry with its arguments (`Part`, `bind_part`).

`module:attribute` is for configurations, which are code. Data rows cannot name code: they use `Registry.registered`.
A registry may check its entries (`accepts`), also those that `module:attribute` finds.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from agent_r1.constraints import argument_problems
from agent_r1.errors import ConfigError, UnknownNameError, did_you_mean, importing, no_exit, pip_advice

T = TypeVar("T")

_MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

_RECIPE_PACKAGE = "agent_r1_recipe_"
_recipe_folder: ContextVar[Path | None] = ContextVar("recipe_folder", default=None)
_original_folders: dict[Path, Path] = {}
"""Where copied recipe folders came from."""


class Registry(Generic[T]):
    """Named entries of one kind.

    >>> shapes: Registry[type] = Registry("shape")
    >>> @shapes.register("dot")
    ... class Dot: ...
    >>> shapes.get("dot") is Dot
    True
    """

    def __init__(
        self, kind: str, *, accepts: Callable[[Any], bool] = lambda entry: True, expected: str = "something else"
    ) -> None:
        self.kind = kind
        self._accepts = accepts
        self._expected = expected
        self._entries: dict[str, T] = {}
        self._replaceable: set[str] = set()

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator that registers the decorated entry. A reloaded module may register the same name again, another
        module may not."""

        def add(entry: T) -> T:
            self.add(name, entry)
            return entry

        return add

    def add(self, name: str, entry: T, *, replaceable: bool = False) -> None:
        """Register `entry` under this name. With `replaceable`, another entry may take the name later: objects that are
        passed to `agent_r1.train` are defined again and again in a notebook."""
        if ":" in name:
            raise ConfigError(f"a {self.kind} name may not contain ':', found '{name}'; ':' marks module:attribute")
        self._refuse_other_kinds(name, entry)
        present = self._entries.get(name)
        may_replace = replaceable and name in self._replaceable
        if present is not None and not may_replace and _origin(present) != _origin(entry):
            raise ConfigError(
                f"the {self.kind} name '{name}' is taken by {_origin(present)}; choose another for {_origin(entry)}"
            )
        self._entries[name] = entry
        if replaceable and (present is None or may_replace):
            self._replaceable.add(name)

    def given(self) -> dict[str, T]:
        """The entries that were passed as objects, by name: another process cannot import them by their names."""
        return {name: self._entries[name] for name in sorted(self._replaceable)}

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self._entries)

    def get(self, name: str) -> T:
        """The entry of that name, or the object at `module:attribute`."""
        if name in self._entries:
            return self._entries[name]
        if ":" in name:
            entry: T = load_object(name, kind=self.kind)
            self._refuse_other_kinds(name, entry)
            return entry
        raise UnknownNameError(
            f"unknown {self.kind} '{name}'. {did_you_mean(name, self._entries)} "
            f"Or point to your own with module:attribute."
        )

    def registered(self, name: str) -> T:
        """The registered entry of that name; data rows may name nothing else."""
        if name in self._entries:
            return self._entries[name]
        if ":" in name:
            raise UnknownNameError(
                f"a data row may not name the {self.kind} '{name}': module:attribute is code, and belongs in the "
                f"configuration. Rows name what is registered (the configuration's `imports` may register more). "
                f"Known: {', '.join(self.names()) or 'none'}."
            )
        raise UnknownNameError(f"unknown {self.kind} '{name}'. {did_you_mean(name, self._entries)}")

    def _refuse_other_kinds(self, name: str, entry: Any) -> None:
        if not self._accepts(entry):
            kind = f"the class {entry.__name__}" if inspect.isclass(entry) else f"a {type(entry).__name__}"
            takes = f" of ({', '.join(inspect.signature(entry).parameters)})" if inspect.isfunction(entry) else ""
            raise ConfigError(f"{self.kind} '{name}' is {kind}{takes}; expected {self._expected}")


def _origin(entry: Any) -> str:
    """Where an entry was defined, as file and name: equal for a file that is loaded under two module names."""
    function = getattr(entry, "function", None)
    target = function or (entry if hasattr(entry, "__qualname__") else type(entry))
    module = sys.modules.get(target.__module__)
    return f"{getattr(module, '__file__', None) or target.__module__}:{target.__qualname__}"


@contextmanager
def recipe_folder(folder: Path | None) -> Iterator[None]:
    """Within this block `module:attribute` also finds modules that are files of `folder`."""
    token = _recipe_folder.set(folder.resolve() if folder is not None else None)
    try:
        yield
    finally:
        _recipe_folder.reset(token)


def load_module(name: str) -> ModuleType:
    """The module of that name: from the open recipe folder, else from `sys.path`."""
    folder = _recipe_folder.get()
    if folder is not None:
        path = folder.joinpath(*name.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return _load_file(folder, name, file)
    return importlib.import_module(name)


def _load_file(folder: Path, name: str, file: Path) -> ModuleType:
    """Load a recipe's file under a package name of its own, so that relative imports work and recipes never collide."""
    return importlib.import_module(f"{open_recipe_package(folder)}.{name}")


def open_recipe_package(folder: Path) -> str:
    """Make the files of a recipe folder importable; returns the name of their package."""
    original = _original_folders.get(folder, folder)
    package = _RECIPE_PACKAGE + hashlib.sha1(str(original).encode()).hexdigest()[:10]
    if package not in sys.modules:
        root = ModuleType(package)
        root.__path__ = [str(folder)]
        sys.modules[package] = root
    return package


def open_recipe_copy(folder: Path, original: Path) -> None:
    """Make a copy of a recipe, on another machine, importable under the package name that the recipe has where it came
    from: what is pickled there refers to that name."""
    _original_folders[folder.resolve()] = original
    open_recipe_package(folder.resolve())


def recipe_folder_of(module_name: str) -> Path | None:
    """The recipe folder that a loaded module belongs to; None for installed modules."""
    package = module_name.partition(".")[0]
    return Path(sys.modules[package].__path__[0]) if package.startswith(_RECIPE_PACKAGE) else None


def load_object(reference: str, *, kind: str) -> Any:
    """The object at `module:attribute`.

    >>> load_object("math:pi", kind="number")
    3.141592653589793
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise UnknownNameError(f"unknown {kind} '{reference}': expected module:attribute, for example reward_fn:score")
    module = find_module(module_name, f"{kind} '{reference}'")
    if not hasattr(module, attribute):
        public = [name for name in vars(module) if not name.startswith("_")]
        raise UnknownNameError(
            f"unknown {kind} '{reference}': '{module_name}' has no '{attribute}'. {did_you_mean(attribute, public)}"
        )
    return getattr(module, attribute)


def load_function(reference: str, *, kind: str) -> Callable[..., Any]:
    """The function at `module:attribute`; anything that cannot be called is refused."""
    function: Callable[..., Any] = load_object(reference, kind=kind)
    if not callable(function):
        raise ConfigError(f"{kind} '{reference}' is a {type(function).__name__}; expected a function")
    return function


def find_module(name: str, purpose: str) -> ModuleType:
    """`load_module` with errors that say what it is loaded for ("tool 'tools:price'"), and whether the module itself is
    missing or one that it imports."""
    if _MODULE_NAME.fullmatch(name) is None:
        raise UnknownNameError(
            f"unknown {purpose}: '{name}' is not a module name; expected for example tools or my_package.tools"
        )
    folder = _recipe_folder.get()
    where = f" (looked in {folder} and among installed modules)" if folder else " (looked among installed modules)"
    try:
        with importing(name), no_exit(f"loading {purpose}: the module '{name}'"):
            return load_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not _is_same_module(error.name, name):
            problem = f"loading {purpose}: {name} needs the module '{error.name}'"
            raise ConfigError(problem + _advice_on_import(error.name, folder)) from error
        raise UnknownNameError(f"unknown {purpose}: there is no module '{name}'{where}") from error


def _advice_on_import(missing: str, folder: Path | None) -> str:
    """A recipe's files are a package of their own, so `import tools` does not find the file tools.py next to it."""
    if folder is None or not any(folder.joinpath(name).exists() for name in (f"{missing}.py", missing)):
        return pip_advice(missing.partition(".")[0])
    return f", a file of the same folder: write `from .{missing} import ...`, with the dot"


def _is_same_module(missing: str, name: str) -> bool:
    return missing == name or missing.endswith("." + name) or name.startswith(missing + ".")


@dataclass(frozen=True, slots=True)
class Part:
    """Something that a configuration names, with its keyword arguments; a file writes `{name: clip, clip_low: 0.2}`."""

    name: str
    """A registered name or `module:attribute`; "" when the file gives none."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments by name."""

    @classmethod
    def of(cls, part: Part | Mapping[str, Any]) -> Part:
        """The part that a mapping writes.

        >>> Part.of({"name": "clip", "clip_low": 0.2})
        Part(name='clip', arguments={'clip_low': 0.2})
        """
        if isinstance(part, Part):
            return part
        return cls(part.get("name", ""), {str(key): value for key, value in part.items() if key != "name"})

    def as_mapping(self) -> dict[str, Any]:
        """The form that a file writes."""
        return {"name": self.name, **self.arguments}

    def with_defaults(self, target: Callable[..., Any]) -> Part:
        """The part with the defaults of `target`, the callable it names, for arguments it does not give. A default that
        a file cannot hold (anything but a number, text, true, false and null) is left to the callable."""
        defaults = {
            parameter.name: parameter.default
            for parameter in _keyword_parameters(target)
            if _fits_in_a_file(parameter.default)
        }
        return Part(self.name, {**defaults, **self.arguments})


def _fits_in_a_file(default: Any) -> bool:
    return default is None or isinstance(default, str | int) or (isinstance(default, float) and math.isfinite(default))


def bind_part(registry: Registry[Any], key: str, part: Part | Mapping[str, Any]) -> Callable[..., Any]:
    """The registered callable that `part` names, with its arguments bound.

    Arguments that the callable does not take are refused, with the nearest one it takes. So are values that its
    annotations exclude.
    """
    part = Part.of(part)
    if not isinstance(part.name, str) or not part.name:
        raise ConfigError(f"'{key}' needs a name, found {part.as_mapping()}; known: {', '.join(registry.names())}")
    target = registry.get(part.name)
    accepted = _keyword_arguments(target) if part.arguments else None
    unknown = [argument for argument in part.arguments if accepted is not None and argument not in accepted]
    if unknown:
        raise ConfigError(
            f"{registry.kind} '{part.name}' takes no argument '{unknown[0]}' (key '{key}.{unknown[0]}'). "
            f"{did_you_mean(unknown[0], accepted or ())} To drop it: '~{key}.{unknown[0]}'"
        )
    check_arguments(target, f"{key}.", part.arguments, f"{registry.kind} '{part.name}'")
    return functools.partial(target, **part.arguments)


def check_arguments(target: Callable[..., Any], prefix: str, arguments: Mapping[str, Any], what: str) -> None:
    """Refuse values that the annotations of `target` exclude; one error names all of them.

    "tool 'search': k=99 must be at most 20; characters=0 must be at least 1"
    """
    problems = [f"{prefix}{name}={problem}" for name, problem in argument_problems(target, arguments)]
    if problems:
        raise ConfigError(f"{what}: {'; '.join(problems)}")


def takes(num_arguments: int) -> Callable[[Any], bool]:
    """For `Registry(accepts=...)`: whether an entry takes this many positional arguments, as far as it is known."""

    def accepts(entry: Any) -> bool:
        try:
            parameters = inspect.signature(entry).parameters.values()
            positional = [parameter for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
            inspect.Signature(positional).bind(*([None] * num_arguments))
        except (TypeError, ValueError) as error:
            return isinstance(error, ValueError)  # a function written in C, without a signature
        return True

    return accepts


@functools.lru_cache(maxsize=512)
def signature_of(target: Callable[..., Any]) -> inspect.Signature:
    """The signature of a callable, cached: reading one is slow, and every episode makes an environment and tools."""
    return inspect.signature(target)


def _keyword_arguments(target: Any) -> set[str] | None:
    """Names of the keyword arguments a callable takes; None when it takes any."""
    parameters = signature_of(target).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in _keyword_parameters(target)}


def _keyword_parameters(target: Any) -> list[inspect.Parameter]:
    """The parameters that a configuration may set: of a class all, of a function those behind `*`, because what stands
    before is its data."""
    parameters = signature_of(target).parameters.values()
    if inspect.isclass(target):
        return [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    return [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
