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

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

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
    """A tool. Subclasses set `name` and `tool_schema` and implement `execute`."""

    registry: ClassVar[Registry[BaseTool | type[BaseTool]]] = Registry("tool")

    name: str
    tool_schema: ToolSchema

    @abstractmethod
    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        """Run one call. `kwargs` holds `context: ToolContext`."""

    async def close(self, context: ToolContext) -> None:  # noqa: B027 - optional for subclasses
        """Give back what the tool kept in `context.state` for an episode. Called once, when the episode is over."""

    @classmethod
    def register(cls, name: str) -> Callable[[_ToolT], _ToolT]:
        """Give a tool, or a tool class that needs no arguments, a name that data rows and configurations can use."""
        return cls.registry.register(name)  # type: ignore[return-value]

    @classmethod
    def get(cls, name: str) -> BaseTool:
        """The tool of that name, or at `module:attribute`."""
        found = cls.registry.get(name)
        return found() if isinstance(found, type) else found


_ToolT = TypeVar("_ToolT", bound=BaseTool | type[BaseTool])
