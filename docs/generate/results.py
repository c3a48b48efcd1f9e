"""docs/results.md, made from the published results in docs/generate/published.

    python -m docs.generate.results            # writes the page, and the pictures of curves into docs/images

A result is published with `agent-r1 table RUN... --export docs/generate/published`. The last part of the page, figures
of an older protocol, is written by hand: docs/generate/older_results.markdown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any

from agent_r1.evaluation.metrics import interval
from agent_r1.metric_names import ACTION_TOKENS, ENTROPY, EVAL_GREEDY, SUCCESS, TOOL_CALLS
from agent_r1.runs import (
    Gain,
    Published,
    RunRecord,
    describe_gain,
    draw_curves,
    paired_gain,
    read_published,
    save_figure,
)

DOCS = Path(__file__).parents[1]
PAGE, IMAGES = DOCS / "results.md", DOCS / "images"
PUBLISHED, OLDER = Path(__file__).parent / "published", Path(__file__).parent / "older_results.markdown"

EARLIER = {
    "gsm8k_tool": (53.1, 83.3),
    "hotpotqa": (25.8, 59.4),
    "alfworld": (7.1, 81.3),
    "webshop": (23.8, 46.0),
}
"""What the earlier Agent-R1 published for Qwen3-4B: ReAct without training, and the best of its algorithms."""

_COUNTED = {"rows", "failed", "greedy", "reward", "steps", "tool_calls", "response_tokens"}
"""Figures of every recipe; what a recipe has beside them is its own."""
_KEYS = (SUCCESS, EVAL_GREEDY, TOOL_CALLS, ACTION_TOKENS, ENTROPY)

_COLUMNS = (
    *("row", "seeds", "solved", "gain over the start", "gain over ReAct", "gain over no tools"),
    *("score", "calls", "steps", "minutes", "GPU GB"),
)
NO_TOOLS = "no tools"
"""The title of the untrained model that solves the same tasks without tools, in its own words."""

_INTRODUCTION = """# Results

Made by `python -m docs.generate.results` from the files in `docs/generate/published`, one per run
([how to publish one](evaluation.md#publishing-results)). Settings were chosen on validation rows; the figures are of
**test** rows, which nothing was chosen on ([evaluation.md](evaluation.md#validation-and-test)). *Solved* is the share
of tasks solved greedily, in percent, with its 95 % interval over tasks. A *gain* is the difference task by task, with
its 95 % interval and p-value ([evaluation.md](evaluation.md#gains)); runs that differ in their seed only are one row.
*Score* is the mean reward, where that is not the share solved; *no tools* is the untrained model that reasons in its
own words and calls nothing.
Minutes count training steps, not evaluations, and are those of a GPU that other runs may have shared.

One command makes the runs, several at a time; what is published already is not made again. `--list` prints which runs
there are, and their settings are in `benchmarks/claims/published/plan.py`:

    python benchmarks/claims/results.py --model FOLDER --name Qwen2.5-Coder-1.5B-Instruct --jobs 2
    python -m docs.generate.results
"""


def results_page(folder: Path = PUBLISHED) -> str:
    """The whole page."""
    found = [result for result in read_published(folder) if result.split == "test"]
    sections = [
        _section(key[0], key[1], results) for key, results in _grouped(found, lambda one: (one.recipe, one.model))
    ]
    if not sections:
        sections = ["No run has been published under this protocol yet; the figures below are of an older one.\n"]
    return "\n".join([_INTRODUCTION, *sections, OLDER.read_text(encoding="utf-8")])


def _grouped(results: Iterable[Published], key: Callable[[Published], Any]) -> list[tuple[Any, list[Published]]]:
    """Results with the same key, sorted by it."""
    groups: dict[Any, list[Published]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return sorted(groups.items())


def _section(recipe: str, model: str, results: Sequence[Published]) -> str:
    """One recipe with one model."""
    runs = [result for result in results if result.kind == "run"]
    bases = [result for result in results if result.kind == "evaluation"]
    named = sorted({source for result in results for source in result.sources})
    sources: list[str | None] = [*named, None] if len(named) > 1 else [None]
    tables = [_table(source, runs, bases, is_only=len(sources) < 2) for source in sources]
    parts = [f"## {recipe}, {model}\n", *tables]
    if recipe in EARLIER:
        before, after = EARLIER[recipe]
        parts.append(
            f"For comparison, the earlier Agent-R1 published {before} -> {after} ({after - before:+.1f} points over "
            "ReAct) with Qwen3-4B, on its own rows.\n"
        )
    if any(map(_has_curves, runs)):
        parts.append(f"![{recipe}, {model}: curves of training](images/{_picture(recipe, model)})\n")
    commands = list(dict.fromkeys(command for result in (*bases, *runs) for command in result.commands))
    parts.append("".join(map(_indented, commands)))
    return "\n".join(parts)


def _indented(command: str) -> str:
    """A command as a block of code, long ones on several lines."""
    lines = wrap(command, 110, break_long_words=False, break_on_hyphens=False)
    return "    " + " \\\n        ".join(lines) + "\n"


def _table(source: str | None, runs: Sequence[Published], bases: Sequence[Published], *, is_only: bool) -> str:
    """The rows of one data source: untrained, before training, and each algorithm."""
    untrained = {_gain_column(base): base.solved("after", source) for base in bases}
    own = _own_figures([*runs, *bases], source or "all")
    rows = [{"row": _name_of(base), **_figures([base], "after", source, {}, own)} for base in bases]
    if runs:
        title = "warm start" if all(run.warm_start for run in runs) else "before training"
        rows.append({"row": title, **_figures(runs, "before", source, untrained, own)})
    for (algorithm, steps), members in _grouped(runs, lambda run: (run.algorithm, run.steps)):
        pairs = [(run.solved("before", source), run.solved("after", source)) for run in members]
        peaks = [run.peak_gpu_gb for run in members if run.peak_gpu_gb is not None]
        rows.append(
            {
                "row": algorithm,
                "seeds": ", ".join(str(run.seed) for run in members),
                "gain over the start": describe_gain(paired_gain(pairs)),
                **_figures(members, "after", source, untrained, own),
                "steps": str(steps),
                "minutes": f"{fmean(run.minutes for run in members):.1f}",
                "GPU GB": f"{max(peaks):.1f}" if peaks else "",
            }
        )
    tasks = len((runs or bases)[0].solved("after", source))
    title = f"{tasks} test tasks:" if is_only else f"**{source or 'all'}**, {tasks} test tasks:"
    filled = {column for row in rows for column, text in row.items() if text}
    columns = [*(column for column in _COLUMNS if column in filled), *own]
    alignment = ["---" if column in ("row", "seeds") else "---:" for column in columns]
    lines = [columns, alignment, *([row.get(column, "") for column in columns] for row in rows)]
    return f"{title}\n\n" + "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _figures(
    results: Sequence[Published],
    stage: str,
    source: str | None,
    untrained: Mapping[str, dict[str, float]],
    own: Sequence[str],
) -> dict[str, str]:
    """The figures of some evaluations, over all seeds, with their gains over those of `untrained` models."""
    solved = [result.solved(stage, source) for result in results]
    score = _mean(results, stage, "reward", source)
    return {
        "solved": _share(solved),
        **{column: _gain_over(before, solved) for column, before in untrained.items()},
        "score": "" if score == _mean(results, stage, "greedy", source) else score,
        "calls": _mean(results, stage, "tool_calls", source),
        **{name: _mean(results, stage, name, source) for name in own},
    }


def _name_of(base: Published) -> str:
    kind = "ReAct" if base.baseline == "react" else base.title
    return f"untrained ({kind})" if kind else "untrained"


def _gain_column(base: Published) -> str:
    return "gain over ReAct" if base.baseline == "react" else f"gain over {base.title or 'untrained'}"


def _share(solved: Sequence[dict[str, float]]) -> str:
    """The mean over seeds of tasks solved, in percent, with its interval over tasks."""
    by_task = [fmean(seed[task] for seed in solved) for task in solved[0]]
    bounds = interval(by_task)
    shown = "" if bounds is None else f" ({100 * bounds[0]:.1f} - {100 * bounds[1]:.1f})"
    return f"{100 * fmean(by_task):.1f}{shown}"


def _gain_over(before: dict[str, float], solved: Sequence[dict[str, float]]) -> str:
    """The gain over the untrained model, where it was evaluated on the same tasks."""
    if any(seed.keys() != before.keys() for seed in solved):
        return ""
    gain: Gain = paired_gain([(before, seed) for seed in solved])
    return describe_gain(gain)


def _own_figures(results: Sequence[Published], source: str) -> list[str]:
    """The figures that only this recipe has, such as `f1`."""
    names = {
        match[1]
        for result in results
        for metric in result.after["metrics"]
        if (match := re.fullmatch(rf"eval/{re.escape(source)}/([a-z_0-9]+)", metric))
    }
    return sorted(names - _COUNTED)


def _mean(results: Sequence[Published], stage: str, name: str, source: str | None) -> str:
    figures = [result.figure(stage, name, source or "all") for result in results]
    known = [figure for figure in figures if figure is not None]
    return f"{fmean(known):.3g}" if known else ""


def _has_curves(run: Published) -> bool:
    return bool(run.curves)


def _picture(recipe: str, model: str) -> str:
    return re.sub(r"[^a-z0-9_.]+", "_", f"results_{recipe}_{model}.png".lower())


def draw_pictures(folder: Path = PUBLISHED, images: Path = IMAGES) -> list[Path]:
    """Draw the curves of every recipe and model (extra `plot`)."""
    written = []
    runs = [result for result in read_published(folder) if result.kind == "run" and result.split == "test"]
    for (recipe, model), members in _grouped(filter(_has_curves, runs), lambda run: (run.recipe, run.model)):
        records = [run.record(f"{run.algorithm}, seed {run.seed}") for run in members]
        file = images / _picture(recipe, model)
        save_figure(draw_curves(records, [key for key in _KEYS if _changes(records, key)]), file)
        written.append(file)
    return written


def _changes(records: Sequence[RunRecord], key: str) -> bool:
    """Whether a metric was logged more than once in some run, and not always with the same value."""
    return any(len({line[key] for line in record.lines if key in line}) > 1 for record in records)


def main() -> None:
    """Write the page and its pictures."""
    for file in draw_pictures():
        print(f"wrote {file}")
    PAGE.write_text(results_page(), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
