"""The reference of the Python API: every name of `agent_r1.__all__`, from signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import agent_r1
from docs.generate.docstrings import annotations_of, as_markdown, attribute_docs, in_cell

_INTRODUCTION = """# Python

Everything that `import agent_r1` offers, made from the code. Names load on first use, so the import is fast and needs
no torch.
"""

_TITLES = {
    "agent_r1.api": "Runs",
    "agent_r1.runs": "Finished runs",
    "agent_r1.config": "Configuration",
    "agent_r1.tools": "Tools",
    "agent_r1.envs": "Environments",
    "agent_r1.flows": "Flows",
    "agent_r1.rewards": "Rewards",
    "agent_r1.engines": "Engines",
    "agent_r1.types": "Records",
    "agent_r1.errors": "Errors and findings",
    "agent_r1.findings": "Errors and findings",
}


def python_page() -> str:
    """The page `reference/python.md`."""
    groups: dict[str, list[str]] = {title: [] for title in _TITLES.values()}
    for home, own in agent_r1._HOMES.items():
        groups.setdefault(_TITLES.get(home, "More"), []).extend(own)
    parts = [_INTRODUCTION]
    for title, members in groups.items():
        if members:
            parts.append(f"## {title}")
            parts += [_entry(name) for name in sorted(members, key=_order)]
    return "\n\n".join(parts) + "\n"


def _order(name: str) -> tuple[bool, bool, str]:
    """Functions before classes, and `train` first: the others refer to its arguments."""
    return name != "train", name[0].isupper(), name


def _entry(name: str) -> str:
    target = getattr(agent_r1, name)
    if name == "Config":
        keys = "Its keys are those of the [configuration](configuration.md)."
        return f"### {name}\n\n{as_markdown(target.__doc__)}\n\n{keys}"
    if inspect.isclass(target):
        return _class(name, target)
    if inspect.isfunction(target):
        return f"### {name}\n\n{_signature(f'agent_r1.{name}', target)}\n\n{as_markdown(target.__doc__)}"
    home = inspect.getmodule(target) if hasattr(target, "__module__") else None
    written = attribute_docs(__import__(agent_r1._HOME_OF[name], fromlist=[name]))
    text = written.get(name) or _alias_doc(name) or as_markdown(getattr(home, "__doc__", ""))
    return f"### {name}\n\n```python\n{name} = {target}\n```\n\n{text}"


def _alias_doc(name: str) -> str:
    """The docstring under an alias, in whichever module of its package defines it."""
    package = __import__(agent_r1._HOME_OF[name], fromlist=[name])
    for module in vars(package).values():
        if inspect.ismodule(module) and module.__name__.startswith(package.__name__):
            docs = attribute_docs(module)
            if name in docs:
                return docs[name]
    return ""


def _class(name: str, target: type[Any]) -> str:
    parts = [f"### {name}", as_markdown(target.__doc__)]
    attributes = _attributes(target)
    if attributes:
        parts.append("\n".join(["| attribute | type | meaning |", "|---|---|---|", *attributes]))
    own = [
        (method, member)
        for method, member in vars(target).items()
        if not method.startswith("_") and (callable(_plain(member)) or isinstance(member, property)) and _doc(member)
    ]
    for method, member in own:
        if isinstance(member, property):
            parts.append(f"**`{name}.{method}`** (property)\n\n{as_markdown(member.__doc__)}")
        else:
            parts.append(f"{_signature(f'{name}.{method}', _plain(member))}\n\n{as_markdown(_doc(member))}")
    return "\n\n".join(parts)


def _attributes(target: type[Any]) -> list[str]:
    docs, kinds = attribute_docs(target), annotations_of(target)
    names = [entry.name for entry in fields(target)] if is_dataclass(target) else [*docs]
    return [
        f"| `{name}` | `{kinds.get(name, '')}` | {in_cell(docs.get(name, ''))} |".replace("``", "")
        for name in names
        if not name.startswith("_")
    ]


def _plain(member: Any) -> Any:
    """The function behind a class or static method."""
    return member.__func__ if isinstance(member, classmethod | staticmethod) else member


def _doc(member: Any) -> str | None:
    doc: str | None = _plain(member).__doc__
    return doc


def _signature(name: str, function: Callable[..., Any]) -> str:
    """A signature, an argument per line where it would be long."""
    signature = inspect.signature(function)
    whole = f"{name}{signature}".replace("'", "")
    if len(whole) <= 100:
        return f"```python\n{whole}\n```"
    lines, keyword_only = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            lines.append("    *,")
            keyword_only = True
        lines.append(f"    {parameter},".replace("'", ""))
    returns = str(signature).rpartition(" -> ")[2].replace("'", "") if " -> " in str(signature) else "None"
    return "```python\n" + "\n".join([f"{name}(", *lines, f") -> {returns}"]) + "\n```"
