"""The questions of WikiTableQuestions and TAT-QA, from the layouts in which they are to be had, as one record.

* prepared: `wikitablequestions/` with `tables`, `train` and `test`, `tatqa/` with `train` (or `train_from_dev`) and
  `test`, all `.jsonl` or `.jsonl.xz`;
* official: the release archive of WikiTableQuestions, and TAT-QA's development and gold test files, downloaded.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1.data import DATA_VARIABLE, find_files, hold_out, locate, read_raw
from agent_r1.errors import DataError
from agent_r1.registry import load_module, recipe_folder

# A plain import would not find them when a file of this folder is run as a script.
with recipe_folder(Path(__file__).resolve().parents[1]):
    cells = load_module("cells")
    table = load_module("table")

WTQ, TATQA = "wikitablequestions", "tatqa"
WTQ_ARCHIVE = (
    "https://github.com/ppasupat/WikiTableQuestions/releases/download/v1.0.2/WikiTableQuestions-1.0.2-compact.zip"
)
TATQA_FILES = (
    "https://raw.githubusercontent.com/NExTplusplus/TAT-QA/870accc41953dcde885aabeb963d94aabdc0fbc3/dataset_raw"
)
ONLINE = {
    "train": [f"{TATQA_FILES}/tatqa_dataset_dev.json"],
    "test": [f"{TATQA_FILES}/tatqa_dataset_test_gold.json"],
}
NUM_VALIDATION = {WTQ: 600, TATQA: 200}
"""How many of the questions to train on are held out, with all questions about the same tables."""
_TRAILING = re.compile(r"(?<=^\d)\.0$")
"""What 2.0 has more than 2: they are one answer."""
_ESCAPES = {"\\n": "\n", "\\p": "|", "\\\\": "\\"}


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question about one table."""

    source: str
    """wikitablequestions or tatqa."""
    question_id: str
    text: str
    table_id: str
    table: str
    """As `table.table_text` writes it."""
    values: tuple[str, ...]
    """The gold answer."""
    scale: str = ""
    derivation: str = ""
    numeric: bool = False
    """The answer was calculated or counted."""
    paragraphs: tuple[str, ...] | None = None
    """Texts beside the table; None for WikiTableQuestions, which has none."""


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The questions of each split."""

    train: list[Question]
    validation: list[Question]
    test: list[Question]


def read_splits(folder: Path | None = None) -> Splits:
    """Training questions, of which those about some tables are held out for validation, and the test questions.

    Questions about a table that the test questions are about are not trained on.
    """
    parent = os.environ.get(DATA_VARIABLE)
    given = folder or (Path(parent).expanduser() if parent else None)
    parts: dict[str, list[Question]] = {"train": [], "validation": [], "test": []}
    for source, read in ((WTQ, _read_wtq), (TATQA, _read_tatqa)):
        train, test = read(given)
        tested = {question.table_id for question in test}
        train = [question for question in train if question.table_id not in tested]
        train, validation = hold_out(train, NUM_VALIDATION[source], key=lambda question: question.table_id)
        for name, questions in (("train", train), ("validation", validation), ("test", test)):
            parts[name] += questions
    return Splits(**parts)


def _read_wtq(folder: Path | None) -> tuple[list[Question], list[Question]]:
    if folder is None:
        [archive] = locate(WTQ, {"archive": [WTQ_ARCHIVE]})["archive"]
        return _read_archive(archive)
    files = {name: find_files(folder / WTQ, name) for name in ("tables", "train", "test")}
    tables = {}
    for number, row in enumerate(read_raw(files["tables"])):
        _need(row, ("table", "header", "rows"), f"table {number} of {WTQ}")
        tables[row["table"]] = table.table_text(row["header"], row["rows"])
    train, test = ([wtq_question(row, tables) for row in read_raw(files[name])] for name in ("train", "test"))
    return train, test


def wtq_question(row: Mapping[str, Any], tables: Mapping[str, str]) -> Question:
    """A row with `id`, `question`, `table` and `answer` as a record."""
    _need(row, ("id", "question", "table", "answer"), f"question {row.get('id')} of {WTQ}")
    if row["table"] not in tables:
        raise DataError(f"question {row['id']} of {WTQ} is about {row['table']}, which is not among the tables")
    return Question(
        source=WTQ,
        question_id=row["id"],
        text=" ".join(row["question"].split()),
        table_id=row["table"],
        table=tables[row["table"]],
        values=tuple(_TRAILING.sub("", str(value)) for value in row["answer"]),
    )


def _read_archive(archive: Path) -> tuple[list[Question], list[Question]]:
    """The official release: questions as TSV, tables as CSV."""
    try:
        with zipfile.ZipFile(archive) as packed:
            [root] = {name.partition("/")[0] for name in packed.namelist()}
            splits = {
                name: list(tsv_rows(packed.read(f"{root}/data/{file}.tsv").decode()))
                for name, file in (("train", "training"), ("test", "pristine-unseen-tables"))
            }
            needed = {row["table"] for rows in splits.values() for row in rows}
            tables = {name: csv_table(packed.read(f"{root}/{name}").decode()) for name in sorted(needed)}
    except (zipfile.BadZipFile, KeyError, ValueError, UnicodeDecodeError) as error:
        raise DataError(f"{archive} is not the release archive of WikiTableQuestions: {error}. Delete it") from error
    train, test = ([wtq_question(row, tables) for row in splits[name]] for name in ("train", "test"))
    return train, test


def tsv_rows(text: str) -> Iterator[dict[str, Any]]:
    """The rows of an official file of questions; `|` parts the values of an answer.

    >>> list(tsv_rows("id\\tutterance\\tcontext\\ttargetValue\\nnt-0\\twhat?\\tcsv/1.csv\\ta\\\\pb|c"))
    [{'id': 'nt-0', 'question': 'what?', 'table': 'csv/1.csv', 'answer': ['a|b', 'c']}]
    """
    for line in text.splitlines()[1:]:
        identity, question, name, answer = line.split("\t")
        values = [_unescaped(value) for value in answer.split("|")]
        yield {"id": identity, "question": _unescaped(question), "table": name, "answer": values}


def _unescaped(text: str) -> str:
    for escaped, plain in _ESCAPES.items():
        text = text.replace(escaped, plain)
    return text


def csv_table(text: str) -> str:
    """An official table, in which quotes within cells are escaped with backslashes."""
    rows = list(csv.reader(io.StringIO(text), doublequote=False, escapechar="\\"))
    return str(table.table_text(rows[0], rows[1:]))


def _read_tatqa(folder: Path | None) -> tuple[list[Question], list[Question]]:
    if folder is None:
        files = locate(TATQA, ONLINE)
        contexts = [[_plain_context(row) for row in json.loads(files[name][0].read_bytes())] for name in ONLINE]
    else:
        place = folder / TATQA
        name = "train_from_dev" if list(place.glob("train_from_dev.*")) else "train"
        contexts = [list(read_raw(find_files(place, file))) for file in (name, "test")]
    train, test = ([question for row in rows for question in tatqa_questions(row)] for rows in contexts)
    return train, test


def _plain_context(row: Mapping[str, Any]) -> dict[str, Any]:
    """An official context in the prepared layout."""
    return {
        "id": row["table"]["uid"],
        "table": row["table"]["table"],
        "paragraphs": [entry["text"] for entry in sorted(row["paragraphs"], key=lambda entry: entry["order"])],
        "questions": row["questions"],
    }


def tatqa_questions(row: Mapping[str, Any]) -> Iterator[Question]:
    """The questions of a context."""
    _need(row, ("id", "table", "paragraphs", "questions"), f"context {row.get('id')} of {TATQA}")
    header, rows = financial_table(row["table"])
    text = table.table_text(header, rows, financial=True)
    for entry in row["questions"]:
        answer = entry["answer"]
        yield Question(
            source=TATQA,
            question_id=entry["uid"],
            text=" ".join(entry["question"].split()),
            table_id=row["id"],
            table=text,
            values=tuple(gold_texts(answer if isinstance(answer, list) else [answer])),
            scale=entry["scale"],
            derivation=entry.get("derivation") or "",
            numeric=entry["answer_type"] in ("arithmetic", "count"),
            paragraphs=tuple(" ".join(text.split()) for text in row["paragraphs"]),
        )


def gold_texts(values: Sequence[Any]) -> Iterator[str]:
    """The values of a gold answer without empty ones, amounts as plain numbers: they are compared as such.

    >>> list(gold_texts(["$ 1,496.5", "", "(3)", "4.5%", "net  sales"]))
    ['1496.5', '-3', '4.5%', 'net sales']
    """
    for value in values:
        text = " ".join(str(value).split())
        amount = cells.read_amount(text)
        if text:
            yield text if amount is None or "%" in text else cells.number_text(amount)


def financial_table(rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table whose first rows are headers.

    >>> financial_table([["", "Fiscal", ""], ["", "2019", "2018"], ["Sales", "$ 5", "$ 6"]])
    (['item', 'Fiscal 2019', '2018'], [['Sales', '$ 5', '$ 6']])
    """
    count = 0
    while count < len(rows) - 1 and _is_header(rows[count]):
        count += 1
    width = max(map(len, rows))
    padded = [[*row, *[""] * (width - len(row))] for row in rows]
    titles = [" ".join(part for row in padded[: count or 1] if (part := row[index].strip())) for index in range(width)]
    return [titles[0] or "item", *titles[1:]], padded[count or 1 :]


def _is_header(row: Sequence[str]) -> bool:
    if not row[0].strip():
        return True
    filled = [cell for cell in row[1:] if cell.strip()]
    return bool(filled) and not any(_is_amount(cell) for cell in filled)


def _is_amount(cell: str) -> bool:
    number = cells.read_amount(cell)
    is_year = number is not None and cell.strip().isdigit() and 1980 <= number <= 2040
    return (number is not None and not is_year) or cell.strip() in cells.EMPTY - {""}


def _need(row: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    missing = [key for key in keys if key not in row]
    if missing:
        raise DataError(f"{where} has no {', '.join(missing)}; found {', '.join(sorted(row)) or 'nothing'}")
