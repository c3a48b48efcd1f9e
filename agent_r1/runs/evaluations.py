"""How well each task was solved, before and after training, with the split that the tasks come from.

runs/<name>/evaluations/validation_before.json, validation_after.json    written by the run
                        test_before.json, test_after.json                written by `agent-r1 eval RUN --split test`
                        test_5d0cd2c3_before.json, ...                   the same with other settings
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_r1.codec import Check, each, integer, mapping, number, read_json, text, write_json
from agent_r1.errors import DataError
from agent_r1.files import write_atomically

Settings = tuple[str, ...]
"""What an evaluation changed in the run's configuration; () for nothing."""
OWN_SETTINGS: Settings = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRecord:
    """One evaluation of one model."""

    split: str
    """Where its tasks come from: validation, test or train."""
    model: str
    """The model."""
    step: int
    """Training steps it had."""
    tasks: Sequence[str]
    """The ids of the tasks."""
    sources: Sequence[str]
    """The data source of each."""
    solved: Sequence[float]
    """How well each was solved, greedily."""
    metrics: Mapping[str, float]
    """All metrics of the evaluation."""
    intervals: Mapping[str, Sequence[float]]
    """Their 95 % intervals, where they have one."""
    settings: Settings = OWN_SETTINGS
    """What was changed in the run's configuration: `rollout.max_steps=8`."""

    def by_task(self, source: str | None = None) -> dict[str, float]:
        """How well each task of a source (None: of all) was solved. Tasks with one id are told apart by number."""
        seen: Counter[str] = Counter()
        result: dict[str, float] = {}
        for task, own, value in zip(self.tasks, self.sources, self.solved, strict=True):
            if source in (None, own):
                seen[task] += 1
                result[task if seen[task] == 1 else f"{task} #{seen[task]}"] = value
        return result


EvaluationPair = tuple[EvaluationRecord, EvaluationRecord]
"""The same tasks before and after training."""


def write_evaluation(file: Path, record: EvaluationRecord) -> None:
    """Write the record of an evaluation."""
    write_atomically(file, write_json(asdict(record), indent=1) + "\n")


def _numbers(value: Any, where: str) -> dict[str, float]:
    """Numbers by name; null, which is how NaN is written, has none."""
    return {
        name: number(entry, f"{where}.{name}") for name, entry in mapping(value, where).items() if entry is not None
    }


def _intervals(value: Any, where: str) -> dict[str, Sequence[float]]:
    numbers = each(number)
    return {name: numbers(entry, f"{where}.{name}") for name, entry in mapping(value, where).items()}


_FIELDS: Mapping[str, Check[Any]] = {
    "split": text,
    "model": text,
    "step": integer,
    "tasks": lambda value, where: list(each(text)(value, where)),
    "sources": lambda value, where: list(each(text)(value, where)),
    "solved": lambda value, where: list(each(number)(value, where)),
    "metrics": _numbers,
    "intervals": _intervals,
    "settings": each(text),
}


def read_evaluation(file: Path) -> EvaluationRecord:
    """Read a record; `DataError` for anything else."""
    try:
        found = mapping(read_json(file.read_bytes()), "the file")
        found.setdefault("settings", list(OWN_SETTINGS))
        missing = [name for name in _FIELDS if name not in found]
        if missing:
            raise ValueError(f"it has no {', '.join(missing)}")
        record = EvaluationRecord(**{name: check(found[name], name) for name, check in _FIELDS.items()})
        record.by_task()
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is not the record of an evaluation ({type(error).__name__}: {error})") from error
    return record


def read_evaluations(folder: Path) -> dict[Settings, dict[str, EvaluationPair]]:
    """Under which settings, and on which splits, a run was evaluated both before and after training."""
    pairs: dict[Settings, dict[str, EvaluationPair]] = {}
    for file in sorted(folder.glob("*_after.json")):
        earlier = file.with_name(file.name.removesuffix("_after.json") + "_before.json")
        if not earlier.is_file():
            continue
        before, after = read_evaluation(earlier), read_evaluation(file)
        if (before.split, before.settings) != (after.split, after.settings):
            raise DataError(
                f"{earlier} and {file.name} are not of the same split and settings; delete both, and evaluate again"
            )
        pairs.setdefault(after.settings, {})[after.split] = before, after
    return pairs
