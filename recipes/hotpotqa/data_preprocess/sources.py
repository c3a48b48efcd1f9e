"""Questions and passages as recipes elsewhere have them: in three layouts, one record.

* packed: `train.jsonl`, `test.jsonl` with `question`, `answer`, `supporting_titles`, and passages in `corpus*.jsonl`
  (all also as `.jsonl.xz`);
* hub: the official `distractor` files, in which each question brings its passages along;
* for MuSiQue `paragraphs` of a question, with `is_supporting`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from agent_r1.data import DATA_VARIABLE, find_files, hold_out, locate, read_raw
from agent_r1.errors import DataError
from agent_r1.tools.builtin.search import Passage, read_passages

HUB = "https://huggingface.co/datasets"
HOTPOTQA = {
    "train": [f"{HUB}/hotpotqa/hotpot_qa/resolve/main/distractor/train-00000-of-00002.parquet"],
    "validation": [f"{HUB}/hotpotqa/hotpot_qa/resolve/main/distractor/validation-00000-of-00001.parquet"],
}
CROSS = {
    "2wiki": [f"{HUB}/framolfese/2WikiMultihopQA/resolve/main/data/validation-00000-of-00001.parquet"],
    "musique": [f"{HUB}/dgslibisey/MuSiQue/resolve/main/musique_ans_v1.0_dev.jsonl"],
}
CROSS_FOLDER = "multihop_other"
SPLITS = ("train", "test")
"""The files of the packed layout."""

NUM_TRAIN, NUM_TEST = 3000, 300
"""How many questions of the official files are taken: with their passages the index stays small."""
NUM_VALIDATION = 300
"""How many of the questions to train on are held out."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question."""

    question_id: str
    """The official one; empty where the file has none."""
    question: str
    answers: list[str]
    """The right answer, then its other names."""
    supporting_titles: list[str]
    """The passages that hold the answer; may be empty where it is not needed."""
    kind: str = ""
    """bridge, comparison ..."""

    @property
    def answer(self) -> str:
        """The right answer."""
        return self.answers[0]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Questions of each split, and the passages to search in."""

    questions: dict[str, list[Question]]
    passages: Iterable[Passage]


def hotpotqa(folder: Path | None = None) -> Source:
    """HotpotQA, from `folder`, else from what AGENT_R1_DATA names, else downloaded. Splits: train, validation,
    test."""
    given = folder or _shared_folder("hotpotqa")
    if given is not None and given.is_dir() and any(given.glob("corpus*")):
        train, test = ([packed_question(row) for row in read_raw(find_files(given, split))] for split in SPLITS)
        return Source(questions=_with_validation(train, test), passages=read_passages(sorted(given.glob("corpus*"))))
    files = locate("hotpotqa", HOTPOTQA, given)
    train_rows = list(islice(read_raw(files["train"]), NUM_TRAIN))
    test_rows = list(islice(read_raw(files["validation"]), NUM_TEST))
    return Source(
        questions=_with_validation([hub_question(row) for row in train_rows], [hub_question(row) for row in test_rows]),
        passages=unique_passages(pair for row in (*train_rows, *test_rows) for pair in hub_passages(row)),
    )


def _with_validation(train: list[Question], test: list[Question]) -> dict[str, list[Question]]:
    """The splits. The official validation questions, whose answers are public, are the ones to test on."""
    train, validation = hold_out(train, NUM_VALIDATION, key=lambda question: question.question)
    return {"train": train, "validation": validation, "test": test}


def cross(name: str, folder: Path | None = None) -> Source:
    """2wiki or musique, likewise. Split: test."""
    given = folder or _shared_folder(CROSS_FOLDER)
    if given is not None:
        questions = [packed_question(row) for row in read_raw(find_files(given, f"{name}_questions"))]
        return Source(questions={"test": questions}, passages=read_passages(find_files(given, f"{name}_corpus")))
    rows = spread(list(read_raw(locate(name, {name: CROSS[name]})[name])), NUM_TEST)
    return Source(
        questions={"test": [hub_question(row) for row in rows]},
        passages=unique_passages(pair for row in rows for pair in hub_passages(row)),
    )


def spread(rows: list[Any], count: int) -> list[Any]:
    """So many rows, evenly spaced: MuSiQue has its questions of two hops first, of four last.

    >>> spread([0, 1, 2, 3, 4, 5], 3), spread([0, 1], 3)
    ([0, 2, 4], [0, 1])
    """
    return rows if len(rows) <= count else [rows[number * len(rows) // count] for number in range(count)]


def _shared_folder(task: str) -> Path | None:
    parent = os.environ.get(DATA_VARIABLE)
    return Path(parent).expanduser() / task if parent else None


def packed_question(row: Mapping[str, Any]) -> Question:
    """A row of the packed layout; other names of the answer stand under `aliases`."""
    _require(row, "question", "answer")
    return Question(
        question_id=str(row.get("id") or ""),
        question=row["question"].strip(),
        answers=_unique([row["answer"], *row.get("aliases", [])]),
        supporting_titles=_unique(row.get("supporting_titles") or [title for title, _ in row.get("supporting", [])]),
        kind=str(row.get("type", "")),
    )


def hub_question(row: Mapping[str, Any]) -> Question:
    """A row of the official files of HotpotQA, 2WikiMultihopQA or MuSiQue."""
    _require(row, "question", "answer")
    if "paragraphs" in row:
        titles = [paragraph["title"] for paragraph in row["paragraphs"] if paragraph["is_supporting"]]
    else:
        _require(row, "supporting_facts", "context")
        titles = row["supporting_facts"]["title"]
    return Question(
        question_id=str(row.get("id") or ""),
        question=row["question"].strip(),
        answers=_unique([row["answer"], *row.get("answer_aliases", [])]),
        supporting_titles=_unique(titles),
        kind=str(row.get("type", "")),
    )


def hub_passages(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Title and text of each passage that an official row brings along."""
    if "paragraphs" in row:
        yield from ((paragraph["title"], paragraph["paragraph_text"]) for paragraph in row["paragraphs"])
    else:
        titles, sentences = row["context"]["title"], row["context"]["sentences"]
        yield from ((title, "".join(some).strip()) for title, some in zip(titles, sentences, strict=True))


def unique_passages(pairs: Iterable[tuple[str, str]]) -> Iterator[Passage]:
    """Each passage once: questions share some."""
    for number, (title, text) in enumerate(dict.fromkeys(pairs)):
        yield Passage(passage_id=str(number), title=title, text=text)


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text.strip() for text in texts if text.strip()))


def _require(row: Mapping[str, Any], *columns: str) -> None:
    missing = [column for column in columns if not row.get(column)]
    if missing:
        raise DataError(f"a question needs {', '.join(missing)}; found: {', '.join(sorted(row))}")
