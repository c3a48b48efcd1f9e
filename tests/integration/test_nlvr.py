"""nlvr: its files and splits, drawn scenes, the grammar, rows, and a short run. The corpus is made here in its form;
`nlvr_examples.jsonl` holds 16 training examples of NLVR (lil-lab/nlvr, CC BY 4.0)."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import re
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL", reason="nlvr is about pictures: pip install 'agent-r1[images]'")

import numpy as np
from PIL import Image

from agent_r1.checks.rows import answer_episode
from agent_r1.data import load_tasks, read_rows, write_rows
from agent_r1.errors import DataError
from agent_r1.tools import ToolContext
from agent_r1.types import Task
from recipes.nlvr.corpus import read_corpus
from recipes.nlvr.data_preprocess.process_nlvr import Amounts, majority, split_examples, understood, write_data
from recipes.nlvr.grammar import Statement, random_statement, understand, varied_statement
from recipes.nlvr.phrases import Amount, read, write
from recipes.nlvr.prepare import tokenizer_rows
from recipes.nlvr.reward_fn import gold_answer, last_word, score
from recipes.nlvr.rows import caption, demonstration, demonstration_in_words, task_row
from recipes.nlvr.scenes import (
    BOX_SIZE,
    COLORS,
    NUM_BOXES,
    SIZES,
    Box,
    Scene,
    changed,
    draw_picture,
    is_tower,
    random_box,
    random_tower,
    tower,
)
from recipes.nlvr.statements import PairMaker
from recipes.nlvr.tools import box_of, crop
from recipes.nlvr.wording import reworded
from tests.helpers.forks import run_python

ROOT = Path(__file__).parents[2]
YELLOW, BLUE, FLOOR = (255, 255, 0), (0, 153, 255), (211, 211, 211)
REAL = [json.loads(line) for line in Path(__file__).with_name("nlvr_examples.jsonl").read_text().splitlines()]
SMALL = Amounts(demonstrations=8, sentences=12, tasks=4, workers=2)


def item(kind: str, color: str, size: int, x: int, y: int) -> dict[str, Any]:
    return {"type": kind, "color": color, "size": size, "x_loc": x, "y_loc": y}


def scene(count: int) -> tuple[bytes, list[list[dict[str, Any]]]]:
    """A picture and what is in it: `count` yellow squares in the first box, a blue circle in the second."""
    squares = [item("square", "Yellow", 20, 25 * i, 10) for i in range(count)]
    boxes = [squares, [item("circle", "#0099ff", 20, 40, 40)], []]
    buffer = io.BytesIO()
    draw_picture(tuple(map(tuple, boxes))).save(buffer, "PNG")
    return buffer.getvalue(), boxes


def box_of_caption(text: str) -> Box:
    """A box that has this caption, made from the caption alone."""
    words = text.split()
    if words[0] == "tower":
        return tower(words[1:])
    return tuple(_item_of_words(*part.split()) for part in text.split(", ") if part != "nothing")


def _item_of_words(cell: str, size_name: str, color: str, kind: str, *places: str) -> dict[str, Any]:
    size = next(pixels for pixels, name in SIZES.items() if name == size_name)
    end, walls = BOX_SIZE - size, [place for place in places if place != "corner"]
    y, x = (min(max(20 * int(digit) + 10 - size // 2, 2), end - 2) for digit in cell)
    if "corner" in places and len(walls) == 1:  # the other wall is a pixel away
        x, y = (1 if x < end / 2 else end - 1), (1 if y < end / 2 else end - 1)
    x, y = (
        (0 if "left" in walls else end if "right" in walls else x),
        (0 if "top" in walls else end if "bottom" in walls else y),
    )
    return item(kind, COLORS[color], size, x, y)


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


# --- files and splits ---------------------------------------------------------------------------------------------


def test_the_drawn_rows_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "nlvr", presentations=4)
    for workers in (1, 3):
        write_data(tmp_path / str(workers), corpus, replace(SMALL, workers=workers))
    for name in ("warm_start.jsonl", "train.jsonl"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()


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


def test_the_majority_class() -> None:
    class Labeled:
        def __init__(self, label: str) -> None:
            self.label = label

    assert majority([Labeled("true"), Labeled("false"), Labeled("true")]) == ("true", 2 / 3)


def test_examples_whose_label_the_grammar_contradicts_are_left_out(tmp_path: Path) -> None:
    examples = read_corpus(write_corpus(tmp_path / "nlvr", presentations=1))["dev"]
    assert len(understood(examples)) == 4
    wrong = [type(e)(**{**{f: getattr(e, f) for f in e.__slots__}, "label": "true"}) for e in examples]
    assert [example.identifier for example, _ in understood(wrong)] == ["1000-1", "1000-2", "1000-3"]


# --- drawn scenes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", REAL, ids=lambda row: row["identifier"])
def test_a_drawn_scene_looks_like_the_real_picture(row: dict[str, Any]) -> None:
    real = np.asarray(Image.open(io.BytesIO(base64.b64decode(row["png"]))).convert("RGB"), dtype=float)
    drawn = np.asarray(draw_picture(tuple(map(tuple, row["structured_rep"]))), dtype=float)
    assert np.abs(real - drawn).mean() < 0.15
    assert (np.abs(real - drawn).max(axis=2) > 64).mean() < 0.001


def test_scattered_items_stay_in_their_box_and_apart() -> None:
    rng = random.Random(0)
    for _ in range(30):
        box = random_box(rng)
        covered = np.zeros((100, 100), dtype=int)
        for one in box:
            assert min(one["x_loc"], one["y_loc"]) >= 0
            assert max(one["x_loc"], one["y_loc"]) <= 100 - one["size"]
            covered[one["y_loc"] : one["y_loc"] + one["size"], one["x_loc"] : one["x_loc"] + one["size"]] += 1
        assert covered.max() == 1


def test_a_change_keeps_towers_towers_and_leaves_something_in_the_box() -> None:
    rng = random.Random(0)
    for make in (random_tower, random_box):
        before = make(rng)
        after = [changed(before, rng) for _ in range(20)]
        assert all(after)
        assert any(box != before for box in after)
        assert {is_tower(box) for box in after} == {is_tower(before)}


def test_a_lone_square_in_the_air_is_no_tower() -> None:
    assert is_tower((item("square", "Black", 20, 40, 80),))
    assert not is_tower((item("square", "Black", 20, 40, 30),))
    assert caption((item("square", "Black", 20, 40, 0),)) == "02 medium black square top"


def test_captions_name_all_that_is_in_a_box() -> None:
    assert caption(tower(["yellow", "black", "blue"])) == "tower yellow black blue"
    box = (
        item("square", "Yellow", 30, 70, 70),
        item("circle", "#0099ff", 10, 3, 4),
        item("triangle", "Black", 20, 0, 50),
    )
    told = "00 small blue circle, 30 medium black triangle left, 44 big yellow square bottom right corner"
    assert caption(box) == told
    assert caption(tuple(reversed(box))) == told
    assert caption(()) == "nothing"


def test_a_corner_that_is_a_pixel_away_is_in_the_caption() -> None:
    assert caption((item("circle", "Black", 10, 90, 89),)) == "44 small black circle right corner"
    assert caption((item("circle", "Black", 10, 90, 88),)) == "44 small black circle right"


def test_items_of_one_cell_and_column_are_told_from_the_top_down() -> None:
    one, other = item("circle", "Black", 10, 40, 40), item("square", "Black", 10, 40, 50)
    assert caption((other, one)) == caption((one, other)) == "22 small black circle, 22 small black square"


def test_captions_number_the_items_that_are_counted() -> None:
    meaning = understand("There is a box with 2 black items and a circle", towers=False)
    assert meaning is not None
    box = (
        item("circle", "Black", 10, 3, 4),
        item("square", "Yellow", 10, 43, 4),
        item("square", "Black", 10, 3, 44),
    )
    numbered = "00 small black circle a1 b1, 02 small yellow square, 20 small black square a2"
    assert caption(box, meaning.counted) == numbered
    assert (meaning.steps(box), meaning.note(box)) == (["a2 == 2 yes ,", "b1 >= 1 yes ,"], 1)


# --- the grammar --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", REAL, ids=lambda row: row["identifier"])
def test_real_sentences_mean_what_their_labels_say(row: dict[str, Any]) -> None:
    boxes = tuple(map(tuple, row["structured_rep"]))
    meaning = understand(row["sentence"], towers=all(map(is_tower, boxes)))
    assert meaning is not None
    assert str(meaning.is_true(boxes)).lower() == row["label"]


@pytest.mark.parametrize(
    ("sentence", "colors", "true"),
    [
        ("There is a tower with a blue block over a yellow block", ["yellow", "blue"], True),
        ("There is a tower with a blue block over a yellow block", ["blue", "yellow"], False),
        ("There is a tower with exactly two blocks", ["blue", "yellow", "blue"], False),
        ("there are 2 blue blocks", ["blue", "yellow", "blue"], True),
        ("ll towers have a black base", ["black"], True),
        ("There is a tower with 2 black blocks stacked together", ["black", "blue", "black"], False),
        ("There is at most one tower with a yellow block at the top", ["yellow"], False),
    ],
)
def test_meanings_of_towers(sentence: str, colors: list[str], true: bool) -> None:
    meaning = understand(sentence, towers=True)
    assert meaning is not None
    others = [] if "2 blue blocks" in sentence else [tower(colors)] * 2
    assert meaning.is_true((tower(colors), *others, *[tower(["black"])] * (2 - len(others)))) is true


def test_a_sentence_that_no_rule_fits_has_no_meaning() -> None:
    assert understand("The second picture is prettier than the first", towers=False) is None


def test_what_a_template_writes_it_reads() -> None:
    template, rng = "there %be <q:count> tower%s [with|that has] <k:count> <c:color> block%s", random.Random(0)
    for _ in range(50):
        text, values = write(template, rng)
        assert read(template, text) == values
    assert read(template, "There are at least two towers with no blue blocks.") == {
        "q": Amount(">=", 2),
        "k": Amount("==", 0),
        "c": "blue",
    }
    assert read(template, "There are at least two houses with no blue blocks.") is None


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Statement, Scene, Scene]]:
    """Drawn pairs, half of them of towers and half of scattered items."""
    maker, found = PairMaker(random.Random(0), num_boxes=60), []
    while min(sum(statement.towers == towers for statement, _, _ in found) for towers in (True, False)) < 40:
        found.append(maker.pair())
    return found


def test_a_pair_is_true_and_false_and_differs_in_one_box(pairs: list[tuple[Statement, Scene, Scene]]) -> None:
    near = 0
    for statement, true, false in pairs:
        assert (statement.meaning.is_true(true), statement.meaning.is_true(false)) == (True, False)
        [(one, other)] = [boxes for boxes in zip(true, false, strict=True) if boxes[0] != boxes[1]]
        near += abs(len(one) - len(other)) <= 1 and sum(new not in one for new in other) <= 1
    assert near > 0.8 * len(pairs), "most pairs are one small change apart"


def test_captions_alone_tell_the_notes_and_the_label(pairs: list[tuple[Statement, Scene, Scene]]) -> None:
    for statement, *scenes in pairs:
        for label, scene in zip((True, False), scenes, strict=True):
            told = tuple(box_of_caption(caption(box)) for box in scene)
            assert [caption(box) for box in told] == [caption(box) for box in scene]
            assert statement.meaning.notes(told) == statement.meaning.notes(scene)
            assert statement.meaning.is_true(told) is label


def test_the_steps_of_a_demonstration_decide_its_note_and_the_tally_the_answer(
    pairs: list[tuple[Statement, Scene, Scene]],
) -> None:
    for statement, *scenes in pairs:
        notes_by_steps: dict[tuple[str, ...], set[Any]] = {}
        for box in (box for scene in scenes for box in scene):
            steps = tuple(statement.meaning.steps(box))
            if steps:
                notes_by_steps.setdefault(steps, set()).add(statement.meaning.note(box))
        assert all(len(notes) == 1 for notes in notes_by_steps.values()), statement.sentence
        tallies = [statement.meaning.tally(statement.meaning.notes(scene)) for scene in scenes]
        assert tallies[0] != tallies[1]


@pytest.mark.whole
def test_sentences_are_read_as_they_were_written() -> None:
    rng, misread, unread = random.Random(1), 0, 0
    for _ in range(150):
        statement = random_statement(rng)
        meaning = understand(statement.sentence, towers=statement.towers)
        make = random_tower if statement.towers else random_box
        scenes = [tuple(make(rng) for _ in range(NUM_BOXES)) for _ in range(10)]
        unread += meaning is None
        misread += meaning is not None and any(meaning.is_true(s) != statement.meaning.is_true(s) for s in scenes)
    assert misread == 0
    assert unread < 30, "only slips of the finger are not read"


def test_other_words_leave_colors_and_numbers() -> None:
    text, rng = (
        "there are exactly two towers with at least 3 yellow blocks and a black block at the base",
        random.Random(0),
    )
    found = {reworded(text, rng, blocks=True) for _ in range(200)}
    assert len(found) > 15
    kept = {"two", "3", "yellow", "black", "base"}
    assert all(kept <= set(sentence.split()) for sentence in found)


def test_varied_sentences_join_properties_and_have_a_plan_each() -> None:
    rng = random.Random(2)
    statements = [varied_statement(rng) for _ in range(200)]
    assert sum(" , " in statement.meaning.plan for statement in statements) > 20
    assert all(" : " in statement.meaning.plan and len(statement.meaning.counted) <= 3 for statement in statements)


# --- rows, tool and reward ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", 1.0),
        ("tower blue = 1 | 0 0 1 | true", 1.0),
        ("True.", 1.0),
        ("false", 0.0),
        ("true false", 0.0),
        ("true or so", 0.0),
        ("untrue", 0.0),
        ("", 0.0),
    ],
)
def test_the_last_word_is_scored(text: str, value: float) -> None:
    task = Task(task_id="0", prompt=({"role": "user", "content": "?"},), reward_model={"ground_truth": "true"})
    assert score(task, answer_episode(text))["score"] == value
    assert score(task, answer_episode(gold_answer(task)))["score"] == 1.0


def test_a_demonstration_looks_at_every_box_and_ends_with_the_label() -> None:
    for row in REAL:
        boxes = tuple(map(tuple, row["structured_rep"]))
        meaning = understand(row["sentence"], towers=all(map(is_tower, boxes)))
        assert meaning is not None
        picture = draw_picture(boxes)
        messages = demonstration(row["sentence"], picture, boxes, meaning)["messages"]
        assert [message["role"] for message in messages] == ["user"] + ["assistant", "tool"] * 3 + ["assistant"]
        assert last_word(messages[-1]["content"]) == row["label"]
        shown = [message["content"][0]["image"] for message in messages if message["role"] == "tool"]
        assert [image.tobytes() for image in shown] == [box_of(picture, n).tobytes() for n in (1, 2, 3)]
        said = [message["content"] for message in messages if message["role"] == "assistant"][1:]
        assert [text.partition(" = ")[0] for text in said] == [caption(box, meaning.counted) for box in boxes]
        in_words = demonstration_in_words(row["sentence"], boxes, meaning)["messages"]
        assert [m for m in in_words if m["role"] == "assistant"] == [m for m in messages if m["role"] == "assistant"]
        assert [m["content"] for m in in_words if m["role"] == "tool"] == [caption(box) for box in boxes]


def test_a_demonstration_counts_notes_and_adds_up() -> None:
    sentence = "There are 2 towers with at least two black blocks"
    meaning = understand(sentence, towers=True)
    assert meaning is not None
    scene = tower(["black", "yellow", "black"]), tower(["blue"]), tower(["black", "black"])
    messages = demonstration_in_words(sentence, scene, meaning)["messages"]
    assert [message["content"] for message in messages if message["role"] == "assistant"] == [
        "boxes with a black item >= 2 : == 2",
        "tower black a1 yellow black a2 = a2 >= 2 yes , 1",
        "tower blue = a0 >= 2 no , 0",
        "tower black a1 black a2 = a2 >= 2 yes , 1 | 1 0 1 = 2 == 2 yes | true",
    ]


def test_rare_words_of_sentences_are_few_tokens() -> None:
    question = "True or false: There is a box with {} close to touching the edge"
    rows = [{"messages": [{"role": "user", "content": question.format(number)}]} for number in range(1500)]
    read = "".join(row["messages"][0]["content"] for row in tokenizer_rows(rows))
    assert all(question.format(number) in read for number in (0, 750, 1499))
    assert len(tokenizer_rows(rows)) <= 1000, "more are not read by the tokenizer"


def test_the_data_has_real_and_drawn_rows(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_r1.console._SECONDS_BETWEEN_LINES", 0.0)
    write_data(tmp_path / "data", write_corpus(tmp_path / "nlvr", presentations=4), SMALL)
    assert re.search(r"^drawing: \d+ rows after 0 min$", capfd.readouterr().err, re.MULTILINE)
    assert sorted(path.name for path in (tmp_path / "data").glob("*.jsonl")) == [
        *("test.jsonl", "train.jsonl", "validation.jsonl", "warm_start.jsonl")
    ]
    train = load_tasks([tmp_path / "data" / "train.jsonl"])
    drawn = [task for task in train if task.extra_info["identifier"] == "drawn"]
    assert sorted(task.ground_truth for task in drawn) == ["false", "false", "true", "true"]
    assert len(train) - len(drawn) == len(split_examples(read_corpus(tmp_path / "nlvr"))["train"])
    warm = list(read_rows(tmp_path / "data" / "warm_start.jsonl"))
    assert {len(row["messages"]) for row in warm} <= {2, 6, 8}
    in_words = [row for row in warm if isinstance(row["messages"][0]["content"], str)]
    assert len(in_words) == SMALL.sentences
    answers = [last_word(row["messages"][-1]["content"]) for row in in_words]
    assert answers.count("true") == answers.count("false") == SMALL.sentences // 2
    assert all(isinstance(message["content"], str) for row in in_words for message in row["messages"])
    for name in ("validation", "test"):
        assert all(
            task.extra_info["identifier"] != "drawn" for task in load_tasks([tmp_path / "data" / f"{name}.jsonl"])
        )


def test_crop_returns_the_box_that_was_asked_for(tmp_path: Path) -> None:
    png, _ = scene(3)
    write_rows(tmp_path / "rows.jsonl", [task_row("It is so.", Image.open(io.BytesIO(png)), "true")])
    [task] = load_tasks([tmp_path / "rows.jsonl"])
    pixels = []
    for box in (1, 2, 3):
        response, _, _ = asyncio.run(crop.execute({"box": box}, context=ToolContext(task=task)))
        [image] = response.images
        assert image.size == (100, 100)
        pixels.append((image.getpixel((5, 15)), image.getpixel((50, 50))))
    assert pixels[0][0] == YELLOW
    assert pixels[1][1] == BLUE
    assert pixels[2] == (FLOOR, FLOOR)
    with pytest.raises(ValueError, match="no box 4"):
        asyncio.run(crop.execute({"box": 4}, context=ToolContext(task=task)))


@pytest.mark.whole
def test_a_short_run_on_a_few_rows(tmp_path: Path) -> None:
    write_data(tmp_path / "runs" / "nlvr_data", write_corpus(tmp_path / "nlvr", presentations=8), SMALL)
    words = ["train", str(ROOT / "recipes" / "nlvr"), f"run.folder={tmp_path / 'runs'}"]
    short = ["sft.steps=2", "sft.batch_size=4", "trainer.steps=1", "rollout.groups_per_step=2", "rollout.group_size=2"]
    done = run_python("-m", "agent_r1.cli", *words, *short, "eval.max_tasks=2", "rollout.max_tokens=8", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "runs" / "nlvr" / "summary.json").read_text())["steps"] == 1
