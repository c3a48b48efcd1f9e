"""Drawn series for `sample/`: the real ones may only be passed on whole, so none of them comes with the recipe.

    python recipes/forecasting/data_preprocess/make_sample.py recipes/forecasting/sample

A series is a level that wanders, a daily wave whose height changes slowly, and noise.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

HOURS = 1500
FIRST = datetime(2024, 1, 1)
SERIES = {"drawn1": (18.0, 2.0, 0.35), "drawn2": (24.0, 6.0, 0.5)}
"""Mean, height of the daily wave, and hourly noise."""


def drawn_values(name: str) -> list[float]:
    """The values of a series; the same each time."""
    rng = random.Random(f"drawn series {name}")
    mean, height, noise = SERIES[name]
    level, swing, rest = 0.0, 1.0, 0.0
    values = []
    for hour in range(HOURS):
        level = 0.997 * level + rng.gauss(0, 0.25)
        swing = 0.99 * swing + 0.01 + rng.gauss(0, 0.03)
        rest = 0.8 * rest + rng.gauss(0, noise)
        turn = 2 * math.pi * (hour - 15) / 24
        values.append(mean + level + height * swing * (math.cos(turn) + 0.3 * math.cos(2 * turn + 1)) + rest)
    return values


def write_sample(folder: Path) -> None:
    """Write one file per series."""
    for name in SERIES:
        rows = [f"{FIRST + timedelta(hours=hour)},{value:.3f}" for hour, value in enumerate(drawn_values(name))]
        (folder / f"{name}.csv").write_text("\n".join(["date,OT", *rows]) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the files go")
    write_sample(parser.parse_args(arguments).folder)


if __name__ == "__main__":
    main()
