"""The command line, `agent-r1`. No command imports torch before it runs."""

from agent_r1.cli.app import app, main

__all__ = ["app", "main"]
