"""geometry3k: its data script, its answers and a run, on a few rows drawn here in the form of the hub's files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

pytest.importorskip("PIL", reason="figures are images: pip install 'agent-r1[images]'")

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw

from agent_r1.data import load_tasks
from agent_r1.errors import DataError
from agent_r1.images import pictures_in
from recipes.geometry3k.data_preprocess.process_geometry3k import SPLITS, task_rows, write_data
from recipes.geometry3k.latex import boxed, same_answer, value_of
from tests.helpers.forks import run_python
from tests.helpers.tiny_vlms import make_tiny_vlm

ROOT = Path(__file__).parents[2]


def figure(side: int) -> bytes:
    """A right triangle with the length of one side."""
    picture = Image.new("RGB", (60, 40), "white")
    pen = ImageDraw.Draw(picture)
    pen.polygon([(5, 35), (5, 5), (50, 35)], outline="black")
    pen.text((8, 20), str(side), fill="black")
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """A folder with the three files, as the hub has them."""
    folder = tmp_path / "official"
    folder.mkdir()
    for number, split in enumerate(SPLITS):
        rows = [
            {
                "images": [{"bytes": figure(10 * number + row), "path": None}],
                "problem": "<image>Find x.",
                "answer": f"{row} \\sqrt {{ 2 }}",
            }
            for row in range(4)
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}-00000-of-00001.parquet")
    return folder


def test_the_rows_have_their_figures_in_the_place_of_the_mark(official: Path, tmp_path: Path) -> None:
    write_data(tmp_path / "data", official)
    splits = {split: load_tasks([tmp_path / "data" / f"{split}.jsonl"]) for split in SPLITS}
    assert [len(tasks) for tasks in splits.values()] == [4, 4, 4]
    first = splits["train"][0]
    parts = first.prompt[-1]["content"]
    assert [part["type"] for part in parts] == ["image", "text"]
    assert parts[1]["text"].startswith("Find x.")
    assert first.ground_truth == "0 \\sqrt { 2 }"
    hashes = {
        picture.content_hash for tasks in splits.values() for task in tasks for picture in pictures_in(task.prompt)
    }
    assert len(hashes) == 12


def test_a_file_of_another_dataset_is_refused_by_row(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"question": "?", "answer": "7"}\n')
    with pytest.raises(DataError, match=r"row 0 of train is not of geometry3k.*found answer, question"):
        list(task_rows([tmp_path / "x.jsonl"], "train"))


@pytest.mark.parametrize(
    ("given", "truth", "same"),
    [
        ("3", "3", True),
        ("3.0", "3", True),
        ("2\\sqrt{221}", "2 \\sqrt { 221 }", True),
        ("29.73", "2 \\sqrt { 221 }", True),
        ("\\frac{\\sqrt{3}}{2}", "0.8660", True),
        ("x = 7", "7", True),
        ("45^\\circ", "45", True),
        ("1,200\\text{ cm}", "1200", True),
        ("12\\pi", "37.699", True),
        ("B", "(B)", True),
        ("C", "B", False),
        ("3", "30", False),
        ("", "3", False),
        ("\\sqrt{-1}", "1", False),
        ("\\sqrt[3]{-8}", "-2", False),
        ("9^9^9^9", "1", False),
        ("(" * 5000, "1", False),
        ("1/0", "1", False),
        ("__import__('os')", "1", False),
    ],
)
def test_answers_are_compared_by_value(given: str, truth: str, same: bool) -> None:
    assert same_answer(given, truth) is same


def test_only_what_is_boxed_last_and_closed_is_an_answer() -> None:
    assert boxed("\\boxed{1} or \\boxed{\\frac{1}{2}}") == "\\frac{1}{2}"
    assert boxed("\\boxed{1") is None
    assert boxed("7") is None
    assert value_of("1 + 2 * 3 ^ 2") == 19


@pytest.mark.whole
def test_a_short_run_on_drawn_rows(official: Path, tmp_path: Path) -> None:
    model = make_tiny_vlm("smolvlm", tmp_path / "model")
    words = ["train", str(ROOT / "recipes" / "geometry3k"), f"model.path={model}", f"run.folder={tmp_path / 'runs'}"]
    short = ["trainer.steps=1", "rollout.groups_per_step=2", "rollout.group_size=2", "rollout.max_tokens=8"]
    small = [
        "model.dtype=float32",
        "rollout.context_length=1024",
        "eval.max_tasks=2",
        "trainer.gradient_checkpointing=false",
    ]
    env = {"AGENT_R1_DATA": str(tmp_path)}
    (tmp_path / "geometry3k").symlink_to(official)
    done = run_python("-m", "agent_r1.cli", *words, *short, *small, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "runs" / "geometry3k" / "summary.json").read_text())["steps"] == 1
