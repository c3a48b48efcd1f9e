"""tau-bench's retail domain as others have it: in two layouts, one record.

* packed: `retail_users`, `retail_orders`, `retail_products` (rows `{key, value}`), `retail_tasks_train`, `_dev` and
  `_test` as `.jsonl` or `.jsonl.xz`, and `retail_policy.md`;
* official: the files of the repository, in a clone or downloaded. Its tasks are Python, which is parsed and never run.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1.data import DATA_VARIABLE, find_files, locate, read_raw
from agent_r1.errors import DataError
from agent_r1.registry import load_module, recipe_folder

with recipe_folder(Path(__file__).resolve().parents[1]):
    database = load_module("database")

FOLDER = "tau_bench"
INSIDE = "tau_bench/envs/retail"
COMMIT = "59a200c6d575d595120f1cb70fea53cef0632f6b"
ADDRESS = f"https://raw.githubusercontent.com/sierra-research/tau-bench/{COMMIT}/{INSIDE}"
OFFICIAL = {
    **{f"retail_{name}": f"data/{name}.json" for name in database.TABLES},
    **{f"retail_tasks_{split}": f"tasks_{split}.py" for split in ("train", "dev", "test")},
    "retail_policy": "wiki.md",
}
"""Files of the repository, by what they are called when packed."""


@dataclass(frozen=True, kw_only=True)
class Retail:
    """The domain: its database, tasks and policy."""

    database: Any
    tasks: Mapping[str, list[dict[str, Any]]]
    """Of `train`, `dev` and `test`: `user_id`, `instruction`, `actions`, `outputs`."""
    policy: str


def read_retail(folder: Path | None = None) -> Retail:
    """The domain, from `folder`, else from what AGENT_R1_DATA names, else downloaded."""
    parent = os.environ.get(DATA_VARIABLE)
    given = folder or (Path(parent).expanduser() / FOLDER if parent else None)
    if given is None:
        found = locate(FOLDER, {name: [f"{ADDRESS}/{path}"] for name, path in OFFICIAL.items()})
        return _official({name: files[0] for name, files in found.items()})
    clone = given / INSIDE
    if clone.is_dir():
        return _official({name: clone / path for name, path in OFFICIAL.items()})
    rows = {name: list(read_raw(find_files(given, name))) for name in OFFICIAL if name != "retail_policy"}
    return _checked(rows, _text(given / "retail_policy.md"))


def _official(files: Mapping[str, Path]) -> Retail:
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, file in files.items():
        text = _text(file)
        if file.suffix == ".py":
            rows[name] = list(parse_tasks(text, file))
        elif file.suffix == ".json":
            rows[name] = [{"key": key, "value": value} for key, value in _json_object(text, file).items()]
    return _checked(rows, _text(files["retail_policy"]))


def _checked(rows: Mapping[str, list[dict[str, Any]]], policy: str) -> Retail:
    tables = database.Database.from_rows({name: rows[f"retail_{name}"] for name in database.TABLES})
    tasks = {split: rows[f"retail_tasks_{split}"] for split in ("train", "dev", "test")}
    problems = [
        f"{split} task {number}: {problem}"
        for split, some in tasks.items()
        for number, task in enumerate(some)
        if (problem := _task_problem(task))
    ]
    if problems:
        raise DataError(f"{len(problems)} tasks cannot be used:\n" + "\n".join(f"  - {line}" for line in problems[:10]))
    return Retail(database=tables, tasks=tasks, policy=policy)


def _task_problem(task: Mapping[str, Any]) -> str:
    texts = [name for name in ("user_id", "instruction") if not isinstance(task.get(name), str) or not task[name]]
    if texts:
        return f"{', '.join(texts)} must be a text; found {', '.join(sorted(task))}"
    actions, outputs = task.get("actions"), task.get("outputs")
    if not isinstance(outputs, list) or not all(isinstance(output, str) for output in outputs):
        return "outputs must be a list of texts"
    if not isinstance(actions, list) or not all(
        isinstance(action, dict) and isinstance(action.get("name"), str) and isinstance(action.get("kwargs"), dict)
        for action in actions
    ):
        return "actions must be a list of {name, kwargs}"
    return ""


def parse_tasks(text: str, file: Path) -> Iterator[dict[str, Any]]:
    """The tasks of a Python file: the entries of its lists, `Task(...)` or dicts, of literals alone."""
    try:
        tree = ast.parse(text)
        lists = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.List)]
        found = [_literal(entry) for node in lists for entry in node.elts]
    except (SyntaxError, ValueError, RecursionError) as error:
        raise DataError(f"{file} cannot be read as a list of tasks: {error}") from error
    if not found:
        raise DataError(f"{file} has no list of tasks")
    for task in found:
        actions = [
            {"name": action["name"], "kwargs": action.get("kwargs", action.get("arguments"))}
            for action in task.get("actions") or ()
        ]
        yield {**task, "actions": actions, "outputs": list(task.get("outputs") or ())}


def _literal(node: ast.expr) -> Any:
    """A value; `Task(user_id=...)` and `Action(name=...)` are dicts of their arguments."""
    if isinstance(node, ast.Call) and not node.args:
        return {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    if isinstance(node, ast.List):
        return [_literal(entry) for entry in node.elts]
    return ast.literal_eval(node)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error


def _json_object(text: str, file: Path) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DataError(f"{file} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{file} must be an object of records by id, found {type(value).__name__}")
    return value
