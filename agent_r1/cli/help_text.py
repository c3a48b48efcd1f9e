"""Help texts: docstrings as the terminal shows them."""

from __future__ import annotations

import inspect
from textwrap import dedent

from rich.markup import escape


def help_text(docstring: str) -> str:
    """A docstring for `--help`. Each paragraph becomes one line, so that it wraps at the terminal's width; indented
    examples keep their lines; brackets are escaped, because typer reads markup.

    >>> help_text("Tune a model\\non demonstrations.\\n\\n  agent-r1 sft x sft.data=[a.jsonl]")
    'Tune a model on demonstrations.\\n\\nagent-r1 sft x sft.data=\\\\[a.jsonl]'
    """
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    return "\n\n".join(
        escape(dedent(text).rstrip() if text.startswith(" ") else " ".join(text.splitlines())) for text in paragraphs
    )
