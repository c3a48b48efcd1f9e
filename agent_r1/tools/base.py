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

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from agent_r1.errors import ConfigError
from agent_r1.registry import Registry
from agent_r1.types import Task, ToolSchema

ToolResult = tuple["ToolResponse", float | None, Mapping[str, Any]]
"""What `execute` returns: the answer, the process reward of the call (None: none given), and notes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResponse:
    """What the model reads."""

    text: str
    """The answer."""
    images: tuple[Any, ...] = ()
    """Images, for models that see."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """What a tool may know of the episode it is called in. A parameter annotated with this is filled in by the
    environment and is not part of the schema the model sees."""

    task: Task
    """The row."""
    state: dict[str, Any] = field(default_factory=dict)
    """This episode's own scratch space, empty at `reset`."""


class ToolInputError(ValueError):
    """The model's arguments do not fit; the message is for the model."""


class BaseTool(ABC):
    """A tool. Subclasses set `name` and `tool_schema` and implement `execute`.

    One object serves all episodes at once: what belongs to an episode is kept in `context.state`.
    """

    registry: ClassVar[Registry[BaseTool | type[BaseTool]]] = Registry("tool")
    families: ClassVar[Registry[Callable[[str], list[BaseTool]]]] = Registry("family of tools")
    """What makes tools of names such as `mcp:SERVER`: called with what stands after the colon."""

    _made: ClassVar[dict[tuple[type[BaseTool], str], BaseTool]] = {}

    name: str
    tool_schema: ToolSchema

    @abstractmethod
    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        """Run one call. `kwargs` holds `context: ToolContext`."""

    @classmethod
    def register(cls, name: str) -> Callable[[_ToolT], _ToolT]:
        """Give a tool, or a tool class, a name that data rows and configurations can use."""
        return cls.registry.register(name)  # type: ignore[return-value]

    @classmethod
    def get(cls, name: str, **arguments: Any) -> BaseTool:
        """The tool of that name, or at `module:attribute`. A class is made into a tool once for the same arguments, so
        that the calls of all episodes meet in one object."""
        found = cls.registry.get(name)
        if not isinstance(found, type):
            if arguments:
                raise ConfigError(f"tool '{name}' takes no arguments, found {', '.join(sorted(arguments))}")
            return found
        try:
            inspect.signature(found).bind(**arguments)
        except TypeError as error:
            raise ConfigError(f"tool '{name}': {error}. Its arguments: {inspect.signature(found)}") from None
        key = (found, json.dumps(arguments, sort_keys=True, default=str))
        if key not in cls._made:
            cls._made[key] = found(**arguments)
        return cls._made[key]

    @classmethod
    def find(cls, entry: str | Mapping[str, Any] | BaseTool) -> list[BaseTool]:
        """The tools that an entry of `env.tools` stands for.

        "calculate" -> that tool; {"name": "search", "index": "wiki"} -> that tool with arguments; "mcp:files" -> all
        tools of the MCP server `files`; "mcp:files/read" -> one of them.
        """
        if isinstance(entry, BaseTool):
            return [entry]
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
