"""Docstrings as Markdown: of functions and classes, and of attributes, which only the source has."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from itertools import pairwise
from typing import Any

from docstring_parser import DocstringStyle, parse


def as_markdown(docstring: str | None) -> str:
    """A docstring as Markdown: arguments become a list, and text in angle brackets stays text."""
    text = inspect.cleandoc(docstring or "")
    parsed = parse(text, style=DocstringStyle.GOOGLE) if "\nArgs:\n" in text else None
    if parsed is None:
        return _escaped(text)
    arguments = "\n".join(f"- `{entry.arg_name}`: {_one_line(entry.description or '')}" for entry in parsed.params)
    return f"{_escaped(text.partition('Args:')[0].rstrip())}\n\n{arguments}"


def attribute_docs(owner: Any) -> dict[str, str]:
    """The docstrings of the attributes of a class or module, which stand under them in the source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) and inspect.isclass(owner) else tree.body
    docs: dict[str, str] = {}
    for statement, following in pairwise(body):
        name = _assigned_name(statement)
        if (
            name is not None
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            docs[name] = _one_line(inspect.cleandoc(following.value.value))
    return docs


def annotations_of(owner: type) -> dict[str, str]:
    """The annotations of a class's attributes, as they are written."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    assert isinstance(tree.body[0], ast.ClassDef)
    return {
        statement.target.id: ast.unparse(statement.annotation)
        for statement in tree.body[0].body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def in_cell(text: str) -> str:
    """Text for a cell of a table."""
    return _escaped(text).replace("|", "\\|").replace("\n", " ")


def _assigned_name(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    """Angle brackets outside code would be HTML."""
    pieces = re.split(r"(`[^`]*`|^(?: {4}|>>> ).*$)", text, flags=re.MULTILINE)
    return "".join(piece if number % 2 else piece.replace("<", "&lt;") for number, piece in enumerate(pieces))
