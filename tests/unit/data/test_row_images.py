"""Images of data rows: read when a row is loaded, in every form, with one error that names file, row and image."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from agent_r1.data import load_tasks, row_files, write_rows
from agent_r1.data.demonstrations import load_demonstrations
from agent_r1.errors import DataError
from agent_r1.images import Picture, image_token_ids, is_image_id, pictures_in, read_picture
from agent_r1.types import Task
from tests.helpers.seeing import seeing_renderer

DOT, LINE = Image.new("RGB", (3, 2), (9, 8, 7)), Image.new("RGB", (5, 1), (1, 2, 3))
SEEN = {"dot": read_picture(DOT), "line": read_picture(LINE)}
TEXT = {"type": "text", "text": "What is this?"}


def png(image: Image.Image = DOT) -> bytes:
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


def part(name: str) -> dict[str, Any]:
    return {"type": "image", "image": SEEN[name]}


def load(folder: Path, *rows: Any, name: str = "rows.jsonl") -> list[Task]:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_tasks([folder / name])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pictures").mkdir()
    DOT.save(tmp_path / "pictures" / "dot.png")
    LINE.save(tmp_path / "pictures" / "line.png")
    (tmp_path / "pictures" / "text.png").write_text("not an image")
    return tmp_path


URL = f"data:image/png;base64,{base64.b64encode(png()).decode()}"


@pytest.mark.parametrize(
    "shown",
    [
        {"type": "image_url", "image_url": {"url": URL}},
        {"type": "image_url", "image_url": {"url": "pictures/dot.png"}},
        {"type": "image", "image": "pictures/dot.png"},
        {"type": "image", "path": "pictures/dot.png"},
    ],
)
def test_a_message_of_a_row_may_show_images(folder: Path, shown: dict[str, Any]) -> None:
    [task] = load(folder, {"prompt": [{"role": "user", "content": [shown, TEXT]}]})
    assert task.prompt == ({"role": "user", "content": [part("dot"), TEXT]},)


def test_images_of_a_column_stand_where_the_marks_are(folder: Path) -> None:
    images = ["pictures/dot.png", {"path": "pictures/line.png"}]
    [task] = load(folder, {"question": "Is <image> longer than <image>?", "images": images, "answer": "no"})
    assert task.prompt[0]["content"] == [
        {"type": "text", "text": "Is "},
        part("dot"),
        {"type": "text", "text": " longer than "},
        part("line"),
        {"type": "text", "text": "?"},
    ]
    assert task.ground_truth == "no"


def test_without_marks_they_stand_before_the_text_of_the_last_user_message(folder: Path) -> None:
    prompt = [
        {"role": "system", "content": "Look."},
        {"role": "user", "content": "Hello"},
        {"role": "user", "content": "What is this?"},
    ]
    [task, alone] = load(folder, {"prompt": prompt, "image": "pictures/dot.png"}, {"prompt": "?", "images": []})
    assert task.prompt[:2] == tuple(prompt[:2])
    assert task.prompt[2]["content"] == [part("dot"), TEXT]
    assert alone.prompt == ({"role": "user", "content": "?"},)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "?", "image": "pictures/text.png"}, "image 0 of the row is no image in a format"),
        ({"prompt": "?", "images": ["pictures/dot.png", "pictures/none.png"]}, "image 1 of the row is at"),
        ({"prompt": "?", "image": "../.."}, "outside the folder"),
        ({"prompt": "?", "image": "/etc/passwd"}, "outside the folder"),
        ({"prompt": "?", "image": "https://x/y.png"}, "nothing is downloaded at run time"),
        ({"prompt": "<image> and <image>?", "image": "pictures/dot.png"}, "has 1 images, but 2 marks <image>"),
        ({"prompt": [{"role": "user", "content": [TEXT, {"type": "image"}]}]}, "message 0, part 1 is an image without"),
        ({"prompt": [{"role": "user", "content": [{"type": "image_url", "image_url": "data:image/png;base64,"}]}]},
         "message 0, part 0"),
        ({"prompt": "?", "image": 3}, "image 0 of the row is of type int"),
    ],
)  # fmt: skip
def test_an_image_that_cannot_be_read_is_named_with_its_file_and_row(
    folder: Path, row: dict[str, Any], problem: str
) -> None:
    with pytest.raises(DataError) as refused:
        load(folder, {"prompt": "fine"}, row)
    assert f"{folder / 'rows.jsonl'}, row 1: " in str(refused.value)
    assert problem in str(refused.value)


def test_rows_of_parquet_hold_their_images_as_bytes(folder: Path) -> None:
    """The form of `datasets`, and of the field's usual files: geometry3k has `images` and `<image>` in its problem."""
    import pyarrow
    import pyarrow.parquet

    rows = [
        {"prompt": [{"role": "user", "content": "<image>Find x."}], "images": [{"bytes": png(), "path": None}]},
        {"prompt": [{"role": "user", "content": "Find y."}], "images": []},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "rows.parquet")
    first, second = load_tasks([folder / "rows.parquet"])
    assert first.prompt[0]["content"] == [part("dot"), {"type": "text", "text": "Find x."}]
    assert second.prompt[0]["content"] == "Find y."


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_written_rows_have_their_images_in_a_folder_beside_them(tmp_path: Path, name: str) -> None:
    rows = [
        {"prompt": "What?", "images": [DOT, SEEN["line"]], "answer": "x"},
        {"prompt": "And this?", "images": [DOT], "answer": "y"},
    ]
    write_rows(tmp_path / "data" / name, rows)
    files = {path.name for path in (tmp_path / "data" / "images").iterdir()}
    assert files == {f"{picture.content_hash}.png" for picture in SEEN.values()}
    first, second = load_tasks([tmp_path / "data" / name])
    assert list(pictures_in(first.prompt)) == [SEEN["dot"], SEEN["line"]]
    assert list(pictures_in(second.prompt)) == [SEEN["dot"]]


def test_rows_and_tasks_given_as_objects_keep_their_images(tmp_path: Path) -> None:
    rows = [
        {"question": "<image>?", "image": DOT, "answer": 1},
        {"question": "?", "images": ({"bytes": png(LINE), "path": "x.png"},), "answer": 2},
        Task(task_id="mine", prompt=({"role": "user", "content": [part("dot"), TEXT]},)),
    ]
    [file] = row_files(rows, tmp_path, "train")
    tasks = load_tasks([file])
    assert [list(pictures_in(task.prompt)) for task in tasks] == [[SEEN["dot"]], [SEEN["line"]], [SEEN["dot"]]]
    assert tasks[2].prompt == rows[2].prompt  # type: ignore[attr-defined]
    assert row_files(rows, tmp_path, "train") == [file]


def test_an_object_with_a_broken_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 1: the image .*is no image"):
        row_files([{"prompt": "?"}, {"prompt": "?", "image": {"bytes": b"text", "path": None}}], tmp_path, "train")


def test_demonstrations_show_images(folder: Path) -> None:
    said = [
        {"role": "user", "content": "<image>What is this?"},
        {"role": "assistant", "content": "a dot"},
    ]
    (folder / "rows.jsonl").write_text(json.dumps({"messages": said, "images": ["pictures/dot.png"]}) + "\n")
    renderer = seeing_renderer()
    [[row]] = load_demonstrations([folder / "rows.jsonl"], renderer)
    assert renderer.processor is not None
    encoded = renderer.processor.encode(SEEN["dot"])
    assert tuple(token for token in row.token_ids if is_image_id(token)) == encoded.token_ids
    assert image_token_ids(encoded.key, encoded.num_tokens) == encoded.token_ids


def test_equal_images_of_many_rows_are_one_picture(folder: Path) -> None:
    tasks = load(folder, *({"prompt": f"{i}?", "image": "pictures/dot.png"} for i in range(5)))
    shown = [picture for task in tasks for picture in pictures_in(task.prompt)]
    assert isinstance(shown[0], Picture)
    assert all(picture is shown[0] for picture in shown)
