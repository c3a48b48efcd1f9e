"""The files with the series: from a folder, or ETTh1 and ETTh2, downloaded once."""

from __future__ import annotations

import os
from pathlib import Path

from agent_r1.data import DATA_VARIABLE, locate
from agent_r1.registry import load_module, recipe_folder

# A plain import would not find it when a file of this folder is run as a script.
with recipe_folder(Path(__file__).resolve().parents[1]):
    series = load_module("series")

FOLDER = "forecasting"
COMMIT = "1d16c8f4f943005d613b5bc962e9eeb06058cf07"
ADDRESS = f"https://raw.githubusercontent.com/zhouhaoyi/ETDataset/{COMMIT}/ETT-small"
NAMES = ("ETTh1", "ETTh2")


def find_series(folder: Path | None = None) -> list[Path]:
    """The files of `folder`, else of what AGENT_R1_DATA names, else of ETDataset, downloaded."""
    parent = os.environ.get(DATA_VARIABLE)
    given = folder or (Path(parent).expanduser() / FOLDER if parent else None)
    if given is None:
        found = locate(FOLDER, {name: [f"{ADDRESS}/{name}.csv"] for name in NAMES})
        return [file for files in found.values() for file in files]
    files: list[Path] = series.series_files(given)
    return files
