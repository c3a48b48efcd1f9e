"""Tools: what a model may call.

A tool is a class with a schema and an async `execute`, or a typed function under `@tool`:

    @tool
    def stock(item: str) -> int:
        '''How many pieces of an item are in the warehouse.

        Args:
            item: The item's name.
        '''
        return WAREHOUSE[item]

A tool that raises does not end the episode: the model reads the error and goes on.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ValidationError

from agent_r1.errors import ConfigError
from agent_r1.registry import Registry, check_arguments, signature_of
from agent_r1.tools.policy import ToolPolicy
from agent_r1.types import TEXT_ARGUMENT, Task, ToolSchema

ToolResult = tuple["ToolResponse", float | None, Mapping[str, Any]]
"""What `execute` returns: the answer, the process reward of the call (None: none given), and notes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResponse:
    """What the model reads."""

    text: str
    """The answer."""
    images: tuple[Any, ...] = ()
    """Images, for models that see: bytes of an image file, a path or address, or a PIL image. No engine reads images
    yet: an answer with any is an error that the model reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """What a tool may know of the episode it is called in. A parameter annotated with this is filled in by the
    environment and is not part of the schema the model sees."""

    task: Task
    """The row, without what its reward is computed from."""
    state: dict[str, Any] = field(default_factory=dict)
    """This episode's own scratch space, empty at `reset`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", replace(self.task, reward_model={}))


class ToolInputError(ValueError):
    """The model's arguments do not fit; the message is for the model."""


class ToolUnavailableError(RuntimeError):
    """The tool could not do its work for the moment (a server away, a quota used up): another attempt may help."""


class ToolTimeoutError(TimeoutError):
    """The call took too long and was stopped; the message is for the model."""


class BaseTool(ABC):
    """A tool. Subclasses set `name` and `tool_schema` and implement `execute`.

    A class that a row or the configuration names is made afresh for every episode: what it keeps in itself is that
    episode's. One with `batch_execute` is made once and serves all episodes, as does an object that was registered;
    these keep what belongs to an episode in `context.state`.
    """

    registry: ClassVar[Registry[BaseTool | type[BaseTool]]] = Registry(
        "tool",
        accepts=lambda entry: isinstance(entry, BaseTool) or (isinstance(entry, type) and issubclass(entry, BaseTool)),
        expected="a function under @tool, or a subclass of BaseTool",
    )
    families: ClassVar[Registry[Callable[[str], list[BaseTool]]]] = Registry("family of tools")
    """What makes tools of names such as `mcp:SERVER`: called with what stands after the colon."""
    _shared: ClassVar[dict[tuple[type[BaseTool], str], BaseTool]] = {}
    row_arguments: ClassVar[tuple[str, ...]] = ()
    """Arguments of the class that a data row may set, as `{"name": ..., <argument>: ...}`: data such as a level or a
    seed, never what limits the tool. Everything else belongs in the configuration."""

    name: str
    tool_schema: ToolSchema
    policy: ToolPolicy = ToolPolicy()
    """Its limits."""
    made_with: Mapping[str, Any] | None = None
    """The arguments `BaseTool.get` made it with, by which a worker process makes its like; None: made elsewhere."""
    arguments: type[BaseModel] | None = None
    """A pydantic model that the arguments must fit; `execute` gets its fields. None: they are taken as they come."""

    @abstractmethod
    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        """Run one call. `kwargs` holds `context: ToolContext`."""

    async def batch_execute(
        self, list_of_args: Sequence[Mapping[str, Any]], contexts: Sequence[ToolContext]
    ) -> Sequence[ToolResult | Exception]:
        """Run calls that wait at the same moment, of one or many episodes, as one; a result or an exception for each.

        A tool that implements this (a search index, a remote API) gets its calls in batches. When the batch as a whole
        fails, its calls are run one by one with `execute`.
        """
        raise NotImplementedError

    async def close(self, context: ToolContext) -> None:  # noqa: B027 - optional for subclasses
        """Give back what the tool kept in `context.state` for an episode. Called once, when the episode is over."""

    @property
    def can_batch(self) -> bool:
        """The tool has a `batch_execute` of its own."""
        return type(self).batch_execute is not BaseTool.batch_execute

    def check(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments `execute` will get; raises `ToolInputError` with a message for the model."""
        if self.arguments is None:
            return args
        checked = checked_arguments(self.arguments, args, self.name)
        return {name: getattr(checked, name) for name in type(checked).model_fields}

    @classmethod
    def register(cls, name: str) -> Callable[[_ToolT], _ToolT]:
        """Give a tool, or a tool class, a name that data rows and configurations can use."""
        return cls.registry.register(name)  # type: ignore[return-value]

    @classmethod
    def get(cls, name: str, **arguments: Any) -> BaseTool:
        """The tool of that name, or at `module:attribute`; a class is made into one with `arguments`.

        A class with `batch_execute` is made once for the same arguments, so that the calls of all episodes meet.
        """
        found = cls.registry.get(name)
        if not isinstance(found, type):
            if arguments:
                raise ConfigError(f"tool '{name}' takes no arguments, found {', '.join(sorted(arguments))}")
            return found
        try:
            signature_of(found).bind(**arguments)
        except TypeError as error:
            raise ConfigError(f"tool '{name}': {error}. Its arguments: {signature_of(found)}") from None
        check_arguments(found, "", arguments, f"tool '{name}'")
        if found.batch_execute is BaseTool.batch_execute:
            return found._make(arguments)
        key = (found, json.dumps(arguments, sort_keys=True, default=str))
        if key not in cls._shared:
            cls._shared[key] = found._make(arguments)
        return cls._shared[key]

    @classmethod
    def _make(cls, arguments: Mapping[str, Any]) -> BaseTool:
        made = cls(**arguments)
        made.made_with = arguments
        return made

    @classmethod
    def find(cls, entry: str | Mapping[str, Any] | BaseTool) -> list[BaseTool]:
        """The tools that an entry of `env.tools` stands for.

        "calculate" -> that tool; {"name": "search", "index": "wiki"} -> that tool with arguments; "mcp:files" -> all
        tools of the MCP server `files`; "mcp:files/read" -> one of them.
        """
        if isinstance(entry, BaseTool):
            return [entry]
        if not isinstance(entry, str | Mapping):
            raise ConfigError(
                f"env.tools lists names, or entries like {{name: search, index: wiki}}; found {entry!r:.80}"
            )
        if isinstance(entry, Mapping):
            arguments = {str(key): value for key, value in entry.items()}
            if "name" not in arguments:
                raise ConfigError(f"a tool given with arguments needs a 'name', found {arguments}")
            return [cls.get(str(arguments.pop("name")), **arguments)]
        family, _, member = entry.partition(":")
        if family in cls.families.names():
            return cls.families.get(family)(member)
        return [cls.get(entry)]


_ToolT = TypeVar("_ToolT", bound=BaseTool | type[BaseTool])


def named_arguments(tool: BaseTool, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments by the tool's own names. Plain text has none (ReAct's `Action Input: 3 + 4` comes as `input`): it
    is what the tool needs, when that is one thing.

    `{"input": "3 + 4"}` for a calculator that takes `expression` -> `{"expression": "3 + 4"}`
    """
    if set(args) != {TEXT_ARGUMENT}:
        return args
    parameters = tool.tool_schema["function"].get("parameters") or {}
    known = parameters.get("properties") or {}
    needed = parameters.get("required") or list(known)
    if TEXT_ARGUMENT in known or len(needed) != 1:
        return args
    return {needed[0]: args[TEXT_ARGUMENT]}


def checked_arguments(model: type[BaseModel], args: Mapping[str, Any], tool_name: str) -> BaseModel:
    """The arguments as `model` reads them; a `ToolInputError` tells the model all that is wrong at once."""
    try:
        return model.model_validate(dict(args))
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in item['loc']) or 'arguments'}: {item['msg']}" for item in error.errors()
        ]
        raise ToolInputError(f"wrong arguments for {tool_name}: {'; '.join(problems)}") from None
