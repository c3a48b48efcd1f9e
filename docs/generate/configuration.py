"""The reference of the configuration, from the schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from agent_r1 import constraints
from agent_r1.config import Config, presets
from docs.generate.docstrings import annotations_of, attribute_docs, in_cell

_INTRODUCTION = """# Configuration

Every key, from the schema (`agent_r1/config/schema.py`). Set one on the command line (`trainer.steps=20`), in the
`base.yaml` of a recipe, or in Python (`overrides={"trainer.steps": 20}`). `agent-r1 train RECIPE --dry-run` prints all
of them with the values that a run would have. An unknown key is refused with the nearest one, and so is a value out of
range.
"""


def configuration_page() -> str:
    """The page `reference/configuration.md`."""
    parts = [_INTRODUCTION, _presets(), *_sections(Config, ""), _kinds()]
    return "\n\n".join(parts) + "\n"


def _presets() -> str:
    lines = ["## Presets", "", "Chosen by name; they fill a whole section.", "", "| group | names |", "|---|---|"]
    for group in ("algorithm", "model"):
        lines.append(f"| `{group}=` | {', '.join(f'`{name}`' for name in presets(group))} |")
    return "\n".join(lines)


def _sections(schema: type[Any], prefix: str) -> Iterator[str]:
    """A heading and a table for each section that has keys of its own, sections inside it after it."""
    docs, kinds = attribute_docs(schema), annotations_of(schema)
    rows, inside = [], []
    for entry in fields(schema):
        default = entry.default_factory() if entry.default_factory is not MISSING else entry.default
        key = f"{prefix}{entry.name}"
        if is_dataclass(default) and not isinstance(default, type) and type(default).__name__ != "Part":
            inside.append((type(default), f"{key}."))
        else:
            rows.append(f"| `{key}` | {_kind(kinds[entry.name])} | {_shown(default)} | {in_cell(docs[entry.name])} |")
    if rows:
        title = f"`{prefix.rstrip('.')}`" if prefix else "Top level"
        heading = [f"## {title}", "", in_cell(schema.__doc__ or ""), ""]
        yield "\n".join([*heading, "| key | kind | default | meaning |", "|---|---|---|---|", *rows])
    for section, section_prefix in inside:
        yield from _sections(section, section_prefix)


def _shown(default: Any) -> str:
    if default is MISSING or default == "???":
        return "required"
    as_mapping = getattr(default, "as_mapping", None)
    value = as_mapping() if as_mapping else default
    if isinstance(value, dict):
        return f"`{{{', '.join(f'{key}: {entry}' for key, entry in value.items())}}}`"
    words = {None: "null", True: "true", False: "false"}
    return f"`{words[value] if value is None or isinstance(value, bool) else value!r}`".replace("'", "")


def _kind(annotation: str) -> str:
    """An annotation in the words of the table of kinds: "Optional[Positive]" is "Positive or null"."""
    if annotation.startswith("Optional["):
        return f"{_kind(annotation[9:-1])} or null"
    if "one_of(" in annotation:
        names = annotation.partition("one_of(")[2].partition(")")[0].replace("'", "")
        return f"one of {names}"
    if annotation.startswith("Annotated["):
        annotation = annotation.removeprefix("Annotated[").partition(",")[0]
    if annotation == "_PartOrMapping":
        return "a name with arguments"
    words = {"str": "text", "bool": "true or false", "int": "whole number", "float": "number", "PathText": "path"}
    inner = annotation.replace("List[", "list[")
    for word, plain in words.items():
        inner = inner.replace(word, plain)
    return in_cell(inner)


def _kinds() -> str:
    """What the kinds mean that have a name in agent_r1/constraints.py."""
    docs = attribute_docs(constraints)
    named = ("Count", "CountOrZero", "Seed", "Positive", "NotNegative", "Fraction", "Seconds")
    rows = [f"| {name} | {docs[name]} |" for name in named]
    return "\n".join(["## Kinds", "", "| kind | meaning |", "|---|---|", *rows])
