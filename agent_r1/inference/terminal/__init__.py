"""Chat in a terminal: the loop, the slash commands, and what is printed."""

from agent_r1.inference.terminal.display import failure_text
from agent_r1.inference.terminal.loop import TerminalChat, ask_once, task_named

__all__ = ["TerminalChat", "ask_once", "failure_text", "task_named"]
