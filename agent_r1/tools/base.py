"""`BaseTool`: what a model may call.

A tool is a class with a schema and an async `execute`, or a typed function under `@tool`:

    @tool
    def stock(item: str) -> int:
        '''How many pieces of an item are in the warehouse.

        Args:
            item: The item's name.
        '''
        return WAREHOUSE[item]

A tool that raises does not end the episode: the model reads the error and continues.
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
"""What `execute` returns: the answer, the process reward of the call (None: no reward), and notes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResponse:
    """What the model reads."""

    text: str
    """The answer."""
    images: tuple[Any, ...] = ()
    """Images, which follow the text: PIL images, arrays of uint8 (height x width x 3), bytes of image files, `Path`s,
    pictures. For a model that sees none, an answer with images is an error that it reads."""
    ends_episode: bool = False
    """The episode is done after the turn that made this call, and `text` is its answer (`episode.answer`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """What a tool may know about the episode it is called in. The environment fills in a parameter annotated with this;
    it is not part of the schema the model sees."""

    task: Task
    """The row, without `reward_model`, from which its reward is computed."""
    state: dict[str, Any] = field(default_factory=dict)
    """Scratch space of this episode, empty at `reset`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", replace(self.task, reward_model={}))


class ToolInputError(ValueError):
    """The model's arguments are wrong; the message is for the model."""


class ToolUnavailableError(RuntimeError):
    """The tool is temporarily unavailable (a server is down, a quota is used up): a retry may help."""


class ToolTimeoutError(TimeoutError):
    """The call took too long and was stopped; the message is for the model."""


class BaseTool(ABC):
    """A tool. Subclasses set `name` and `tool_schema` and implement `execute`.

    A class that a row or the configuration names is instantiated for every episode, so its attributes belong to that
    episode. A class with `batch_execute` is instantiated once and serves all episodes, as does a registered object;
    these keep the state of an episode in `context.state`.
    """

    registry: ClassVar[Registry[BaseTool | type[BaseTool]]] = Registry(
        "tool",
        accepts=lambda entry: isinstance(entry, BaseTool) or (isinstance(entry, type) and issubclass(entry, BaseTool)),
        expected="a function under @tool, or a subclass of BaseTool",
    )
    families: ClassVar[Registry[Callable[[str], list[BaseTool]]]] = Registry("family of tools")
    """Functions that make tools from names such as `mcp:SERVER`, called with the part after the colon."""
    _shared: ClassVar[dict[tuple[type[BaseTool], str], BaseTool]] = {}
    row_arguments: ClassVar[tuple[str, ...]] = ()
    """Arguments of the class that a data row may set, as `{"name": ..., <argument>: ...}`: data such as a level or a
    seed, never limits of the tool. All other arguments belong in the configuration."""

    name: str
    tool_schema: ToolSchema
    policy: ToolPolicy = ToolPolicy()
    """The limits of its calls."""
    made_with: Mapping[str, Any] | None = None
    """The arguments `BaseTool.get` instantiated it with, from which a worker process makes a copy; None: not made by
    `get`."""
    arguments: type[BaseModel] | None = None
    """A pydantic model that validates the arguments; `execute` gets its fields. None: they are not validated."""

    @abstractmethod
    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        """Run one call. `kwargs` holds `context: ToolContext`."""

    async def batch_execute(
        self, list_of_args: Sequence[Mapping[str, Any]], contexts: Sequence[ToolContext]
    ) -> Sequence[ToolResult | Exception]:
        """Run calls that wait at the same time, of one or many episodes; return a result or an exception for each.

        A tool that implements this (a search index, a remote API) gets its calls in batches. When a batch fails as a
        whole, its calls are run one by one with `execute`.
        """
        raise NotImplementedError

    async def close(self, context: ToolContext) -> None:  # noqa: B027 - optional for subclasses
        """Release what the tool kept in `context.state`. Called once, at the end of an episode."""

    @property
    def can_batch(self) -> bool:
        """The tool implements `batch_execute`."""
        return type(self).batch_execute is not BaseTool.batch_execute

    @property
    def takes_context(self) -> bool:
        """Calls are given the `ToolContext`, and may change its state."""
        return True

    def check(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """The validated arguments for `execute`; raises `ToolInputError` with a message for the model."""
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
        """The tool of that name, or at `module:attribute`; a class is instantiated with `arguments`.

        A class with `batch_execute` is instantiated once per arguments, so that calls of all episodes share batches.
        """
        entry = cls.registry.get(name)
        if not isinstance(entry, type):
            if arguments:
                raise ConfigError(f"tool '{name}' takes no arguments, found {', '.join(sorted(arguments))}")
            return entry
        try:
            signature_of(entry).bind(**arguments)
        except TypeError as error:
            raise ConfigError(f"tool '{name}': {error}. Its arguments: {signature_of(entry)}") from None
        check_arguments(entry, "", arguments, f"tool '{name}'")
        if entry.batch_execute is BaseTool.batch_execute:
            return entry._make(arguments)
        key = (entry, json.dumps(arguments, sort_keys=True, default=str))
        if key not in cls._shared:
            cls._shared[key] = entry._make(arguments)
        return cls._shared[key]

    @classmethod
    def _make(cls, arguments: Mapping[str, Any]) -> BaseTool:
        tool = cls(**arguments)
        tool.made_with = arguments
        return tool

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


def check_form(tool: BaseTool | type[BaseTool]) -> None:
    """Raise `ConfigError` for a tool without the attributes that the library reads: its name, and a schema in OpenAI
    form."""
    kind = tool if isinstance(tool, type) else type(tool)
    name, schema = getattr(tool, "name", None), getattr(tool, "tool_schema", None)
    function = schema.get("function") if isinstance(schema, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ConfigError(f"the tool class {kind.__name__} has no name; set the attribute: name = 'price'")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ConfigError(
            f"tool '{name}' has the tool_schema {schema!r:.80}; it must have the form "
            '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}'
        )


def named_arguments(tool: BaseTool, args: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments by the tool's own names. Plain text has no name (ReAct's `Action Input: 3 + 4` comes as `input`):
    it becomes the tool's only required parameter, if there is exactly one.

    `{"input": "3 + 4"}` for a calculator that takes `expression` -> `{"expression": "3 + 4"}`
    """
    if set(args) != {TEXT_ARGUMENT}:
        return args
    parameters = tool.tool_schema["function"].get("parameters") or {}
    properties = parameters.get("properties") or {}
    required = parameters.get("required") or list(properties)
    if TEXT_ARGUMENT in properties or len(required) != 1:
        return args
    return {required[0]: args[TEXT_ARGUMENT]}


def checked_arguments(model: type[BaseModel], args: Mapping[str, Any], tool_name: str) -> BaseModel:
    """The arguments as validated by `model`; a `ToolInputError` lists everything that is wrong."""
    try:
        return model.model_validate(dict(args))
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in item['loc']) or 'arguments'}: {item['msg']}" for item in error.errors()
        ]
        raise ToolInputError(f"wrong arguments for {tool_name}: {'; '.join(problems)}") from None
