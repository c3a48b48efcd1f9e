"""The environment of bfcl: one turn. The model reads a request and functions, and calls some of them, or none.

No function is run: the calls are compared with those that the row accepts (`reward_fn.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_r1.envs import AgentEnv
from agent_r1.errors import DataError
from agent_r1.types import Action, Observation, StepResult, Task

from .matching import plain_name

_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
"""BFCL names types as Python does; JSON schemas, which models are trained on, name them otherwise."""


def row_functions(task: Task) -> list[Mapping[str, Any]]:
    """The functions of a row; `DataError` when they are none."""
    functions = task.env_kwargs.get("functions")
    if not isinstance(functions, list) or not all(
        isinstance(entry, Mapping) and isinstance(entry.get("name"), str) for entry in functions
    ):
        raise DataError(f"task '{task.task_id}' needs env_kwargs.functions, a list of functions with names")
    return functions


def tool_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """A function of BFCL as a tool in the form of the OpenAI API.

    >>> parameters = {"type": "dict", "properties": {"a": {"type": "float"}}}
    >>> shown = tool_schema({"name": "math.add", "parameters": parameters})
    >>> shown["function"]["name"], shown["function"]["parameters"]["type"]
    ('math_add', 'object')
    """
    described = {
        "name": plain_name(str(function["name"])),
        "description": str(function.get("description", "")),
        "parameters": _json_schema(function.get("parameters") or {"type": "object", "properties": {}}),
    }
    return {"type": "function", "function": described}


def _json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    shown = dict(schema)
    if isinstance(shown.get("type"), str):
        shown["type"] = _TYPES.get(shown["type"], shown["type"])
        if shown["type"] == "any":
            del shown["type"]
    if isinstance(shown.get("properties"), Mapping):
        shown["properties"] = {name: _json_schema(part) for name, part in shown["properties"].items()}
    if isinstance(shown.get("items"), Mapping):
        shown["items"] = _json_schema(shown["items"])
    return shown


@AgentEnv.register("bfcl")
class FunctionCallEnv(AgentEnv):
    """One request with functions; whatever the model answers ends the episode."""

    async def reset(self, task: Task) -> Observation:
        """The row's messages, and its functions as tools."""
        return self.preview(task)

    def preview(self, task: Task) -> Observation:
        """What `reset` returns."""
        return Observation(messages=task.prompt, tools=tuple(map(tool_schema, row_functions(task))))

    async def step(self, action: Action) -> StepResult:
        """The end, with the calls for the record."""
        calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in action.tool_calls]
        return StepResult(observation=None, done=True, info={"calls": calls})
