r"""The problems of MATH and AIME, from the layouts in which they are to be had, as one record.

* hub: `problem`, `level`, `type` and a worked `solution` that ends in `\boxed{}`;
* lists: a problem (`problem`, `prompt`, `question` or `input`) with its `answer` (or `output`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_r1.data import DATA_VARIABLE, hold_out, locate, read_raw
from agent_r1.errors import DataError
from agent_r1.registry import load_module, recipe_folder

# A plain import would not find it when a file of this folder is run as a script.
with recipe_folder(Path(__file__).resolve().parents[1]):
    grading = load_module("grading")

HUB = "https://huggingface.co/datasets"
SUBJECTS = (
    *("algebra", "counting_and_probability", "geometry", "intermediate_algebra"),
    *("number_theory", "prealgebra", "precalculus"),
)
ONLINE = {
    "train": [f"{HUB}/EleutherAI/hendrycks_math/resolve/main/{name}/train-00000-of-00001.parquet" for name in SUBJECTS],
    "math500": [f"{HUB}/HuggingFaceH4/MATH-500/resolve/main/test.jsonl"],
    "aime24": [f"{HUB}/HuggingFaceH4/aime_2024/resolve/main/data/train-00000-of-00001.parquet"],
}
PATTERNS = {"train": ("train*", "math_train*", "math_lvl*"), "math500": ("math500*",), "aime24": ("aime24*",)}
"""The files of a folder, by name."""
NUM_VALIDATION = 400
"""How many of the problems to train on are held out."""
MAX_TRAIN_CHARS = 1200
"""Longer problems, most of them with drawings in Asymptote, are not trained on."""

_UNIT = re.compile(r"\s*(?:\\(?:text|mbox|textrm)\{[^{}]*\}(?:\^\{?\d\}?)?|\^\{?\\circ\}?)\.?$")
_NUMERIC = re.compile(r"(?=.*\d)(?:[-\d.,/{}\s]|\\[dt]?frac)+")
_DECIMAL = re.compile(r"-?\d*\.\d+")
_TEXT_KEYS, _ANSWER_KEYS = ("problem", "prompt", "question", "input"), ("answer", "output")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem."""

    text: str
    answer: str
    """As LaTeX; "" where the file has none."""
    source: str
    """math, math500 or aime24."""
    problem_id: str = ""
    """The official one; empty where the file has none."""
    subject: str = ""
    level: str = ""
    """From 1 to 5."""


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The problems of each split, and how many rows were left out."""

    train: list[Problem]
    validation: list[Problem]
    test: list[Problem]
    left_out: dict[str, int]
    """Reason -> rows."""


def read_splits(folder: Path | None = None, *, usable: Mapping[str, bool] | None = None) -> Splits:
    """Training problems, of which some are held out for validation, and MATH-500 with AIME 2024 to test on.

    `usable` says of gold answers whether they can be graded; rows whose answer cannot are left out of the first two.
    """
    files = _files(folder)
    test = [problem for name in ("math500", "aime24") for problem in read_problems(files[name], name)]
    train, left_out = _trainable(read_problems(files["train"], "math"), test, usable or {})
    train, validation = hold_out(train, NUM_VALIDATION, key=lambda problem: text_key(problem.text))
    return Splits(train=train, validation=validation, test=test, left_out=left_out)


def _trainable(
    problems: Iterable[Problem], test: Sequence[Problem], usable: Mapping[str, bool]
) -> tuple[list[Problem], dict[str, int]]:
    tested, seen = {text_key(problem.text) for problem in test}, set[str]()
    left_out = dict.fromkeys(("in a test set", "twice", "no answer", "too long", "cannot be graded"), 0)
    kept = []
    for problem in problems:
        key = text_key(problem.text)
        reasons = {
            "in a test set": key in tested,
            "twice": key in seen,
            "no answer": not problem.answer,
            "too long": len(problem.text) > MAX_TRAIN_CHARS,
            "cannot be graded": not usable.get(problem.answer, True),
        }
        seen.add(key)
        reason = next((name for name, applies in reasons.items() if applies), None)
        if reason is None:
            kept.append(replace(problem, answer=without_unit(problem.answer)))
        else:
            left_out[reason] += 1
    # Decimals stand together: `agent-r1 check` holds each row against the answer of the next one as a wrong answer, and
    # 0.5 is none beside \frac{1}{2}.
    return sorted(kept, key=lambda problem: bool(_DECIMAL.fullmatch(problem.answer))), left_out


def without_unit(answer: str) -> str:
    r"""A number without its unit, which math-verify does not compare; any other answer as it is.

    >>> without_unit(r"36^\circ"), without_unit(r"\frac{1}{2}\text{ cm}^2"), without_unit(r"\text{(E)}")
    ('36', '\\frac{1}{2}', '\\text{(E)}')
    """
    bare = _UNIT.sub("", answer)
    return bare if _NUMERIC.fullmatch(bare) else answer


def text_key(text: str) -> str:
    r"""What two copies of a problem have in common, whatever their spaces and their mark-up.

    >>> text_key(r"Find $x$  if \left( x+1 \right) = 2.") == text_key("find x if (x + 1)=2")
    True
    """
    return re.sub(r"\\(?:left|right|displaystyle|[,;!: ])|[\s\\$.,()\[\]{}]", "", text).lower()


def read_problems(files: Iterable[Path], source: str) -> Iterator[Problem]:
    """The problems of files in any of the layouts."""
    for number, row in enumerate(read_raw(files)):
        text = next((row[key] for key in _TEXT_KEYS if isinstance(row.get(key), str) and row[key].strip()), None)
        if text is None or not ({*_ANSWER_KEYS, "solution"} & row.keys()):
            raise DataError(
                f"row {number} of {source} needs a problem ({', '.join(_TEXT_KEYS)}) and an answer "
                f"({', '.join(_ANSWER_KEYS)}, or a solution with a box); found {row!r:.200}"
            )
        yield Problem(
            text=text.strip(),
            answer=_answer(row),
            source=source,
            problem_id=str(row.get("unique_id") or ""),
            subject=str(row.get("type") or row.get("subject") or ""),
            level=_level(row.get("level") or row.get("difficulty")),
        )


def _answer(row: Mapping[str, Any]) -> str:
    for key in _ANSWER_KEYS:
        if row.get(key) is not None:
            return str(row[key]).strip()
    boxes = grading.boxed_answers(str(row.get("solution") or ""))
    return boxes[-1] if boxes else ""


def _level(value: Any) -> str:
    """`Level 5`, 5 and 5.0 are "5"."""
    digits = re.search(r"\d", str(value or ""))
    return digits.group() if digits else ""


def _files(folder: Path | None) -> dict[str, list[Path]]:
    parent = os.environ.get(DATA_VARIABLE)
    given = folder or (Path(parent).expanduser() / "math" if parent else None)
    if given is None:
        return locate("math", ONLINE)
    if not given.is_dir():
        raise DataError(f"there is no folder {given} to take the problems from")
    found = {name: sorted({file for p in patterns for file in given.glob(p)}) for name, patterns in PATTERNS.items()}
    missing = [name for name, files in found.items() if not files]
    if missing:
        there = ", ".join(sorted(file.name for file in given.iterdir())) or "nothing"
        raise DataError(f"{given} has no files {', '.join(f'{name}*' for name in missing)}. Found: {there}")
    return found
