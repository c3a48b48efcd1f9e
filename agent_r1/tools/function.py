"""`@tool`: a tool from a typed function and its docstring."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, overload

import docstring_parser
from docstring_parser.google import GoogleParser, Section, SectionType
from pydantic import BaseModel, ConfigDict, Field, PydanticSchemaGenerationError, create_model

from agent_r1.errors import ConfigError
from agent_r1.tools.base import BaseTool, ToolContext, ToolResult, checked_arguments
from agent_r1.tools.policy import ToolPolicy
from agent_r1.tools.results import as_result
from agent_r1.tools.workers.threads import call_off_loop

_PROSE_SECTIONS = "Returns Return Raises Yields Yield Example Examples Attributes Note Notes Warning Warnings Todo"
_GOOGLE_STYLE = GoogleParser(
    [
        *(Section(title, "param", SectionType.MULTIPLE) for title in ("Args", "Arguments", "Parameters", "Params")),
        *(Section(title, title.lower(), SectionType.SINGULAR) for title in _PROSE_SECTIONS.split()),
    ]
)

_SHARED_STATE = (
    "tools that share the state of an episode are functions with a parameter `context: ToolContext`, which keep it in "
    "context.state"
)


class FunctionTool(BaseTool):
    """A function as a tool. Async functions run on the event loop and must not block it. Sync functions run in a
    thread, which is abandoned if it is still busy at the timeout, or with `process=True` in a process, which is
    killed."""

    def __init__(self, function: Callable[..., Any], name: str | None = None, policy: ToolPolicy | None = None) -> None:
        if not callable(function) or isinstance(function, type):
            raise ConfigError(
                f"a tool is a function or an object of a subclass of BaseTool, found {function!r:.80}; {_SHARED_STATE}"
            )
        self.function = function
        self.name = name or str(getattr(function, "__name__", ""))
        if not self.name:
            raise ConfigError(f"a tool needs a name, which {function!r:.80} has not; wrap it in a def")
        self.policy = policy or ToolPolicy()
        self._arguments, self._context_parameter = _arguments_model(function, self.name)
        self.tool_schema = _schema(function, self.name, self._arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    @property
    def takes_context(self) -> bool:
        """The function has a parameter for it."""
        return self._context_parameter is not None

    def check(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """The unchanged arguments, once they fit the function's parameters."""
        self._values(args)
        return args

    async def execute(self, args: Mapping[str, Any], **kwargs: Any) -> ToolResult:
        """Validate the arguments, run the function, turn its return value into a tool result."""
        return as_result(await call_off_loop(self.function, **self._call_arguments(args, kwargs.get("context"))))

    def execute_here(self, args: Mapping[str, Any], context: ToolContext) -> Any:
        """The function's return value, called in this thread: a worker process has no event loop to block."""
        return self.function(**self._call_arguments(args, context))

    def _call_arguments(self, args: Mapping[str, Any], context: ToolContext | None) -> dict[str, Any]:
        values = self._values(args)
        if self._context_parameter is not None:
            values[self._context_parameter] = context
        return values

    def _values(self, args: Mapping[str, Any]) -> dict[str, Any]:
        checked = checked_arguments(self._arguments, args, self.name)
        return {str(field.alias): getattr(checked, name) for name, field in type(checked).model_fields.items()}


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(*, name: str | None = None, **limits: Any) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, **limits: Any
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a typed function a tool and register it under its name.

    `limits` are the fields of `ToolPolicy`: `@tool(timeout=5, process=True)`.

    The first paragraph of the docstring describes the tool, its `Args:` section the parameters (NumPy and reST style
    work too). The function returns the answer (text, or any JSON value), or `(answer, reward)`, or
    `(answer, reward, info)`.

    >>> @tool
    ... def double(number: int) -> int:
    ...     '''Twice a number.'''
    ...     return 2 * number
    >>> double.tool_schema["function"]["parameters"]["properties"]
    {'number': {'type': 'integer'}}
    """

    def make(target: Callable[..., Any]) -> FunctionTool:
        function_tool = FunctionTool(target, name, ToolPolicy().with_overrides(name or target.__name__, limits))
        BaseTool.registry.add(function_tool.name, function_tool)
        return function_tool

    return make if function is None else make(function)


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError as error:
        raise ConfigError(f"tool '{name}' has no parameters that Python knows ({error}); wrap it in a def") from error


def _arguments_model(function: Callable[..., Any], name: str) -> tuple[type[BaseModel], str | None]:
    """A pydantic model of the parameters in the schema, and the name of the `ToolContext` parameter."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(
            f"the types of the parameters of tool '{name}' cannot be read: {error}. Types must be importable where the "
            "tool is defined, not only under TYPE_CHECKING"
        ) from error
    descriptions = _parameter_descriptions(function, name)
    fields: dict[str, Any] = {}
    context_parameter = None
    for parameter in _signature(function, name).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"tool '{name}' takes *{parameter.name}; a tool needs named parameters")
        hint = hints.get(parameter.name)
        if hint is None and parameter.name == "self":
            raise ConfigError(f"tool '{name}' is a method; {_SHARED_STATE}")
        if hint is None:
            raise ConfigError(f"parameter '{parameter.name}' of tool '{name}' has no type; the model needs one")
        if _is_context(hint):
            context_parameter = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        # The model sees the alias; the field's own name cannot clash with pydantic's attributes.
        field = Field(default, alias=parameter.name, description=descriptions.get(parameter.name))
        fields[f"argument_{parameter.name}"] = (hint, field)
    try:
        model = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    except PydanticSchemaGenerationError as error:
        types = ", ".join(
            f"{parameter}: {_type_name(hints[parameter])}" for parameter in hints if parameter != "return"
        )
        raise ConfigError(
            f"tool '{name}' has a parameter of a type that a model cannot write as JSON ({types}). Use str, int, "
            "float, bool, list, dict, Literal, an Enum, a dataclass or a pydantic model"
        ) from error
    return model, context_parameter


def _is_context(hint: Any) -> bool:
    """`ToolContext`, also `ToolContext | None`."""
    return hint is ToolContext or (ToolContext in typing.get_args(hint) and type(None) in typing.get_args(hint))


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _parameter_descriptions(function: Callable[..., Any], name: str) -> dict[str, str]:
    """What the docstring (Google, NumPy or reST style) says about each parameter."""
    text = inspect.getdoc(function) or ""
    try:
        parameters = _GOOGLE_STYLE.parse(text).params or docstring_parser.parse(text).params
    except docstring_parser.ParseError as error:
        raise ConfigError(
            f"the docstring of tool '{name}' cannot be parsed: {error} Write `parameter: description` under Args:"
        ) from None
    return {one.arg_name: " ".join(one.description.split()) for one in parameters if one.description}


def _schema(function: Callable[..., Any], name: str, arguments: type[BaseModel]) -> dict[str, Any]:
    """The schema in OpenAI form, without pydantic's titles, which cost tokens and add nothing."""
    parameters = _without_titles(arguments.model_json_schema())
    parameters.pop("additionalProperties", None)
    description = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    if not description:
        raise ConfigError(f"tool '{name}' has no docstring; its first line tells the model what the tool does")
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def _without_titles(schema: Any, *, names_are_data: bool = False) -> Any:
    if isinstance(schema, dict):
        return {
            key: _without_titles(value, names_are_data=key in ("properties", "$defs"))
            for key, value in schema.items()
            if names_are_data or key != "title"
        }
    return [_without_titles(item) for item in schema] if isinstance(schema, list) else schema
