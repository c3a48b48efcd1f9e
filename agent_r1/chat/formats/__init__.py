"""Tool-call formats: how a model writes calls in its text, and how its mistakes are reported to it."""

from agent_r1.chat.formats.base import ParsedText, ToolFormat, tool_formats
from agent_r1.chat.formats.fenced_blocks import BlockTool, FencedBlocks
from agent_r1.chat.formats.harmony import HarmonyFormat
from agent_r1.chat.formats.hermes import HermesFormat
from agent_r1.chat.formats.llama3 import Llama3Format
from agent_r1.chat.formats.mistral import MistralFormat
from agent_r1.chat.formats.qwen3_coder import Qwen3CoderFormat
from agent_r1.chat.formats.react import ReActFormat
from agent_r1.chat.formats.retool import ReToolFormat

__all__ = [
    "BlockTool",
    "FencedBlocks",
    "HarmonyFormat",
    "HermesFormat",
    "Llama3Format",
    "MistralFormat",
    "ParsedText",
    "Qwen3CoderFormat",
    "ReActFormat",
    "ReToolFormat",
    "ToolFormat",
    "tool_formats",
]
