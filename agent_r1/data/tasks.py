"""Rows of parquet and JSONL files as `Task`s.

Columns are the ecosystem's: `prompt` (chat messages, or text for one user message), optional `agent_name`,
`reward_model` {style, ground_truth}, `env_kwargs` (an object or JSON text), `data_source`, `extra_info`, `task_id`,
`control_tokens` (true: control tokens in the prompt count).
Everything that is wrong with the files is reported at once, by row. A row is data: it may name a flow, an environment
and tools that are registered or configured, never code (`module:attribute`).
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import random
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from agent_r1.codec import read_json
from agent_r1.constraints import unusable_parts
from agent_r1.errors import DataError, did_you_mean, refuse_media
from agent_r1.files import write_atomically
from agent_r1.seeds import Stream, mix_seed
from agent_r1.types import Message, Task

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
_MEDIA_COLUMNS = ("image", "images", "video", "videos", "audio", "audios")
_MAX_REPORTED = 10
_PACKED = {".gz": gzip.open, ".xz": lzma.open}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")


def load_tasks(paths: Sequence[str | Path], *, default_agent: str = "env_loop") -> list[Task]:
    """All rows of all files."""
    tasks: list[Task] = []
    problems: list[str] = []
    files = [Path(path) for path in paths]
    stems = [file.stem for file in files]
    names = {file: file.stem if stems.count(file.stem) == 1 else file.with_suffix("").as_posix() for file in files}
    for path in files:
        try:
            for number, row in _numbered(read_rows(path), path, problems):
                try:
                    tasks.append(_task(row, f"{names[path]}-{number}", default_agent))
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
        shown = problems[:_MAX_REPORTED]
        more = [f"... and {len(problems) - len(shown)} more"] if len(problems) > len(shown) else []
        raise DataError("the data cannot be used:\n" + "\n".join(f"  - {problem}" for problem in shown + more))
    return tasks


def read_rows(path: Path) -> Iterator[Any]:
    """The rows of one file; JSONL may be packed (`rows.jsonl.xz`, `rows.jsonl.gz`). A row that is not JSON comes as the
    `ValueError` that says so."""
    if not path.is_file():
        nearby = [file.name for file in path.parent.glob("*") if file.is_file()] if path.parent.is_dir() else []
        raise DataError(f"there is no data file {path}. {did_you_mean(path.name, nearby)}")
    if path.suffix == ".parquet":
        import pyarrow.parquet

        try:
            # Batch by batch: whoever wants the first rows of a large file does not pay for all of them.
            with pyarrow.parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=1024):
                    yield from map(_without_empty, batch.to_pylist())
        except pyarrow.ArrowException as error:
            raise DataError(f"{path} is not a parquet file that can be read: {error}") from error
        except (UnicodeDecodeError, ValueError, OverflowError) as error:
            raise DataError(f"{path} has a column with values that Python cannot hold: {error}") from error
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}") from error
    elif (path.with_suffix("") if path.suffix in _PACKED else path).suffix in (".jsonl", ".json", ".ndjson"):
        yield from _json_rows(path)
    else:
        raise DataError(f"{path} is neither .parquet nor .jsonl (nor .jsonl.xz, .jsonl.gz)")


def write_rows(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as parquet or JSONL, making the folders on the way. A file that is there stays whole until the new one
    is.

    Parquet gives every row of a column the same keys, so `env_kwargs`, whose keys may differ, become JSON text:
    `load_tasks` reads either.
    """
    path = Path(path)
    if path.suffix in _PACKED:
        raise DataError(f"{path} would be a packed file; write .jsonl or .parquet")
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
    given = row.get("env_kwargs")
    return {**row, "env_kwargs": json.dumps(given, ensure_ascii=False)} if isinstance(given, Mapping) else dict(row)


def _without_empty(value: Any) -> Any:
    """Parquet gives every struct every key of its column; those without a value are not there."""
    if isinstance(value, dict):
        return {key: _without_empty(entry) for key, entry in value.items() if entry is not None}
    return [_without_empty(entry) for entry in value] if isinstance(value, list) else value


def _json_rows(path: Path) -> Iterator[Any]:
    try:
        with _open_bytes(path) as file:
            for number, line in enumerate(file):
                text = line.removeprefix(_BYTE_ORDER_MARK).strip() if number == 0 else line.strip()
                if text:
                    try:
                        yield read_json(text)
                    except ValueError as error:
                        yield error
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is not whole, or not packed as its name says: {error}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _open_bytes(path: Path) -> IO[bytes]:
    opener: Any = _PACKED.get(path.suffix, open)
    file: IO[bytes] = opener(path, "rb")
    return file


def _numbered(rows: Iterator[Any], path: Path, problems: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in enumerate(rows):
        if isinstance(row, ValueError):
            problems.append(f"{path}, row {number}: {row}")
        elif not isinstance(row, dict):
            problems.append(f"{path}, row {number}: expected an object, found {type(row).__name__}")
        else:
            yield number, row


def _task(row: Mapping[str, Any], default_id: str, default_agent: str) -> Task:
    if "prompt" not in row:
        raise ValueError(f"the column 'prompt' is missing. Found: {', '.join(sorted(map(str, row)))}")
    for column in COLUMNS:
        problem = next(unusable_parts(row.get(column), f"'{column}'"), None)
        if problem is not None:
            raise ValueError(problem)
    messages = _prompt(row["prompt"])
    refuse_media("the row", [*messages, {column: row.get(column) or None for column in _MEDIA_COLUMNS}])
    return Task(
        task_id=_task_id(row, default_id),
        prompt=messages,
        agent_name=_agent_name(row, default_agent),
        reward_model=_mapping(row, "reward_model"),
        env_kwargs=_env_kwargs(row),
        data_source=_text(row, "data_source") or "default",
        extra_info=_mapping(row, "extra_info"),
        control_tokens=wants_control_tokens(row),
    )


def wants_control_tokens(row: Mapping[str, Any]) -> bool:
    """Whether a row says that control tokens in its text count; ValueError when it says neither true nor false."""
    value = row.get("control_tokens")
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"'control_tokens' must be true or false, found {value!r:.80}")
    return bool(value)


def _task_id(row: Mapping[str, Any], default_id: str) -> str:
    found = row.get("task_id")
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)
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
    given = _mapping(row, "env_kwargs")
    env, tools = given.get("env"), given.get("tools")
    if "env" in given and not isinstance(env, str):
        raise ValueError(f"'env_kwargs.env' must be the name of an environment, found {_kind(env)}; or leave it out")
    if "tools" in given and (
        not isinstance(tools, list)
        or not all(
            isinstance(tool, str) or (isinstance(tool, dict) and isinstance(tool.get("name"), str)) for tool in tools
        )
    ):
        raise ValueError(
            f"'env_kwargs.tools' must be a list of names, or of objects with a 'name', found {_kind(tools)}; or "
            "leave it out"
        )
    return given


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


class TaskSampler:
    """An endless, shuffled, resumable sequence of batches: batch `n` is a function of the seed and `n` alone.

    Every epoch shows each task once, in its own order; a batch may span two epochs.
    """

    def __init__(self, tasks: Sequence[Task], *, batch_size: int, seed: int) -> None:
        self._tasks = tasks
        self._batch_size = batch_size
        self._seed = seed
        self._orders: dict[int, list[int]] = {}

    def batch(self, number: int) -> list[Task]:
        """Batch `number`, counted from 0."""
        start = number * self._batch_size
        return [self.at(position) for position in range(start, start + self._batch_size)]

    def extra(self, number: int, round_number: int, count: int) -> list[Task]:
        """Further tasks for batch `number`, drawn outside the epochs' order and also from the seed alone."""
        rng = random.Random(mix_seed(self._seed, number, round_number, Stream.EXTRA_TASKS))
        return [self._tasks[rng.randrange(len(self._tasks))] for _ in range(count)]

    def at(self, position: int) -> Task:
        """The task at a place of the sequence, counted from 0: batches of 4 have 4 to 7 in batch 1."""
        epoch, index = divmod(position, len(self._tasks))
        if epoch not in self._orders:
            order = list(range(len(self._tasks)))
            random.Random(mix_seed(self._seed, epoch)).shuffle(order)
            self._orders = {epoch: order}
        return self._tasks[self._orders[epoch][index]]
