"""Hourly series from CSV files, and windows of them that end before their forecast begins.

series = open_series("runs/forecasting_data/series")["ETTh1"]
series.past(9000)       # rows 8664 to 8999: what the tools of a forecast from row 9000 on may see
series.future(9000)     # rows 9000 to 9023: only for the reward
"""

from __future__ import annotations

import csv
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from agent_r1.errors import ConfigError, DataError

from .models import DAY, WEEK, Array

TARGET = "OT"
"""The column that is forecast: the oil temperature."""
PAST = 2 * WEEK
"""Hours that the tools see: the models' week, and another one to backtest on."""
USED_ROWS = 14_400
"""The usual rows of ETT: 8,640 to train on, 2,880 to validate on, 2,880 to test on."""
_SHARES = {"train": (0.0, 0.6), "validation": (0.6, 0.8), "test": (0.8, 1.0)}
SPLITS = tuple(_SHARES)


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """One series."""

    name: str
    values: Array
    """One per hour."""
    first: datetime
    """The time of the first value."""

    def past(self, start: int) -> Array:
        """The two weeks before row `start`."""
        if not PAST <= start <= len(self.values):
            raise DataError(f"a window of {self.name} begins at row {start}; it needs {PAST} rows before it")
        return self.values[start - PAST : start]

    def time(self, row: int) -> datetime:
        """When a row was measured."""
        return self.first + timedelta(hours=row)

    def future(self, start: int) -> Array:
        """The day from row `start` on."""
        return self.values[start : start + DAY]

    def borders(self, split: str) -> tuple[int, int]:
        """The first row of a split and the one after its last."""
        rows = min(len(self.values), USED_ROWS)
        low, high = _SHARES[split]
        return round(low * rows), round(high * rows)

    def starts(self, split: str, stride: int = 1) -> range:
        """First rows of forecasts that lie wholly in a split. What comes before may lie in an earlier split."""
        low, high = self.borders(split)
        return range(max(low, PAST), high - DAY + 1, stride)

    @cached_property
    def scale(self) -> float:
        """The standard deviation of the rows to train on: errors are measured in it."""
        low, high = self.borders("train")
        return float(self.values[low:high].std()) or 1.0

    @cached_property
    def mean(self) -> float:
        """The mean of the rows to train on."""
        low, high = self.borders("train")
        return float(self.values[low:high].mean())


def series_files(folder: Path) -> list[Path]:
    """The CSV files of a folder."""
    files = sorted([*folder.glob("*.csv"), *folder.glob("*.csv.xz")]) if folder.is_dir() else []
    if not files:
        found = ", ".join(sorted(file.name for file in folder.iterdir())) if folder.is_dir() else "no such folder"
        raise DataError(f"{folder} has no files *.csv or *.csv.xz to take the series from. Found: {found or 'nothing'}")
    return files


def read_series(file: Path) -> Series:
    """The target column of a file with the columns `date` and `OT`. Other columns are not used."""
    dates, values, problems = [], [], []
    for number, date, text in _rows(file):
        try:
            value = float(text)
        except (TypeError, ValueError):
            value = float("nan")
        if not np.isfinite(value):
            problems.append(f"row {number}: {TARGET} is {text!r:.40}, not a number")
        dates.append(date)
        values.append(value)
    problems += _date_problems(dates)
    fewest = round((PAST + DAY) / _SHARES["train"][1])
    if len(values) < fewest:
        problems.append(f"{len(values)} rows; at least {fewest} are needed")
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise DataError(f"{file} cannot be used: {'; '.join(problems[:5])}{more}")
    name = file.name.removesuffix(".xz").removesuffix(".csv")
    return Series(name=name, values=np.array(values), first=_time(dates[0]))


def _rows(file: Path) -> Iterator[tuple[int, str, str]]:
    try:
        with lzma.open(file, "rt", newline="") if file.suffix == ".xz" else file.open(newline="") as lines:
            reader = csv.DictReader(lines)
            missing = {"date", TARGET} - set(reader.fieldnames or ())
            if missing:
                found = ", ".join(reader.fieldnames or ["none"])
                raise DataError(f"{file} has no column {', '.join(sorted(missing))}; found {found}")
            for number, row in enumerate(reader):
                yield number, row["date"], row[TARGET]
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError, csv.Error) as error:
        raise DataError(f"{file} cannot be read: {error}") from error


def _date_problems(dates: Sequence[str]) -> list[str]:
    """Dates that cannot be read, and hours that are missing or come twice."""
    problems, before = [], None
    for number, date in enumerate(dates):
        try:
            time = _time(date)
        except (TypeError, ValueError):
            problems.append(f"row {number}: {date!r:.40} is not a date like 2016-07-01 00:00:00")
            continue
        if before is not None and (time - before).total_seconds() != 3600:
            problems.append(f"row {number}: {date} is not an hour after {before}")
        before = time
    return problems


def _time(date: str) -> datetime:
    return datetime.fromisoformat(date)


@lru_cache(maxsize=4)
def open_series(folder: str) -> Mapping[str, Series]:
    """The series of a folder by name, read once per process."""
    try:
        found = [read_series(file) for file in series_files(Path(folder))]
    except DataError as error:
        make = (
            "python recipes/forecasting/data_preprocess/process_forecasting.py --local_save_dir runs/forecasting_data"
        )
        raise ConfigError(f"env.series={folder}: {error}. Make it: {make}") from error
    return {series.name: series for series in found}
