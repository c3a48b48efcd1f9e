"""Pictures in the viewer: served by their hash and nothing else, one box per image in a prompt, part of an export."""

from __future__ import annotations

import base64
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra view")
pytest.importorskip("uvicorn", reason="needs the extra view")

from agent_r1.errors import DataError
from agent_r1.view import pictures as viewed
from agent_r1.view.api import ViewApi
from agent_r1.view.catalog import Catalog
from agent_r1.view.export import collect
from tests.helpers.picture_runs import CROP, SCENE, picture_run
from tests.helpers.view_server import ViewServer, view_server

UNKNOWN = "0" * 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two pictures, and with things in their place that are none."""
    run = picture_run(tmp_path_factory.mktemp("runs") / "zoom").folder
    images = run / "trajectories" / "images"
    (run / "secret.png").write_bytes(SCENE.png())
    (images / f"{'1' * 64}.png").symlink_to(run / "secret.png")
    (images / f"{'2' * 64}.png").write_bytes(b"<svg onload=alert(1)>" * 5)
    (images / f"{'3' * 64}.png").write_bytes(png_head(60_000, 60_000))
    (images / f"{'4' * 64}.png").write_bytes(b"\x89PNG")
    os.mkfifo(images / f"{'5' * 64}.png")
    (images / f"{'6' * 64}.svg").write_bytes(b"<svg/>")
    return run


def png_head(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", width, height, 8, 2, 0, 0, 0) + b"x" * 99


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ViewServer]:
    with view_server([folder]) as running:
        yield running


def test_a_picture_is_served_as_a_png_and_nothing_else(server: ViewServer) -> None:
    answer = server.request(f"/api/runs/zoom/images/{SCENE.content_hash}")
    assert (answer.status, answer.body) == (200, SCENE.png())
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("name", "status", "problem"),
    [
        (UNKNOWN, 404, "has no picture"),
        ("1" * 64, 400, "links inside run folders are not followed"),
        ("2" * 64, 400, "is not a PNG"),
        ("3" * 64, 400, "60000 x 60000 pixels; it is not shown"),
        ("4" * 64, 400, "is not a PNG"),
        ("5" * 64, 400, "is not a regular file"),
        ("6" * 64, 404, "has no picture"),
        (f"{SCENE.content_hash}.png", 400, "is not the content hash"),
        ("..%2F..%2Fsecret", 404, ""),
        ("%2e%2e", 400, "is not the content hash"),
        (SCENE.content_hash.upper(), 400, "is not the content hash"),
        ("x" * 5000, 400, "is not the content hash"),
    ],
)
def test_whatever_else_is_asked_for_is_refused(server: ViewServer, name: str, status: int, problem: str) -> None:
    answer = server.request(f"/api/runs/zoom/images/{name}")
    assert answer.status == status
    assert problem in answer.json["error"]


def test_a_file_that_is_too_large_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewed, "MAX_BYTES", 100)
    with pytest.raises(DataError, match="larger than 100 bytes"):
        viewed.read_png(folder, SCENE.content_hash)


@pytest.fixture
def api(folder: Path) -> ViewApi:
    made = ViewApi(Catalog([folder]))
    for run in made.catalog.runs():
        run.index.update()
    return made


def shown(api: ViewApi) -> dict[str, Any]:
    [run] = api.catalog.runs()
    rows = api.trajectories(run.id, [])["rows"]
    return api.trajectory(run.id, rows[0]["key"])


def test_an_image_is_one_box_among_the_tokens_of_a_prompt(api: ViewApi) -> None:
    first, second = shown(api)["steps"]
    assert [token["text"] for token in first["tokens"]] == [
        "<user>", "[image: 64 tokens]", "What color is the dot?", "<model>", "<zoom>",
    ]  # fmt: skip
    assert [token["writer"] for token in first["tokens"]] == ["template", "user", "user", "template", "model"]
    assert first["tokens"][1]["image"] == {"tokens": 64, "picture": SCENE.content_hash}
    assert (first["num_prompt_tokens"], second["num_prompt_tokens"]) == (67, 86)
    [box] = [token for token in second["tokens"] if "image" in token]
    assert (box["image"], box["writer"]) == ({"tokens": 16, "picture": CROP.content_hash}, "tool")


def test_messages_and_results_refer_to_their_pictures(api: ViewApi) -> None:
    record = shown(api)
    scene = {"picture": SCENE.content_hash, "width": 448, "height": 320}
    assert record["prompt"][0]["content"][0]["image"] == scene
    assert record["steps"][0]["messages"][0]["content"][0]["image"] == scene
    [result] = record["steps"][0]["results"]
    assert result["pictures"] == [{"picture": CROP.content_hash, "width": 48, "height": 32}]
    assert set(viewed.hashes_in(record)) == {SCENE.content_hash, CROP.content_hash}


def test_an_exported_page_has_the_pictures_up_to_a_limit(api: ViewApi, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = {p.content_hash: f"data:image/png;base64,{base64.b64encode(p.png()).decode()}" for p in (SCENE, CROP)}
    [found] = collect(api, 10)["pictures"].values()
    assert found == urls
    monkeypatch.setattr("agent_r1.view.export.MAX_EXPORTED", len(urls[CROP.content_hash]))
    [found] = collect(api, 10)["pictures"].values()
    assert found == {CROP.content_hash: urls[CROP.content_hash]}


@pytest.mark.parametrize(
    "image", [None, 3, "x", {}, {"picture": 3}, {"picture": "../x"}, {"png": "x"}, {"picture": "a" * 64, "width": "9"}]
)
def test_hostile_references_are_no_pictures(image: Any) -> None:
    found = viewed.reference_of(image)
    assert found is None or found == {"picture": "a" * 64}
