"""Checks of the chat template and the tool format: are earlier turns preserved, and are the model's calls parsed?

Template, tool format and tools come from different authors, and a mismatch raises no error: calls are not recognised,
or every turn is tokenised again. A model that was never trained to write the tags of calls raises none either.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from agent_r1.chat import ChatRenderer, Prompt, tool_formats
from agent_r1.errors import AgentR1Error, ConfigError
from agent_r1.findings import Finding
from agent_r1.tools import example_arguments
from agent_r1.training import describe_shared, shared_rows
from agent_r1.types import Action, Message, Observation, TokenIds, ToolCall, common_prefix

_THINKING = "<think>\nLet me see.\n</think>\n\n"


def template_findings(renderer: ChatRenderer, observation: Observation) -> list[Finding]:
    """Whether every message is written, and a second turn continues the first one's tokens, with and without
    thinking."""
    if observation.messages is None:
        return []
    prompt = renderer.render(observation)
    left_out = _left_out(renderer, prompt)
    if left_out:
        return left_out
    try:
        ids = renderer.encode_turn(prompt, _reply(observation).as_message())
    except ValueError as error:
        observed = f"{error}"
        fix = (
            "Use a template that writes the assistant's turn after its generation prompt and ends it with a stop token"
        )
        return [Finding(rule="the template writes the model's turn as the model would", observed=observed, fix=fix)]
    action = renderer.parse(ids, truncated=False)
    following = _following(observation, action)
    after = renderer.next_prompt(prompt, action, following)
    findings: list[Finding] = []
    if not after.bridged:
        observed = "after one turn the template writes the earlier turns differently, so every step is tokenised again"
        fix = "Use a chat template that only appends; compare its rendering of one turn and of two"
        findings.append(Finding(rule="the template preserves prefixes", observed=observed, fix=fix))
    else:
        findings += _difference(renderer, after, following)
    return findings + _thinking(renderer, prompt, action)


def _left_out(renderer: ChatRenderer, prompt: Prompt) -> list[Finding]:
    """Messages that the template does not write: other text in them gives the same prompt."""
    messages = prompt.observation.messages or ()
    findings = []
    for index, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, str) or not content.strip():  # without text, nothing can be left out
            continue
        other = replace(
            prompt.observation,
            messages=(*messages[:index], {**message, "content": f"{content} 7"}, *messages[index + 1 :]),
        )
        if renderer.render(other).token_ids == prompt.token_ids:
            observed = f"message {index} of the prompt, of the role '{message['role']}', is left out"
            fix = "Use a chat template that writes it, or put its text into another message"
            findings.append(Finding(rule="the template writes every message", observed=observed, fix=fix))
    return findings


def _reply(observation: Observation, content: str = "") -> Action:
    """A plausible action: a call of the first tool, or one word."""
    if not observation.tools:
        return Action(text=f"{content}Yes.", content=f"{content}Yes.")
    return Action(text=content, content=content, tool_calls=(_example_call(observation.tools[0]),))


def _following(observation: Observation, action: Action) -> Observation:
    """The next observation, as an environment that appends would give it."""
    answers: list[Message] = [
        {"role": "tool", "name": call.name, "tool_call_id": call.call_id, "content": "12"} for call in action.tool_calls
    ] or [{"role": "user", "content": "Go on."}]
    messages = (*(observation.messages or ()), action.as_message(), *answers)
    return Observation(messages=messages, tools=observation.tools)


def _difference(renderer: ChatRenderer, bridged: Prompt, observation: Observation) -> list[Finding]:
    """A bridge keeps the model's own tokens; the text around them must be what the template writes."""
    running = renderer.text_of(bridged.token_ids)
    whole = renderer.text_of(renderer.render(observation).token_ids)
    if running == whole:
        return []
    at = common_prefix(running, whole)
    window = slice(max(0, at - 20), at + 20)
    observed = f"the running prompt has {running[window]!r} where the template writes {whole[window]!r}"
    fix = "Harmless when only spaces differ; otherwise fix the template"
    return [Finding(rule="the template writes turns as they were said", observed=observed, fix=fix, severity="warning")]


def _thinking(renderer: ChatRenderer, prompt: Prompt, action: Action) -> list[Finding]:
    ids = renderer.encode_rendered(_THINKING) + action.token_ids
    thought = renderer.parse(ids, truncated=False)
    if renderer.next_prompt(prompt, thought, _following(prompt.observation, thought)).bridged:
        return []
    observed = "it drops or rewrites the thinking of earlier turns, so a step after thinking is tokenised again"
    fix = "Nothing, when the model does not think; else expect longer updates, or use a template that keeps thinking"
    return [Finding(rule="the template keeps thinking", observed=observed, fix=fix, severity="warning")]


def call_findings(renderer: ChatRenderer, observation: Observation) -> list[Finding]:
    """Whether a call of each tool, written as the format and as the template write it, is read back."""
    findings: list[Finding] = []
    for schema in observation.tools:
        call = _example_call(schema)
        try:
            text = renderer.format.call_text([call], "")
            observed = (
                "" if _reads(renderer.format, text, call) else f"{_short(text)} is not read back as '{call.name}'"
            )
        except ConfigError as error:  # a format may know one tool only
            observed = str(error)
        if observed:
            fix = "Choose another model.tool_format, or rename the tool or its parameters"
            findings.append(Finding(rule="every tool can be called", observed=observed, fix=fix))
    if not observation.tools or findings or observation.messages is None:
        return findings
    if not renderer.template_shows_tools:
        return findings  # the format itself describes the tools to the model
    return _unnamed_tools(renderer, observation) + _template_calls(renderer, observation)


def _unnamed_tools(renderer: ChatRenderer, observation: Observation) -> list[Finding]:
    text = renderer.render(observation).template_text or ""
    missing = [schema["function"]["name"] for schema in observation.tools if schema["function"]["name"] not in text]
    if not missing:
        return []
    fix = "Use a template that writes `tools`, or name them in the prompt"
    return [Finding(rule="the model is told of its tools", observed=f"the prompt never names {missing}", fix=fix)]


def _template_calls(renderer: ChatRenderer, observation: Observation) -> list[Finding]:
    """The model was trained to write calls as the template writes them."""
    call = _example_call(observation.tools[0])
    message = Action(text="", tool_calls=(call,)).as_message()
    try:
        ids = renderer.encode_turn(renderer.render(observation), message)
    except ValueError:
        return []  # reported by template_findings
    text = renderer.parse(ids, truncated=False).text
    if _reads(renderer.format, text, call):
        return []
    readers = [name for name in tool_formats.names() if _reads(tool_formats.get(name)(), text, call)]
    observed = f"the template writes a call as {_short(text)}, which this tool format does not read"
    fix = f"Set model.tool_format={readers[0]}" if readers else "Register a tool format that reads it"
    return [Finding(rule="the template's calls are read by the tool format", observed=observed, fix=fix)]


def tag_findings(renderer: ChatRenderer, observation: Observation, policy: Any) -> list[Finding]:
    """Whether the model was trained to write the tags of its turn: those of a call, and its end."""
    shared = shared_rows(policy, renderer.tokenizer, _example_turn(renderer, observation))
    if not shared:
        return []
    unusable = {row.token_id for row in shared}
    names = [name for name in tool_formats.names() if _avoids(renderer, name, observation, unusable)]
    other_format = f"; or set model.tool_format={' or '.join(names)}, whose tags are ordinary text" if names else ""
    fix = (
        f"Warm-start it (agent-r1 sft) with sft.steps x sft.learning_rate of {shared[0].enough:.2g} or more: Adam "
        "moves a weight by about the learning rate per step"
        f"{other_format}; or use a model that was trained to write these tags"
    )
    rule = "the model was trained to write its tags"
    return [Finding(rule=rule, observed=describe_shared(shared), fix=fix, severity="warning")]


def _example_turn(renderer: ChatRenderer, observation: Observation) -> TokenIds:
    """The tokens of a plausible turn; none where the template writes none, which `template_findings` reports."""
    if observation.messages is None:
        return ()
    try:
        return renderer.encode_turn(renderer.render(observation), _reply(observation).as_message())
    except (AgentR1Error, ValueError):
        return ()


def _avoids(renderer: ChatRenderer, name: str, observation: Observation, unusable: Collection[int]) -> bool:
    """Whether a turn in another tool format has a call that is read back, and none of these tokens."""
    if not observation.tools:
        return False
    try:
        other = ChatRenderer(renderer.tokenizer, name, stop_ids=renderer.stop_ids)
    except AgentR1Error:
        return False
    ids = _example_turn(other, observation)
    if not ids or not set(ids).isdisjoint(unusable):
        return False
    return _reads(other.format, other.text_of(ids), _example_call(observation.tools[0]))


def _reads(tool_format: Any, text: str, call: ToolCall) -> bool:
    """The arguments' names must come back; their values may come back as text, which schemas turn into numbers."""
    parsed = tool_format.parse(text, truncated=False)
    calls: Sequence[ToolCall] = parsed.tool_calls
    return len(calls) == 1 and calls[0].name == call.name and set(calls[0].arguments) == set(call.arguments)


def _example_call(schema: Any) -> ToolCall:
    function = schema["function"]
    return ToolCall(
        name=function["name"], arguments=example_arguments(function.get("parameters", {})), call_id="call00000"
    )


def _short(text: str) -> str:
    return json.dumps(text if len(text) <= 160 else text[:160] + "...", ensure_ascii=False)
