"""Rows of parquet and JSONL files as `Task`s.

Columns are the ecosystem's: `prompt` (chat messages, or text for one user message), optional `agent_name`,
`reward_model` {style, ground_truth}, `env_kwargs` (an object or JSON text), `data_source`, `extra_info`, `task_id`,
`control_tokens` (true: control tokens in the prompt count), `difficulty` (the level of a curriculum, from 1). A simple
row has `prompt` or `question`, and `answer`, its ground truth unless `reward_model` has one. Images stand in messages,
or in the columns `image` and `images` (`row_images.py`).

Everything that is wrong with the files is reported at once, by row. A row is data: it may name a flow, an environment
and tools that are registered or configured, never code (`module:attribute`).
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_r1.codec import COMPRESSED, iterate_rows, read_json
from agent_r1.constraints import MAX_WHOLE_NUMBER, unusable_parts
from agent_r1.data.row_images import (
    IMAGE_COLUMNS,
    OTHER_COLUMNS,
    has_images,
    row_images,
    with_row_images,
    with_stored_images,
    without_images,
)
from agent_r1.errors import DataError
from agent_r1.files import write_atomically
from agent_r1.types import Message, Task, media_in

COLUMNS = (
    "prompt",
    "agent_name",
    "reward_model",
    "env_kwargs",
    "data_source",
    "extra_info",
    "ability",
    "task_id",
    "control_tokens",
)
_MEDIA_COLUMNS = (*IMAGE_COLUMNS, *OTHER_COLUMNS)
_MAX_REPORTED = 10
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")


def load_tasks(paths: Sequence[str | Path], *, default_agent: str = "env_loop") -> list[Task]:
    """The tasks of all rows of all files."""
    tasks: list[Task] = []
    problems: list[str] = []
    files = [Path(path) for path in paths]
    stems = [file.stem for file in files]
    names = {file: file.stem if stems.count(file.stem) == 1 else file.with_suffix("").as_posix() for file in files}
    for path in files:
        try:
            for number, row in _number_rows(read_rows(path), path, problems):
                try:
                    tasks.append(task_from_row(row, f"{names[path]}-{number}", default_agent, folder=path.parent))
                except ValueError as error:
                    problems.append(f"{path}, row {number}: {error}")
        except DataError as error:  # the file itself; the rows before stay reported
            problems.append(str(error))
    if not tasks and not problems:
        problems.append(f"no rows in {', '.join(map(str, paths))}")
    repeated = _first_repeated(tasks)
    if repeated is not None:
        problems.append(f"the task_id '{repeated}' appears twice; each row needs its own")
    if problems:
        first = problems[:_MAX_REPORTED]
        more = [f"... and {len(problems) - len(first)} more"] if len(problems) > len(first) else []
        raise DataError("the data cannot be used:\n" + "\n".join(f"  - {problem}" for problem in first + more))
    return tasks


def read_rows(path: Path) -> Iterator[Any]:
    """The rows of one file. A row that is not JSON is a `ValueError` that says why."""
    for row in iterate_rows(path):
        yield row.value if row.problem is None else ValueError(row.problem)


def write_rows(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as parquet or JSONL, making the folders on the way. A file that is there stays whole until the new one
    is.

    Parquet gives every row of a column the same keys, so `env_kwargs`, whose keys may differ, become JSON text:
    `load_tasks` reads either. Images (PIL images, pictures) are stored in a folder `images` beside the file.
    """
    path = Path(path)
    if path.suffix in COMPRESSED:
        raise DataError(f"{path} would be a compressed file; write .jsonl or .parquet")
    rows = (with_stored_images(row, path.parent) for row in rows)
    if path.suffix != ".parquet":
        write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        return
    import pyarrow.parquet

    ready = [_with_env_kwargs_as_text(row) for row in rows]
    columns = dict.fromkeys(column for row in ready for column in row)
    buffer = io.BytesIO()
    try:
        # A table has the columns of its first row alone.
        table = pyarrow.Table.from_pylist([{column: row.get(column) for column in columns} for row in ready])
        pyarrow.parquet.write_table(table, buffer)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} cannot be written, for parquet gives a column one type: {error}") from error
    write_atomically(path, buffer.getvalue())


def _with_env_kwargs_as_text(row: Mapping[str, Any]) -> dict[str, Any]:
    kwargs = row.get("env_kwargs")
    return {**row, "env_kwargs": json.dumps(kwargs, ensure_ascii=False)} if isinstance(kwargs, Mapping) else dict(row)


def _number_rows(rows: Iterator[Any], path: Path, problems: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in enumerate(rows):
        if isinstance(row, ValueError):
            problems.append(f"{path}, row {number}: {row}")
        elif not isinstance(row, dict):
            problems.append(f"{path}, row {number}: expected an object, found {type(row).__name__}")
        else:
            yield number, row


def task_from_row(
    row: Mapping[str, Any], default_id: str, default_agent: str = "env_loop", *, folder: Path | None = None
) -> Task:
    """The task of one row; a `ValueError` says what is wrong with it. Images may be files inside `folder`."""
    difficulty = _difficulty(row)
    row = _full_row(row)
    if "prompt" not in row:
        raise ValueError(
            "the column 'prompt' is missing; a row has 'prompt', or 'question' and 'answer'. Found: "
            f"{', '.join(sorted(map(str, row)))}"
        )
    for column in COLUMNS:
        value = row.get(column)
        value = without_images(value) if column == "prompt" and isinstance(value, list) and media_in(value) else value
        problem = next(unusable_parts(value, f"'{column}'"), None)
        if problem is not None:
            raise ValueError(problem)
    messages = _prompt(row["prompt"])
    if has_images(row, messages):
        messages = with_row_images(messages, row_images(row), folder)
    return Task(
        task_id=_task_id(row, default_id),
        prompt=messages,
        agent_name=_agent_name(row, default_agent),
        reward_model=_mapping(row, "reward_model"),
        env_kwargs=_env_kwargs(row),
        data_source=_text(row, "data_source") or "default",
        extra_info=_mapping(row, "extra_info"),
        difficulty=difficulty,
        control_tokens=wants_control_tokens(row),
    )


def _full_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A simple row, {"prompt" or "question", "answer", ...}, in the columns of a full one; a row whose `reward_model`
    has the ground truth as it is. Other columns of a simple row become entries of its `extra_info`, and so do those of
    a row with `prompt` alone.

    >>> _full_row({"question": "2+2?", "answer": 4, "level": 1})
    {'prompt': '2+2?', 'reward_model': {'ground_truth': 4}, 'extra_info': {'level': 1}}
    >>> _full_row({"prompt": "2+2?", "solution": "4"})
    {'prompt': '2+2?', 'extra_info': {'solution': '4'}}
    """
    # Tables of several sources have every column in every row: a cell without a value is not there.
    prompt_column = "prompt" if row.get("prompt") is not None or row.get("question") is None else "question"
    graded = _mapping(row, "reward_model")
    if graded.get("ground_truth") is not None or (graded and row.get("answer") is None):
        return row if prompt_column == "prompt" else {**row, "prompt": row["question"]}
    if prompt_column not in row or not {"answer", "prompt"} & set(row):
        return row
    full = {column: row[column] for column in COLUMNS if column in row and column not in ("prompt", "extra_info")}
    own_columns = {*COLUMNS, *_MEDIA_COLUMNS, "answer", prompt_column}
    others = {column: value for column, value in row.items() if column not in own_columns}
    if "answer" not in row:  # such a row may have columns that no task can hold: they are left out
        others = {column: value for column, value in others.items() if not any(unusable_parts(value, column))}
    return {
        "prompt": row[prompt_column],
        **full,
        **({"reward_model": {**graded, "ground_truth": row["answer"]}} if "answer" in row else {}),
        "extra_info": {**others, **_mapping(row, "extra_info")},
        **{column: row[column] for column in _MEDIA_COLUMNS if column in row},
    }


def _difficulty(row: Mapping[str, Any]) -> int | None:
    """The level in a row. Data sets write other things under this name too, such as "hard": these are no levels."""
    value = row.get("difficulty")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 1 <= value <= MAX_WHOLE_NUMBER and value == int(value) else None


def wants_control_tokens(row: Mapping[str, Any]) -> bool:
    """Whether a row says that control tokens in its text count; ValueError when it says neither true nor false."""
    value = row.get("control_tokens")
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"'control_tokens' must be true or false, found {value!r:.80}")
    return bool(value)


def _task_id(row: Mapping[str, Any], default_id: str) -> str:
    task_id = row.get("task_id")
    if isinstance(task_id, int) and not isinstance(task_id, bool):
        return str(task_id)
    return _text(row, "task_id") or default_id


def _agent_name(row: Mapping[str, Any], default_agent: str) -> str:
    name = _text(row, "agent_name") or default_agent
    if ":" in name and name != default_agent:
        raise ValueError(
            f"'agent_name' is {name!r:.80}: a row may not name code. Register the flow under a name, or set "
            "data.agent_name in the configuration"
        )
    return name


def _text(row: Mapping[str, Any], column: str) -> str | None:
    value = row.get(column)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"'{column}' must be text, found {type(value).__name__}")
    return value


def _env_kwargs(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The column with the two keys that the library itself reads checked for their form."""
    env_kwargs = _mapping(row, "env_kwargs")
    env, tools = env_kwargs.get("env"), env_kwargs.get("tools")
    if "env" in env_kwargs and not isinstance(env, str):
        raise ValueError(f"'env_kwargs.env' must be the name of an environment, found {_kind(env)}; or leave it out")
    if "tools" in env_kwargs and (
        not isinstance(tools, list)
        or not all(
            isinstance(tool, str) or (isinstance(tool, dict) and isinstance(tool.get("name"), str)) for tool in tools
        )
    ):
        raise ValueError(
            f"'env_kwargs.tools' must be a list of names, or of objects with a 'name', found {_kind(tools)}; or "
            "leave it out"
        )
    return env_kwargs


def _kind(value: Any) -> str:
    return "null" if value is None else f"{value!r:.60}" if isinstance(value, list) else type(value).__name__


def _prompt(prompt: Any) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        return ({"role": "user", "content": prompt},)
    if not isinstance(prompt, list) or not prompt:
        raise ValueError(f"'prompt' must be text or a list of messages, found {type(prompt).__name__}")
    return checked_messages(prompt, "'prompt'")


def checked_messages(messages: Sequence[Any], where: str) -> tuple[Message, ...]:
    """Chat messages whose form every template can count on; a `ValueError` names the first that is not one.

    A message has a role and content: text, or a list of parts such as {"type": "text", "text": "Hello"}. One with
    `tool_calls`, which are objects, needs no content.
    """
    for index, message in enumerate(messages):
        named = f"message {index} of {where}"
        if (
            not isinstance(message, dict)
            or "role" not in message
            or ("content" not in message and not message.get("tool_calls"))
        ):
            raise ValueError(f"{named} needs 'role' and 'content', found {message!r:.80}")
        role, content, calls = message["role"], message.get("content"), message.get("tool_calls")
        if not isinstance(role, str) or _ROLE.fullmatch(role) is None:
            raise ValueError(f"{named} has the role {role!r:.60}; a role is a word, such as user")
        if not (isinstance(content, str) or (content is None and calls) or _are_parts(content)):
            raise ValueError(
                f"{named} has the content {content!r:.60}; it must be text, or a list of parts such as "
                '{"type": "text", "text": "Hello"}'
            )
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            raise ValueError(f"{named} has the tool_calls {calls!r:.60}; they must be a list of objects")
    # Parquet gives every message every key of its column; those without a value are not there.
    return tuple({key: value for key, value in message.items() if value is not None} for message in messages)


def _are_parts(content: Any) -> bool:
    return isinstance(content, list) and all(
        isinstance(part, dict)
        and isinstance(part.get("type"), str)
        and (part["type"] != "text" or isinstance(part.get("text"), str))
        for part in content
    )


def _mapping(row: Mapping[str, Any], column: str) -> Mapping[str, Any]:
    value = row.get(column)
    if isinstance(value, str):
        try:
            value = read_json(value)
        except ValueError as error:
            raise ValueError(f"'{column}' is text that is not JSON: {error}") from None
        problem = next(unusable_parts(value, f"'{column}'"), None)
        if problem is not None:
            raise ValueError(problem)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"'{column}' must be an object, found {type(value).__name__}")
    return value


def _first_repeated(tasks: Sequence[Task]) -> str | None:
    seen: set[str] = set()
    for task in tasks:
        if task.task_id in seen:
            return task.task_id
        seen.add(task.task_id)
    return None
