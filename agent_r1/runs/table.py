"""A table of runs: model, algorithm, time and memory, and held-out tasks before and after training."""

from __future__ import annotations

from collections.abc import Sequence

from agent_r1.metric_names import eval_metric
from agent_r1.runs.read import RunRecord


def table_rows(runs: Sequence[RunRecord]) -> list[list[str]]:
    """The header and one row per run. Held-out columns are `eval/<source>/greedy`, one per data source and one for all
    rows if there are several: `0.305 -> 0.992`."""
    sources = _sources(runs)
    header = ["run", "model", "algorithm", "seed", "steps", "minutes", "peak GPU GB"]
    rows = [[*header, *(_title(runs, source) for source in sources)]]
    for run in runs:
        peak = run.peak_gpu_gb
        rows.append(
            [
                run.label,
                run.model,
                run.algorithm,
                str(run.setting("trainer.seed")),
                run.steps,
                f"{run.minutes:.1f}",
                "-" if peak is None else f"{peak:.1f}",
                *(_before_after(run, source) for source in sources),
            ]
        )
    return rows


def markdown_table(runs: Sequence[RunRecord]) -> str:
    """The table as markdown, figures aligned to the right."""
    header, *rows = table_rows(runs)
    alignment = ["---"] * 3 + ["---:"] * (len(header) - 3)
    lines = [header, alignment, *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _sources(runs: Sequence[RunRecord]) -> list[str]:
    """The data sources that some run evaluated, `all` last; a single source stands for all."""
    evaluated = {
        key.removeprefix("eval/").removesuffix("/greedy")
        for run in runs
        for key in run.metric_names
        if key.startswith("eval/") and key.endswith("/greedy")
    }
    named = sorted(evaluated - {"all"})
    return [*named, "all"] if len(named) > 1 else named


def _title(runs: Sequence[RunRecord], source: str) -> str:
    """The column's title, with the number of rows if all runs have the same."""
    counts = {line.get(eval_metric("rows", source)) for run in runs for line in run.evaluations[-1:]} - {None}
    rows = f" ({counts.pop():.0f} rows)" if len(counts) == 1 else ""
    return f"{source}{rows}, before -> after"


def _before_after(run: RunRecord, source: str) -> str:
    key = eval_metric("greedy", source)
    before = next((f"{line[key]:.3f}" for line in run.lines if line["step"] == 0 and key in line), "?")
    after = next((f"{line[key]:.3f}" for line in reversed(run.lines) if line["step"] > 0 and key in line), "?")
    return "-" if before == after == "?" else f"{before} -> {after}"
