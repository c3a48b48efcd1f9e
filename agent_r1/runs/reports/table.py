"""A table of runs: model, algorithm, time and memory, and held-out tasks before and after training with the gain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent_r1.errors import DataError
from agent_r1.metric_names import eval_metric
from agent_r1.runs.evaluations import Settings
from agent_r1.runs.read import RunRecord
from agent_r1.runs.reports.paired import Gain, paired_gain
from agent_r1.types import one_line

_SETTINGS_TITLE = "evaluated with"
_TEXT_TITLES = ("run", _SETTINGS_TITLE, "model", "algorithm")
_HEADER = [*_TEXT_TITLES, "seed", "steps", "minutes", "peak GPU GB"]
_NOTHING = "-"
_MAX_CELL = 1000
_MAX_CHARS = 80


def table_rows(runs: Sequence[RunRecord], *, split: str | None = None, pool: bool = False) -> list[list[str]]:
    """The header and one row per run, or with `pool` one per recipe, model and algorithm, over all seeds.

    A run that was also evaluated with other settings has one more row for each; the column `evaluated with` names them.
    Each data source has a column of tasks solved greedily, `0.305 -> 0.992`, and one with the gain where runs recorded
    each task: `+0.687 (+0.620 to +0.750), p < 0.001`. Without a `split` it is `test` where all runs were evaluated on
    it, otherwise what runs log, which is `validation`.
    """
    split = split or ("test" if runs and all("test" in run.splits for run in runs) else "validation")
    runs = [row for run in runs for row in (run, *_evaluated_otherwise(run, split))]
    sources = _sources(runs, split)
    rows = [[*_HEADER, *(title for source in sources for title in (_title(runs, split, source), _GAIN_TITLE))]]
    for members in _pool_seeds(runs) if pool else [[run] for run in runs]:
        cells = [cell for source in sources for cell in _cells(members, split, source)]
        rows.append([*_description(members), *cells])
    empty = {
        column
        for column, title in enumerate(rows[0])
        if title in (_GAIN_TITLE, _SETTINGS_TITLE) and all(row[column] == _NOTHING for row in rows[1:])
    }
    # Names come from files that anybody may have written: a terminal must not obey them.
    return [[one_line(cell, _MAX_CELL) for column, cell in enumerate(row) if column not in empty] for row in rows]


def markdown_table(runs: Sequence[RunRecord], *, split: str | None = None, pool: bool = False) -> str:
    """The table as markdown, figures aligned to the right."""
    header, *rows = table_rows(runs, split=split, pool=pool)
    alignment = ["---" if title in _TEXT_TITLES else "---:" for title in header]
    lines = [header, alignment, *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


_GAIN_TITLE = "gain (95 % interval)"


def describe_gain(gain: Gain) -> str:
    """A gain in words.

    >>> describe_gain(Gain(tasks=100, seeds=1, before=0.3, after=0.5, low=0.1, high=0.3, p_value=0.0004))
    '+0.200 (+0.100 to +0.300), p < 0.001'
    """
    p_value = "p < 0.001" if gain.p_value < 0.001 else f"p = {gain.p_value:.3f}"
    return f"{gain.gain:+.3f} ({gain.low:+.3f} to {gain.high:+.3f}), {p_value}"


def _evaluated_otherwise(run: RunRecord, split: str) -> list[RunRecord]:
    """The run once per other settings with which it was evaluated on a split."""
    return [run.evaluated_with(settings) for settings, splits in run.changed.items() if split in splits]


def _pool_seeds(runs: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Runs that differ in nothing but their seed, in the order in which the first of each comes. Evaluations with
    different settings are not pooled."""
    groups: dict[tuple[str, str, str, str, Settings], list[RunRecord]] = {}
    for run in runs:
        recipe = Path(str(run.setting("recipe"))).name
        groups.setdefault((recipe, run.model, run.algorithm, run.steps, run.settings), []).append(run)
    for members in groups.values():
        seeds = [_seed(run) for run in members]
        if len(set(seeds)) < len(seeds):
            raise DataError(
                f"{', '.join(run.label for run in members)} have the seeds {', '.join(seeds)}: only runs with "
                "different seeds can be pooled; leave one out, or leave --pool out"
            )
    return list(groups.values())


def _description(members: Sequence[RunRecord]) -> list[str]:
    """What a row says about its runs."""
    first = members[0]
    peaks = [run.peak_gpu_gb for run in members if run.peak_gpu_gb is not None]
    return [
        ", ".join(run.label for run in members),
        ", ".join(map(_shorten, first.settings)) or _NOTHING,
        first.model,
        first.algorithm,
        ", ".join(map(_seed, members)),
        first.steps,
        f"{sum(run.minutes for run in members) / len(members):.1f}",
        f"{max(peaks):.1f}" if peaks else _NOTHING,
    ]


def _shorten(setting: str) -> str:
    return setting if len(setting) <= _MAX_CHARS else f"{setting[:_MAX_CHARS]}..."


def _seed(run: RunRecord) -> str:
    return str(run.setting("trainer.seed"))


def _sources(runs: Sequence[RunRecord], split: str) -> list[str]:
    """The data sources that some run was evaluated on, `all` last; a single source stands for all."""
    evaluated = {
        key.removeprefix("eval/").removesuffix("/greedy")
        for run in runs
        for key in _figures(run, split)
        if key.startswith("eval/") and key.endswith("/greedy")
    }
    named = sorted(evaluated - {"all"})
    return [*named, "all"] if len(named) > 1 else named


def _figures(run: RunRecord, split: str) -> set[str]:
    """The names of the figures that a run has of a split; what it logs is of validation rows."""
    recorded = {key for record in run.splits.get(split, ()) for key in record.metrics}
    return recorded | (run.metric_names if split == "validation" else set())


def _title(runs: Sequence[RunRecord], split: str, source: str) -> str:
    """The column's title, with the number of rows if all runs have the same."""
    key = eval_metric("rows", source)
    counts = {record.metrics.get(key) for run in runs for record in run.splits.get(split, ())}
    if split == "validation":
        counts |= {line.get(key) for run in runs for line in run.evaluations[-1:]}
    counts -= {None}
    rows = f" ({counts.pop():.0f} rows)" if len(counts) == 1 else ""
    return f"{source}{rows}, {split}, before -> after"


def _cells(members: Sequence[RunRecord], split: str, source: str) -> tuple[str, str]:
    """Success before and after, and the gain."""
    named = None if source == "all" else source
    pairs = [tuple(record.by_task(named) for record in run.splits.get(split, ())) for run in members]
    if all(len(pair) == 2 and pair[0] for pair in pairs):
        gain = paired_gain([(before, after) for before, after in pairs])
        return f"{gain.before:.3f} -> {gain.after:.3f}", describe_gain(gain)
    only_logged = len(members) == 1 and split == "validation"
    return (_logged_figures(members[0], source) if only_logged else _NOTHING), _NOTHING


def _logged_figures(run: RunRecord, source: str) -> str:
    """Before and after, of a run that is unfinished or of an earlier version."""
    key = eval_metric("greedy", source)
    before = next((f"{line[key]:.3f}" for line in run.lines if line["step"] == 0 and key in line), "?")
    after = next((f"{line[key]:.3f}" for line in reversed(run.lines) if line["step"] > 0 and key in line), "?")
    return _NOTHING if before == after == "?" else f"{before} -> {after}"
