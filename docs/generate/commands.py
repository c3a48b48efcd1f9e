"""The command reference, from the application itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from agent_r1.cli import app
from docs.generate.docstrings import in_cell

_INTRODUCTION = """# Commands

Made from the program itself: `agent-r1 COMMAND --help` prints the same. Every key of the
[configuration](configuration.md) can be given to the commands that take overrides, as `key=value`.
"""


def commands_page() -> str:
    """The page `reference/commands.md`."""
    program: Any = typer.main.get_command(app)
    sections = [_section(name, command) for name, command in _walk("agent-r1", program)]
    return "\n\n".join([_INTRODUCTION, *sections]) + "\n"


def command_names() -> list[str]:
    """Every command: "agent-r1 train", "agent-r1 env serve" and so on."""
    return [name for name, _ in _walk("agent-r1", typer.main.get_command(app))]


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    for child_name, child in getattr(command, "commands", {}).items():
        if getattr(child, "callback", None) is not None:
            yield f"{name} {child_name}", child
        yield from _walk(f"{name} {child_name}", child)


def _section(name: str, command: Any) -> str:
    arguments = [entry for entry in command.params if entry.param_type_name == "argument"]
    options = [entry for entry in command.params if entry.param_type_name == "option" and entry.name != "help"]
    usage = " ".join([name, *(_usage(entry) for entry in arguments), *(["[OPTIONS]"] if options else [])])
    rows = [
        *((f"`{_metavar(entry)}`", _help(entry), _default(entry)) for entry in arguments),
        *((_option_names(entry), _help(entry), _default(entry)) for entry in options),
    ]
    table = "\n".join(
        ["| argument | meaning | default |", "|---|---|---|", *(f"| {' | '.join(cells)} |" for cells in rows)]
    )
    text = _docstring(inspect.cleandoc(command.callback.__doc__ or ""))
    return f"## {name}\n\n```text\n{usage}\n```\n\n{text}" + (f"\n\n{table}" if rows else "")


def _docstring(text: str) -> str:
    """Paragraphs stay paragraphs; indented examples become blocks of code."""
    parts = []
    for part in text.split("\n\n"):
        if part.startswith("  "):
            lines = "\n".join(line.removeprefix("  ") for line in part.splitlines())
            parts.append(f"```sh\n{lines}\n```")
        else:
            parts.append(part.replace("<", "&lt;"))
    return "\n\n".join(parts)


def _metavar(entry: Any) -> str:
    return str(entry.metavar or entry.name.upper()).strip("[]")


def _usage(entry: Any) -> str:
    name = _metavar(entry)
    name = name if entry.nargs == 1 or name.endswith("...") else f"{name}..."
    return name if entry.required else f"[{name}]"


def _option_names(entry: Any) -> str:
    names = [*entry.opts, *entry.secondary_opts]
    is_flag = bool(entry.secondary_opts) or isinstance(entry.default, bool)
    value = "" if is_flag else f" {entry.metavar or entry.name.upper()}"
    return " / ".join(f"`{name}{value}`" for name in names)


def _help(entry: Any) -> str:
    text = re.sub(r"\\\[", "[", entry.help or "")
    variable = f" Variable: `{entry.envvar}`." if entry.envvar else ""
    return in_cell(text + variable)


def _default(entry: Any) -> str:
    default = entry.default
    if callable(default) or default is None or default in ((), []) or repr(default) == "...":
        return "required" if entry.required else ""
    return f"`{getattr(default, 'value', default)}`"
