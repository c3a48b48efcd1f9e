"""nlvr: its files and splits, its tool, and a short run, on a few rows made here in the form of the corpus."""

from __future__ import annotations

import asyncio
import io
import json
import random
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL", reason="nlvr is about pictures: pip install 'agent-r1[images]'")

from PIL import Image, ImageDraw

from agent_r1.data import load_tasks
from agent_r1.errors import DataError
from agent_r1.tools import ToolContext
from recipes.nlvr.corpus import read_corpus
from recipes.nlvr.data_preprocess.process_nlvr import (
    caption,
    caption_row,
    demonstration,
    majority,
    split_examples,
    write_data,
)
from recipes.nlvr.tools import crop
from tests.helpers.forks import run_python

ROOT = Path(__file__).parents[2]
YELLOW, BLUE = (255, 255, 0), (0, 153, 255)


def scene(count: int) -> tuple[bytes, list[list[dict[str, Any]]]]:
    """A picture and what is in it: `count` yellow squares in the first box, a blue circle in the second."""
    picture = Image.new("RGB", (400, 100), (211, 211, 211))
    pen = ImageDraw.Draw(picture)
    for gap in (100, 250):
        pen.rectangle((gap, 0, gap + 49, 99), fill=(128, 128, 128))
    squares = [{"type": "square", "color": "Yellow", "size": 20, "x_loc": 25 * i, "y_loc": 10} for i in range(count)]
    for shape in squares:
        pen.rectangle((shape["x_loc"], 10, shape["x_loc"] + 19, 29), fill=YELLOW)
    pen.ellipse((190, 40, 210, 60), fill=BLUE)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue(), [squares, [{"type": "circle", "color": "#0099ff", "size": 20}], []]


def write_corpus(folder: Path, splits: Sequence[str] = ("dev", "test"), presentations: int = 12) -> Path:
    """NLVR's files: rows, and the pictures in an archive."""
    folder.mkdir()
    with tarfile.open(folder / "images_some.tar.xz", "w:xz") as archive:
        for split in splits:
            rows = []
            for number in range(4 * presentations):
                identifier = f"{1000 + number // 4}-{number % 4}"
                png, boxes = scene(number % 4)
                member = tarfile.TarInfo(f"nlvr/{split}/images/0/{split}-{identifier}-0.png")
                member.size = len(png)
                archive.addfile(member, io.BytesIO(png))
                sentence = f"There are at least {number // 4 % 3 + 1} yellow squares"
                label = str(number % 4 >= number // 4 % 3 + 1).lower()
                rows.append({"identifier": identifier, "sentence": sentence, "label": label, "structured_rep": boxes})
            (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_without_the_training_split_dev_is_divided_by_presentation(tmp_path: Path) -> None:
    splits = split_examples(read_corpus(write_corpus(tmp_path / "nlvr")))
    shown = {name: {example.presentation for example in examples} for name, examples in splits.items()}
    assert not shown["train"] & shown["validation"]
    assert len(splits["train"]) + len(splits["validation"]) == 48
    assert 4 <= len(splits["validation"]) < len(splits["train"])
    assert len(splits["test"]) == 48


def test_with_the_training_split_the_official_splits_are_kept(tmp_path: Path) -> None:
    found = read_corpus(write_corpus(tmp_path / "nlvr", ("train", "dev", "test"), presentations=2))
    splits = split_examples(found)
    assert [splits[name] for name in ("train", "validation", "test")] == [found[s] for s in ("train", "dev", "test")]


def test_a_missing_picture_and_a_missing_split_are_named(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "nlvr", presentations=1)
    (folder / "images_some.tar.xz").unlink()
    with pytest.raises(DataError, match=r"example 1000-0 of dev has no picture dev-1000-0-0\.png"):
        read_corpus(folder)
    with pytest.raises(DataError, match="no folder"):
        read_corpus(tmp_path / "nowhere")


def test_the_majority_class_and_captions() -> None:
    class Labeled:
        def __init__(self, label: str) -> None:
            self.label = label

    assert majority([Labeled("true"), Labeled("false"), Labeled("true")]) == ("true", 2 / 3)
    _, [first, second, third] = scene(2)
    assert [caption(box) for box in (first, second, third)] == ["2 yellow squares", "1 blue circle", "nothing"]


def test_crop_returns_the_box_that_was_asked_for(tmp_path: Path) -> None:
    write_data(tmp_path / "data", write_corpus(tmp_path / "nlvr", presentations=4))
    task = load_tasks([tmp_path / "data" / "train.jsonl"])[3]
    pixels = []
    for box in (1, 2, 3):
        response, _, _ = asyncio.run(crop.execute({"box": box}, context=ToolContext(task=task)))
        [image] = response.images
        assert image.size == (100, 100)
        pixels.append((image.getpixel((5, 15)), image.getpixel((50, 50))))
    assert pixels[0][0] == YELLOW
    assert pixels[1][1] == BLUE
    assert pixels[2] == ((211, 211, 211), (211, 211, 211))
    with pytest.raises(ValueError, match="no box 4"):
        asyncio.run(crop.execute({"box": 4}, context=ToolContext(task=task)))


def test_demonstrations_look_at_every_box_or_answer_at_once(tmp_path: Path) -> None:
    [example, *_] = read_corpus(write_corpus(tmp_path / "nlvr", presentations=1))["dev"]
    rng = random.Random(0)
    lengths = {len(demonstration(example, rng)["messages"]) for _ in range(30)}
    assert lengths == {2, 6}
    assert len(caption_row(example)["messages"]) == 6


@pytest.mark.whole
def test_a_short_run_on_a_few_rows(tmp_path: Path) -> None:
    write_corpus(tmp_path / "nlvr", presentations=8)
    words = ["train", str(ROOT / "recipes" / "nlvr"), f"run.folder={tmp_path / 'runs'}"]
    short = ["sft.steps=2", "sft.batch_size=4", "trainer.steps=1", "rollout.groups_per_step=2", "rollout.group_size=2"]
    env = {"AGENT_R1_DATA": str(tmp_path)}
    done = run_python(
        "-m", "agent_r1.cli", *words, *short, "eval.max_tasks=2", "rollout.max_tokens=8", cwd=ROOT, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "runs" / "nlvr" / "summary.json").read_text())["steps"] == 1
