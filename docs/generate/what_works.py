"""docs/what_works.md, made from the results of the study in docs/generate/study.

    python benchmarks/claims/what_works.py --jobs 3 --out docs/generate/study
    python -m docs.generate.what_works            # writes the page, and the pictures of curves into docs/images

The section of advice is written by hand: docs/generate/what_works_advice.markdown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from agent_r1.metric_names import ENTROPY, SUCCESS, TOOL_CALLS
from agent_r1.runs import Gain, describe_gain, draw_curves, paired_gain, save_figure
from benchmarks.claims.study.plan import (
    MODEL,
    QUESTIONS,
    SEEDS,
    TASKS,
    Question,
    Variant,
    base_settings,
    make_plan,
    variants_of,
)
from benchmarks.claims.study.results import Results, Trained, mean_record, read_results
from benchmarks.common.recipe_runs import NO_WASTE

DOCS = Path(__file__).parents[1]
PAGE, IMAGES = DOCS / "what_works.md", DOCS / "images"
STUDY, ADVICE = Path(__file__).parent / "study", Path(__file__).parent / "what_works_advice.markdown"
SIGNIFICANT = 0.05
_COLUMNS = ("variant", "changes", "solved", "each seed", "gain over the warm start", "against {}", "clear")
_ALIGNED = ("---", "---", "---:", "---:", "---:", "---:", "---")
_SHAPE = ("rollout.groups_per_step", "rollout.group_size")
_CURVES = (SUCCESS, TOOL_CALLS, ENTROPY)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A variant against the reference of its question, over the seeds that both have."""

    gain: Gain
    """The difference over tasks, seeds pooled: `before` is the reference."""
    by_seed: Sequence[float]
    """The difference of each seed."""
    adjusted: float
    """The p-value, adjusted for the number of comparisons of the task and model."""

    @property
    def verdict(self) -> str:
        """Whether the difference is clear."""
        agree = all(found > 0 for found in self.by_seed) or all(found < 0 for found in self.by_seed)
        is_clear = agree and len(self.by_seed) >= len(SEEDS) and self.adjusted < SIGNIFICANT
        if not is_clear:
            return "not clear"
        return "clear: better" if self.gain.gain > 0 else "clear: worse"


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjustment: the smallest of n is multiplied by n, the next by n - 1, and none falls below one before it.

    >>> holm([0.02, 0.01, 0.4])
    [0.04, 0.03, 0.4]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def runs_of(results: Results, variant: str) -> dict[int, Trained]:
    """The runs of a variant, by their seeds."""
    found = {seed: run for (_, name, seed), run in results.runs.items() if name == variant}
    return dict(sorted(found.items()))


def compare(results: Results) -> dict[str, Comparison]:
    """Every variant that has a run against the reference of its question, where both have a seed in common."""
    gains: dict[str, tuple[Gain, list[float]]] = {}
    for question in QUESTIONS:
        references = runs_of(results, question.reference)
        for variant in _variants(results, question):
            runs = runs_of(results, variant.name)
            pairs = [
                (results.solved(references[seed]), results.solved(run))
                for seed, run in runs.items()
                if seed in references
            ]
            if pairs and variant.name != question.reference:
                gains[variant.name] = (
                    paired_gain(pairs),
                    [fmean(after.values()) - fmean(before.values()) for before, after in pairs],
                )
    adjusted = holm([gain.p_value for gain, _ in gains.values()])
    return {
        name: Comparison(gain=gain, by_seed=by_seed, adjusted=p_value)
        for (name, (gain, by_seed)), p_value in zip(gains.items(), adjusted, strict=True)
    }


def _variants(results: Results, question: Question) -> list[Variant]:
    """The variants of a question that have a run; the reference is the first."""
    known = variants_of(results.task, _base(results))
    chosen = [
        variant
        for variant in known
        if variant.name == question.reference or variant.question == question.name
        if runs_of(results, variant.name)
    ]
    return sorted(chosen, key=lambda variant: variant.name != question.reference)


def _base(results: Results) -> Mapping[str, str] | None:
    return next((start.settings for start in results.starts.values()), None)


# --- the page ------------------------------------------------------------------------------------------------------


def study_page(folder: Path = STUDY) -> str:
    """The whole page."""
    found = [results for results in read_results(folder) if results.runs]
    sections = [_section(results) for results in found]
    if not sections:
        sections = ["## Results\n\nNo run of this study has been published yet.\n"]
    return "\n".join([_introduction(), *sections, ADVICE.read_text(encoding="utf-8")])


def _introduction() -> str:
    plan = make_plan()
    settings = plan[0].settings
    steps, groups, size = (settings[key] for key in ("trainer.steps", *_SHAPE))
    saving = ", ".join(f"`{key}={value}`" for key, value in NO_WASTE.items())
    sizes = [
        f"| {task} | {base['sft.steps']} | {base['optimizer.learning_rate']} |\n"
        for task in TASKS
        for base in [base_settings(task)]
    ]
    return f"""# What works

Made by `python -m docs.generate.what_works` from the results in `docs/generate/study`. The study asks which settings
matter on two tasks, [alfworld](../recipes/alfworld/README.md) and [hotpotqa](../recipes/hotpotqa/README.md), with a
model that is small enough for several seeds, {MODEL}.

## Protocol

- **One change at a time.** The base is `grpo`; every variant is the base with the keys that its row names. A preset
  (`algorithm=NAME`) is one change, of all keys of the preset.
- **Equal numbers of episodes.** {steps} steps of {groups} tasks with {size} rollouts each are {plan[0].episodes:,}
  episodes per run, whatever the variant.
- **One warm start per task**, from which all runs start.
- **Three seeds**: {", ".join(map(str, SEEDS))}. Figures are greedy, on the **validation** rows: they choose settings
  and are not published as results ([evaluation.md](evaluation.md#validation-and-test)).
- **Compared task by task.** A difference is that of the same seed and the same task; its 95 % interval comes from
  resampling tasks with all their seeds, its p-value from flipping signs ([evaluation.md](evaluation.md#gains)).
- **Clear** is a difference that has the same sign for each of the three seeds, and whose p-value is below
  {SIGNIFICANT:g} after Holm's adjustment for all comparisons of the task and model. Everything else is *not clear*: the
  study cannot tell it from chance, which does not mean that there is no difference.

| task | steps of the warm start | learning rate of the base |
|---|---:|---:|
{"".join(sizes)}
{_all_variants()}
The {len(plan)} runs are made on one GPU with

    python benchmarks/claims/what_works.py --jobs 3 --out docs/generate/study

A run that has ended is not repeated, so the command resumes a study that was interrupted; `--list` shows what is
missing. Settings that save time and change nothing of what is learned:
{_wrapped(saving)}"""


def _all_variants() -> str:
    """The questions, each with the variants that answer it."""
    known = {variant.name: variant for task in TASKS for variant in variants_of(task)}
    lines = ["| question | variant | changes | tasks |", "|---|---|---|---|"]
    for question in QUESTIONS:
        for variant in known.values():
            if variant.question == question.name:
                lines.append(
                    f"| {question.title} | `{variant.name}` | {_changes(variant)} | {', '.join(variant.tasks)} |"
                )
    return "\n".join([*lines, "", *(_wrapped(question.note) for question in QUESTIONS if question.note)])


def _section(results: Results) -> str:
    """One task with one model."""
    comparisons, plain = compare(results), base_settings(results.task)
    solved = [fmean(start.solved) for start in results.starts.values()]
    tasks = len(next(iter(results.starts.values())).solved)
    shown = " and ".join(f"{100 * share:.1f} %" for share in solved)
    copies = ""
    if len(solved) > 1:
        copies = f" It was made {len(solved)} times, with the same settings, on machines whose rounding differs."
    differing = [f"`{key}={value}`" for key, value in (_base(results) or {}).items() if value != plain.get(key)]
    minutes = sum(run.seconds for run in results.runs.values()) / 60
    commits = sorted({run.commit for run in results.runs.values() if run.commit})
    parts = [
        f"## {results.task}, {results.model}\n",
        _wrapped(
            f"{tasks} validation tasks; the warm start solves {shown}.{copies} {len(results.runs)} runs, "
            f"{minutes:.0f} minutes of processes that shared a GPU; version "
            f"{', '.join(sorted({run.version for run in results.runs.values()}))}"
            f"{', commit ' + ', '.join(commits) if commits else ''}."
            f"{' Unlike the protocol: ' + ', '.join(differing) + '.' if differing else ''}"
        ),
        _summary(results, comparisons),
        *(_table(results, question, comparisons) for question in QUESTIONS if len(_variants(results, question)) > 1),
    ]
    return "\n".join(parts)


def _changes(variant: Variant) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in variant.changes.items()) or "none"


def _wrapped(text: str) -> str:
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) + 1 > 140:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n".join([*lines, line]) + "\n"


def _summary(results: Results, comparisons: Mapping[str, Comparison]) -> str:
    clear = [f"`{name}` ({one.gain.gain:+.3f})" for name, one in comparisons.items() if one.verdict != "not clear"]
    if not clear:
        return f"None of the {len(comparisons)} differences is clear.\n"
    return f"Clear are {len(clear)} of {len(comparisons)} differences: {', '.join(clear)}.\n"


def _table(results: Results, question: Question, comparisons: Mapping[str, Comparison]) -> str:
    """The rows of one question."""
    reference = question.reference
    header = [column.format(f"`{reference}`") for column in _COLUMNS]
    rows = [_row(results, variant, comparisons.get(variant.name)) for variant in _variants(results, question)]
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, _ALIGNED, *rows)]
    picture = f"![{question.title}: curves of training]({'images/' + _picture(results, question)})\n"
    return "\n".join([f"### {question.title}: {results.task}\n", *lines, "", picture])


def _row(results: Results, variant: Variant, comparison: Comparison | None) -> list[str]:
    runs = runs_of(results, variant.name)
    starts = [(results.starts[run.start].by_task(), results.solved(run)) for run in runs.values()]
    return [
        f"`{variant.name}`",
        _changes(variant),
        f"{100 * fmean(run.success for run in runs.values()):.1f}",
        ", ".join(f"{100 * run.success:.1f}" for run in runs.values()),
        describe_gain(paired_gain(starts)),
        "" if comparison is None else describe_gain(comparison.gain),
        "" if comparison is None else comparison.verdict,
    ]


# --- pictures ------------------------------------------------------------------------------------------------------


def _picture(results: Results, question: Question) -> str:
    return re.sub(r"[^a-z0-9_.]+", "_", f"what_works_{results.task}_{results.model}_{question.name}.svg".lower())


def draw_pictures(folder: Path = STUDY, images: Path = IMAGES) -> list[Path]:
    """Draw the curves of every question, means over seeds (extra `plot`)."""
    written = []
    for results in read_results(folder):
        for question in QUESTIONS:
            variants = _variants(results, question)
            if len(variants) < 2:
                continue
            records = [mean_record(list(runs_of(results, variant.name).values()), variant.name) for variant in variants]
            logged = {key for record in records for key in record.metric_names}
            file = images / _picture(results, question)
            save_figure(draw_curves(records, [key for key in _CURVES if key in logged]), file)
            written.append(file)
    return written


def main() -> None:
    """Write the page and its pictures."""
    for file in draw_pictures():
        print(f"wrote {file}")
    PAGE.write_text(study_page(), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
