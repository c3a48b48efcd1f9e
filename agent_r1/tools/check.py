"""`check_tool`: find what is wrong with a tool before a model calls it.

for finding in check_tool(search, [{"query": "tea"}]):
    print(finding)
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1.errors import INTERRUPTIONS, ConfigError, EpisodeError, described
from agent_r1.event_loop import callable_in_event_loop, run_cancelling
from agent_r1.findings import Finding
from agent_r1.tools.base import BaseTool, ToolContext, ToolInputError
from agent_r1.tools.runner import ToolRunner, check_process_tool
from agent_r1.types import Task, ToolCall

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""Tool names that every tool format and every server accepts."""

_SLOW_SHARE = 0.5
_TASK = Task(task_id="check_tool", prompt=())


@callable_in_event_loop
def check_tool(
    tool: BaseTool, calls: Sequence[Mapping[str, Any]] = (), *, policies: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Finding]:
    """All findings about a tool; empty for a good one.

    `calls` are arguments to run it with: without any, the tool is not run. `policies` are the configuration's overrides
    (`{"search": {"timeout": 5}}`). A parameter without a description gives: parameters are described: 'query' of search
    has no description. Describe it under Args: in the docstring, or in the schema.
    """
    findings = schema_findings(tool)
    try:
        runner = ToolRunner(policies)
        if runner.policy_of(tool).process:
            check_process_tool(tool)
    except ConfigError as error:
        findings.append(
            Finding(rule="its policy can be kept", observed=str(error), fix="Change the policy or the tool")
        )
        return findings
    findings += _argument_findings(tool)
    if calls and not findings:
        findings += run_cancelling(lambda: _run_findings(runner, tool, calls))
    return findings


def schema_findings(tool: BaseTool) -> list[Finding]:
    """What is wrong with the schema, which the model reads."""
    schema = tool.tool_schema
    try:
        json.dumps(schema)
    except (TypeError, ValueError) as error:
        return [_finding("a schema is JSON", str(error), "Use plain strings, numbers, lists and mappings")]
    function = schema.get("function") if isinstance(schema, Mapping) else None
    if not isinstance(function, Mapping) or schema.get("type") != "function":
        shape = '{"type": "function", "function": {"name", "description", "parameters"}}'
        return [_finding("a schema has the form chat templates expect", f"found {schema}", f"Write {shape}")]
    findings: list[Finding] = []
    if function.get("name") != tool.name:
        observed = f"the schema calls it '{function.get('name')}' and it answers to '{tool.name}'"
        findings.append(_finding("a tool answers to the name the model reads", observed, "Use one name"))
    if not NAME.fullmatch(str(function.get("name"))):
        observed = f"'{function.get('name')}' has characters that not every tool format can write"
        findings.append(_finding("a name is letters, digits, _ and -", observed, "Rename it"))
    if not str(function.get("description") or "").strip():
        findings.append(_finding("a tool is described", f"{tool.name} is not", "Say in a sentence what it does"))
    return findings + _parameter_findings(tool.name, function.get("parameters"))


def _parameter_findings(name: str, parameters: Any) -> list[Finding]:
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        fix = 'Write {"type": "object", "properties": {...}, "required": [...]}'
        return [_finding("parameters are an object", f"those of {name} are {parameters}", fix)]
    properties = parameters.get("properties", {})
    unknown = [key for key in parameters.get("required", ()) if key not in properties]
    findings = [
        Finding(
            rule="parameters are described",
            observed=f"'{key}' of {name} has no description",
            fix="Describe it under Args: in the docstring, or in the schema",
            severity="warning",
        )
        for key, parameter in properties.items()
        if not (isinstance(parameter, Mapping) and parameter.get("description"))
    ]
    if unknown:
        observed = f"{', '.join(unknown)} of {name} are required and not among its properties"
        findings.append(_finding("what is required exists", observed, "Add them to properties"))
    return findings


def _argument_findings(tool: BaseTool) -> list[Finding]:
    """`check` accepts arguments that follow the schema, or raises `ToolInputError`."""
    arguments = example_arguments(tool.tool_schema["function"]["parameters"]) if not schema_problems(tool) else {}
    findings: list[Finding] = []
    try:
        tool.check(arguments)
    except ToolInputError:
        pass  # an example string may be no date or no expression: the message is for the model
    except INTERRUPTIONS:
        raise
    except BaseException as error:  # noqa: BLE001 - a tool's own check is foreign code
        observed = f"{arguments} raised {described(error)}"
        findings.append(_finding("wrong arguments raise ToolInputError", observed, "Let check raise nothing else"))
    return findings


def schema_problems(tool: BaseTool) -> list[Finding]:
    """The findings about its schema that are problems, not warnings."""
    return [finding for finding in schema_findings(tool) if finding.severity == "problem"]


async def _run_findings(runner: ToolRunner, tool: BaseTool, calls: Sequence[Mapping[str, Any]]) -> list[Finding]:
    findings: list[Finding] = []
    policy = runner.policy_of(tool)
    try:
        for arguments in calls:
            call = ToolCall(name=tool.name, arguments=arguments)
            context = ToolContext(task=_TASK)
            started = time.perf_counter()
            try:
                outcome = await runner.call({tool.name: tool}, call, context)
            except EpisodeError as error:
                findings.append(_finding("a call is answered", f"{arguments} ended the episode: {error}"))
                continue
            finally:
                await tool.close(context)
            seconds = time.perf_counter() - started
            if outcome.status != "ok":
                observed = f"{arguments} gave {outcome.status}: {outcome.response.text}"
                findings.append(_finding("a call that should work works", observed, "Fix the tool, or the call"))
            elif outcome.truncated:
                observed = f"{arguments} gave more than {policy.max_output_chars} characters; their middle was cut"
                fix = f"Answer more shortly, or raise tools.{tool.name}.max_output_chars"
                findings.append(Finding(rule="answers fit", observed=observed, fix=fix, severity="warning"))
            elif seconds > _SLOW_SHARE * policy.timeout:
                observed = f"{arguments} took {seconds:.1f} s of the {policy.timeout:g} s it may take"
                fix = f"Make it faster, or raise tools.{tool.name}.timeout"
                findings.append(Finding(rule="answers come in time", observed=observed, fix=fix, severity="warning"))
    finally:
        await runner.close()
    return findings


def example_arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Example arguments for a JSON schema of an object: only the required ones.

    >>> example_arguments({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    {'n': 1}
    """
    properties = schema.get("properties", {})
    definitions = schema.get("$defs", {})
    return {key: _example(properties.get(key, {}), definitions) for key in schema.get("required", ())}


def _example(schema: Any, definitions: Mapping[str, Any]) -> Any:
    if not isinstance(schema, Mapping):
        return "text"
    if "$ref" in schema:
        return _example(definitions.get(str(schema["$ref"]).rsplit("/", 1)[-1], {}), {})
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return _example(schema[key][0], definitions)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "array":
        return [_example(schema.get("items", {}), definitions)] * int(schema.get("minItems", 1))
    if kind == "object":
        return example_arguments({"$defs": definitions, **schema})
    simple = {"integer": 1, "number": 1.5, "boolean": True, "null": None}
    if kind in ("integer", "number"):
        return schema.get("minimum", schema.get("maximum", simple[kind]))
    return simple.get(str(kind), "text" * max(1, -(-int(schema.get("minLength", 1)) // 4)))


def _finding(rule: str, observed: str, fix: str = "") -> Finding:
    return Finding(rule=rule, observed=observed, fix=fix)
