"""What training did to function calling: two evaluations on BFCL, compared row by row, per category.

    agent-r1 eval recipes/bfcl --model BASE --json before.json
    agent-r1 eval recipes/bfcl --model runs/X/hf --json after.json
    python recipes/bfcl/compare.py before.json after.json

Both must have been made on the same rows. The interval is that of the difference, the p-value says how probable a
difference of this size would be if training had changed nothing (docs/evaluation.md#gains).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from agent_r1.errors import AgentR1Error, DataError
from agent_r1.runs import describe_gain, paired_gain


def read_solved(file: Path) -> dict[str, dict[str, float]]:
    """How each row was solved, by category, from what `agent-r1 eval --json` wrote."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        rows = list(zip(found["tasks"], found["sources"], found["solved"], strict=True))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is no result of agent-r1 eval --json ({type(error).__name__}: {error})") from error
    by_category: dict[str, dict[str, float]] = {}
    for task, source, solved in rows:
        by_category.setdefault(str(source), {})[str(task)] = float(solved)
    return by_category


def comparison(before: Path, after: Path) -> list[list[str]]:
    """A header, a row per category, and one of all rows."""
    first, second = read_solved(before), read_solved(after)
    if first.keys() != second.keys():
        differing = sorted(first.keys() ^ second.keys())
        raise DataError(f"{before} and {after} were made on different rows: only one of them has {differing[0]}")
    pairs = {name: (first[name], second[name]) for name in sorted(first)}
    everything = [{task: value for rows in side.values() for task, value in rows.items()} for side in (first, second)]
    lines = [["category", "rows", "before", "after", "gain (95 % interval)"]]
    for name, (old, new) in {**pairs, "all": (everything[0], everything[1])}.items():
        gain = paired_gain([(old, new)])
        lines.append([name, str(gain.tasks), f"{gain.before:.3f}", f"{gain.after:.3f}", describe_gain(gain)])
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the result of the model before training")
    parser.add_argument("after", type=Path, help="the result of the trained model")
    parser.add_argument("--md", action="store_true", help="print markdown")
    chosen = parser.parse_args(arguments)
    try:
        lines = comparison(chosen.before, chosen.after)
    except AgentR1Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if chosen.md:
        lines.insert(1, ["---", *["---:"] * 3, "---"])
        print("\n".join(f"| {' | '.join(line)} |" for line in lines))
        return 0
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
