"""Messages to token ids and back: renderer with bridge, tool-call formats."""

from agent_r1.chat.bridge import Prompt
from agent_r1.chat.chatml import template_with_tools
from agent_r1.chat.encoding import Tokenizer
from agent_r1.chat.formats import BlockTool, FencedBlocks, HermesFormat, ParsedText, ToolFormat, tool_formats
from agent_r1.chat.renderer import ChatRenderer
from agent_r1.chat.server_template import server_renderer
from agent_r1.chat.text_stream import TextStream
from agent_r1.chat.token_text import ContentStream, TokenTexts, content_stream
from agent_r1.chat.tokenizer import (
    generation_sampling,
    generation_stop_ids,
    load_renderer,
    load_tokenizer,
    portable_tokenizer,
    read_context_length,
    read_renderer,
)
from agent_r1.chat.tools_as_text import orphan_tool_results_as_user

__all__ = [
    "BlockTool",
    "ChatRenderer",
    "ContentStream",
    "FencedBlocks",
    "HermesFormat",
    "ParsedText",
    "Prompt",
    "TextStream",
    "TokenTexts",
    "Tokenizer",
    "ToolFormat",
    "content_stream",
    "generation_sampling",
    "generation_stop_ids",
    "load_renderer",
    "load_tokenizer",
    "orphan_tool_results_as_user",
    "portable_tokenizer",
    "read_context_length",
    "read_renderer",
    "server_renderer",
    "template_with_tools",
    "tool_formats",
]
