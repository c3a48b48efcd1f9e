"""A chat template with tools in Hermes form, for ChatML models whose own template shows none. It only ever appends.

It writes what `tools_as_text` would make of the conversation, as a template that other programs (vLLM, `transformers`)
read from the exported folder too.
"""

from __future__ import annotations

from agent_r1.chat.tools_as_text import knows_tools

TURN_MARKS = ("<|im_start|>", "<|im_end|>")
"""Tokens that a vocabulary must contain for the template to make sense to its model."""

CHATML_WITH_TOOLS = """\
{%- macro text(content) %}
{%- if content is string %}{{ content }}
{%- elif content %}{{ content | selectattr("type", "equalto", "text") | map(attribute="text") | join("\\n") }}
{%- endif %}
{%- endmacro %}
{%- set begins_with_system = messages and messages[0].role == "system" %}
{%- if tools or begins_with_system %}
{{- "<|im_start|>system\\n" }}
{%- if begins_with_system %}{{ text(messages[0].content) }}{% endif %}
{%- if tools %}
{%- if begins_with_system %}{{ "\\n\\n" }}{% endif %}
{{- "You can call these tools:\\n<tools>\\n" }}
{%- for tool in tools %}{{ (tool.function or tool) | tojson }}{{ "\\n" }}{% endfor %}
{{- "</tools>\\nTo call one, write its name and arguments as JSON between tags:\\n" }}
{{- '<tool_call>{"name": "NAME", "arguments": {"KEY": VALUE}}</tool_call>\\n' }}
{{- "You may write several calls. The answers come in <tool_response> tags." }}
{%- endif %}
{{- "<|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}
{%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{ "<|im_start|>user" }}{% endif %}
{{- "\\n<tool_response>\\n" }}{{ text(message.content) }}{{ "\\n</tool_response>" }}
{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{ "<|im_end|>\\n" }}{% endif %}
{%- elif message.role != "system" or not loop.first %}
{{- "<|im_start|>" + message.role + "\\n" }}{{ text(message.content) }}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function or call %}
{%- if not loop.first or message.content %}{{ "\\n" }}{% endif %}
{{- '<tool_call>\\n{"name": ' }}{{ function.name | tojson }}{{ ', "arguments": ' }}
{%- if function.arguments is string %}{{ function.arguments }}{% else %}{{ function.arguments | tojson }}{% endif %}
{{- "}\\n</tool_call>" }}
{%- endfor %}
{{- "<|im_end|>\\n" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}"""


def template_with_tools(template: str | None, vocabulary: dict[str, int]) -> str | None:
    """The chat template a model should have: its own if that shows tools or is not ChatML, else `CHATML_WITH_TOOLS`.

    A model whose vocabulary has no ChatML marks keeps what it has; tools reach it as plain text (see `tools_as_text`).
    """
    is_chatml = all(mark in vocabulary for mark in TURN_MARKS)
    return template if (template and knows_tools(template)) or not is_chatml else CHATML_WITH_TOOLS
