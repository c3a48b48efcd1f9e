"""Rows of parquet and JSONL files as `Task`s.

Columns are the ecosystem's: `prompt` (chat messages, or text for one user message), optional `agent_name`,
`reward_model` {style, ground_truth}, `env_kwargs` (an object or JSON text), `data_source`, `extra_info`, `task_id`.
Everything that is wrong with a file is reported at once, by row.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from agent_r1.errors import DataError, did_you_mean
from agent_r1.rollout import write_atomically
from agent_r1.seeds import mix_seed
from agent_r1.types import Message, Task

COLUMNS = ("prompt", "agent_name", "reward_model", "env_kwargs", "data_source", "extra_info", "ability", "task_id")
_MAX_REPORTED = 10
_PACKED = {".gz": gzip.open, ".xz": lzma.open}


def load_tasks(paths: Sequence[str | Path], *, default_agent: str = "env_loop") -> list[Task]:
    """All rows of all files."""
    tasks: list[Task] = []
    problems: list[str] = []
    files = [Path(path) for path in paths]
    stems = [file.stem for file in files]
    names = {file: file.stem if stems.count(file.stem) == 1 else file.with_suffix("").as_posix() for file in files}
    for path in files:
        for number, row in _numbered(read_rows(path), path, problems):
            try:
                tasks.append(_task(row, f"{names[path]}-{number}", default_agent))
            except ValueError as error:
                problems.append(f"{path}, row {number}: {error}")
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
        except pyarrow.ArrowInvalid as error:
            raise DataError(f"{path} is not a parquet file: {error}") from error
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
        with _open_text(path) as file:
            for line in file:
                if line.strip():
                    try:
                        yield json.loads(line)
                    except json.JSONDecodeError as error:
                        yield ValueError(f"not JSON ({error.msg} at character {error.pos}): {line.strip()[:60]!r}")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}") from error
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is not whole, or not packed as its name says: {error}") from error


def _open_text(path: Path) -> IO[str]:
    opener: Any = _PACKED.get(path.suffix, open)
    file: IO[str] = opener(path, "rt", encoding="utf-8")
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
        raise ValueError(f"the column 'prompt' is missing. Found: {', '.join(sorted(row))}")
    return Task(
        task_id=default_id if row.get("task_id") in (None, "") else str(row["task_id"]),
        prompt=_messages(row["prompt"]),
        agent_name=str(row.get("agent_name") or default_agent),
        reward_model=_mapping(row, "reward_model"),
        env_kwargs=_mapping(row, "env_kwargs"),
        data_source=str(row.get("data_source") or "default"),
        extra_info=_mapping(row, "extra_info"),
    )


def _messages(prompt: Any) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        return ({"role": "user", "content": prompt},)
    if not isinstance(prompt, list) or not prompt:
        raise ValueError(f"'prompt' must be text or a list of messages, found {type(prompt).__name__}")
    for index, message in enumerate(prompt):
        if not isinstance(message, dict) or "role" not in message or "content" not in message:
            raise ValueError(f"message {index} of 'prompt' needs 'role' and 'content', found {message!r:.80}")
    # Parquet gives every message every key of its column; those without a value are not there.
    return tuple({key: value for key, value in message.items() if value is not None} for message in prompt)


def _mapping(row: Mapping[str, Any], column: str) -> Mapping[str, Any]:
    value = row.get(column)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"'{column}' is text that is not JSON ({error.msg})") from None
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


_EXTRA_STREAM = 1


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
        rng = random.Random(mix_seed(self._seed, number, round_number, _EXTRA_STREAM))
        return [self._tasks[rng.randrange(len(self._tasks))] for _ in range(count)]

    def at(self, position: int) -> Task:
        """The task at a place of the sequence, counted from 0: batches of 4 have 4 to 7 in batch 1."""
        epoch, index = divmod(position, len(self._tasks))
        if epoch not in self._orders:
            order = list(range(len(self._tasks)))
            random.Random(mix_seed(self._seed, epoch)).shuffle(order)
            self._orders = {epoch: order}
        return self._tasks[self._orders[epoch][index]]
