"""`load_run`: a run's folder as tables and records, for notebooks and scripts. No torch.

    run = agent_r1.load_run("runs/quickstart")
    run.metrics["reward/outcome"]                # a column
    run.metrics.to_pandas()                      # the whole table, where pandas is installed
    for trajectory in run.trajectories(step=4): ...

Every property reads the files again, so a run that is being written shows what it has written so far.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1.errors import DataError, MissingExtraError
from agent_r1.metric_names import EVAL_PREFIX
from agent_r1.runs.credit import read_credit
from agent_r1.runs.folder import RunFolder, step_of
from agent_r1.runs.lock import is_locked
from agent_r1.runs.read import RunRecord, read_run, read_runs
from agent_r1.runs.trajectories import read_trajectories
from agent_r1.types import StepCredit, Trajectory

_SHOWN_ROWS = 10


@dataclass(frozen=True)
class Table:
    """Rows of numbers under named columns; `step` is the first column."""

    columns: tuple[str, ...]
    """Their names."""
    rows: tuple[tuple[Any, ...], ...]
    """One value per column; None where a row has none."""

    @classmethod
    def of(cls, lines: Sequence[Mapping[str, Any]]) -> Table:
        """The table of some lines with a `step`. Lines of the same step become one row.

        >>> Table.of([{"step": 1, "a": 2.0}, {"step": 1, "b": 3.0}, {"step": 2, "a": 4.0}]).rows
        ((1, 2.0, 3.0), (2, 4.0, None))
        """
        merged: dict[int, dict[str, Any]] = {}
        for line in lines:
            merged.setdefault(line["step"], {}).update(line)
        names = sorted({name for line in merged.values() for name in line} - {"step"})
        columns = ("step", *names)
        return cls(columns, tuple(tuple(merged[step].get(name) for name in columns) for step in sorted(merged)))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows as mappings, without what they do not have."""
        for row in self.rows:
            yield {name: value for name, value in zip(self.columns, row, strict=True) if value is not None}

    def __getitem__(self, column: str) -> list[Any]:
        """The values of one column, by row."""
        if column not in self.columns:
            raise KeyError(f"no column '{column}'; there are: {', '.join(self.columns)}")
        index = self.columns.index(column)
        return [row[index] for row in self.rows]

    def select(self, *columns: str) -> Table:
        """The table with only these columns, in this order."""
        chosen = [self[column] for column in columns]
        return Table(columns, tuple(zip(*chosen, strict=True)))

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with `step` as its index."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("pandas", "pandas", "Table.to_pandas") from error
        frame = pandas.DataFrame(list(self.rows), columns=list(self.columns))
        return frame.set_index("step") if "step" in self.columns else frame

    def __repr__(self) -> str:
        return f"<Table of {len(self)} rows and {len(self.columns)} columns: {', '.join(self.columns[:8])}, ...>"

    def _repr_html_(self) -> str:
        rows = self.rows[-_SHOWN_ROWS:]
        note = f"<p>the last {len(rows)} of {len(self)} rows</p>" if len(rows) < len(self) else ""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
        return f"{note}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class LoadedRun:
    """The folder of one run, finished or not."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.path = path

    @property
    def record(self) -> RunRecord:
        """What it has logged so far: its lines, configuration and summary, with figures derived from them."""
        return read_run(self.path, label=self.path.resolve().name)

    @property
    def metrics(self) -> Table:
        """The metrics of its training steps, one row per step."""
        return Table.of([line for line in self.folder.read_metrics() if not _is_evaluation(line)])

    @property
    def evaluations(self) -> Table:
        """The figures of its evaluations, one row per evaluated step; step 0 is before training."""
        return Table.of([line for line in self.folder.read_metrics() if _is_evaluation(line)])

    @property
    def config(self) -> Any:
        """The configuration, with keys as attributes: `run.config.trainer.steps`. Earlier versions' keys are kept."""
        return self.record.config

    @property
    def summary(self) -> Mapping[str, Any]:
        """The results of the run; empty while it is unfinished."""
        return self.record.summary

    @property
    def state(self) -> str:
        """`running` (a live process uses the folder), `finished`, or `failed` (it ended before its last step)."""
        if is_locked(self.path):
            return "running"
        return "finished" if self.summary or self.folder.has_model else "failed"  # a warm start has no summary

    @property
    def recorded_steps(self) -> list[int]:
        """The training steps whose trajectories are recorded."""
        return [step for file in self.folder.trajectory_files() if (step := step_of(file)) is not None]

    def trajectories(self, step: int | None = None, *, evaluation: str | None = None) -> Iterator[Trajectory]:
        """The recorded trajectories with their exact tokens, read one after the other.

        Args:
            step: Only those of this training step; by default of all recorded ones, in order.
            evaluation: The greedy ones of an evaluation instead: `before` or `after`.
        """
        if evaluation is not None:
            files = [self.folder.eval_trajectories(evaluation)]
            names = [file.stem.removeprefix("eval_") for file in self.folder.trajectories.glob("eval_*.jsonl")]
            missing = not files[0].is_file()
        else:
            steps = {file: number for file in self.folder.trajectory_files() if (number := step_of(file)) is not None}
            names = [str(number) for number in steps.values()]
            files = [file for file, number in steps.items() if step in (None, number)]
            missing = step is not None and not files
        if missing:
            missing_record = f"step {step}" if evaluation is None else f"evaluation '{evaluation}'"
            raise DataError(
                f"{self.folder.trajectories} has no {missing_record}; recorded: {', '.join(names) or 'none'}"
            )
        return (trajectory for file in files for trajectory in read_trajectories(file))

    def credit(self, step: int) -> dict[tuple[int, int], tuple[StepCredit, ...]]:
        """What the learner made of the trajectories of a step, by `(group_id, member)`; see `read_credit`."""
        file = self.folder.step_credit(step)
        if not file.is_file():
            raise DataError(f"{file} does not exist; a run records credit with tracking.record_credit=true")
        return read_credit(file)

    def __repr__(self) -> str:
        return f"<run {self.path}: {self.state}, {self.record.steps} steps>"

    def _repr_html_(self) -> str:
        record = self.record
        facts = {
            "run": str(self.path),
            "state": self.state,
            "steps": record.steps,
            "model": record.model,
            "algorithm": record.algorithm,
            "minutes": f"{record.minutes:.1f}",
        }
        rows = "".join(f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>" for name, value in facts.items())
        return f"<table>{rows}</table>{self.evaluations._repr_html_() if self.evaluations.rows else ''}"


def load_run(path: str | Path) -> LoadedRun:
    """A run's metrics as tables, its trajectories as records, its configuration, result and state.

    Args:
        path: The run's folder, such as `runs/quickstart`. The run may still be training: everything is read again
            whenever it is asked for.

    Raises `DataError` when the folder is not a run's. Needs no torch.
    """
    folder = Path(path)
    if not RunFolder(folder).config.is_file():  # a run that has logged nothing yet has its configuration
        read_runs([folder])
    return LoadedRun(folder)


def _is_evaluation(line: Mapping[str, Any]) -> bool:
    return any(name.startswith(EVAL_PREFIX) for name in line)


def _cell(value: Any) -> str:
    return "" if value is None else html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))


def load_trajectories(path: str | Path, *, step: int | None = None) -> list[Trajectory]:
    """The recorded trajectories of a run, with their exact tokens.

    Args:
        path: A run's folder, for all recorded training steps in order, or one `.jsonl` file of trajectories.
        step: Only those of this training step.
    """
    if Path(path).is_file():
        return list(read_trajectories(Path(path)))
    folder = RunFolder(Path(path)).trajectories
    files = {int(file.stem): file for file in folder.glob("*.jsonl") if file.stem.isdigit()}
    if not files:
        raise DataError(f"there are no trajectories in {folder}; give a run's folder or a .jsonl file of trajectories")
    if step is not None and step not in files:
        raise DataError(f"{folder} has no step {step}; recorded: {', '.join(map(str, sorted(files)))}")
    return [
        trajectory
        for number in sorted(files)
        if step in (None, number)
        for trajectory in read_trajectories(files[number])
    ]
