"""NLVR's own files: sentences, labels, what is in each box, and the pictures.

They are read from the archive of the official repository, or from a folder: a clone's `nlvr`, or `dev.jsonl.xz` and
so on with the pictures in an archive `images*.tar*`.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from agent_r1.data import DATA_VARIABLE, locate, read_raw
from agent_r1.errors import DataError

from .scenes import is_tower

SOURCES = {"corpus": ["https://github.com/lil-lab/nlvr/archive/refs/heads/master.tar.gz"]}
SPLITS = ("train", "dev", "test")
_PICTURE = re.compile(r"(?:^|/)(?P<split>train|dev|test)-(?P<identifier>\d+-\d+)-0\.png$")
"""Of each example the first of its six orders of the boxes."""
_ROWS = re.compile(r"(?:^|/)nlvr/(?P<split>train|dev|test)/(?P=split)\.json$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A sentence about a picture."""

    identifier: str
    """`n-m`: examples with the same n were shown together and share their sentence."""
    sentence: str
    label: str
    """true or false."""
    boxes: tuple[tuple[Mapping[str, Any], ...], ...]
    """The shapes of each box: `type`, `color`, `size`, `x_loc`, `y_loc`."""
    png: bytes

    @property
    def presentation(self) -> str:
        """The n of the identifier."""
        return self.identifier.partition("-")[0]

    @property
    def has_towers(self) -> bool:
        """Whether the picture shows towers, not scattered items."""
        return all(is_tower(box) for box in self.boxes)

    def picture(self) -> Image.Image:
        """The picture."""
        return Image.open(io.BytesIO(self.png)).convert("RGB")


def read_corpus(folder: Path | None = None) -> dict[str, list[Example]]:
    """The examples of each split that is there, in the order of the files."""
    given = folder or (Path(os.environ[DATA_VARIABLE]) / "nlvr" if os.environ.get(DATA_VARIABLE) else None)
    if given is None:
        rows, pictures = _from_archive(locate("nlvr", SOURCES)["corpus"][0])
    else:
        rows, pictures = _rows_of_folder(given), _pictures_of_folder(given)
    found = {split: [_example(row, split, pictures) for row in rows[split]] for split in SPLITS if rows.get(split)}
    if "test" not in found or "dev" not in found:
        raise DataError(f"NLVR needs dev and test at least; found {', '.join(found) or 'nothing'} in {given}")
    return found


def _example(row: Mapping[str, Any], split: str, pictures: Mapping[tuple[str, str], bytes]) -> Example:
    identifier = str(row.get("identifier"))
    if (split, identifier) not in pictures:
        raise DataError(f"example {identifier} of {split} has no picture {split}-{identifier}-0.png")
    if str(row.get("label")).lower() not in ("true", "false") or not isinstance(row.get("sentence"), str):
        raise DataError(f"example {identifier} of {split} needs 'sentence' and 'label'; found {', '.join(sorted(row))}")
    return Example(
        identifier=identifier,
        sentence=row["sentence"].strip(),
        label=str(row["label"]).lower(),
        boxes=tuple(tuple(box) for box in row["structured_rep"]),
        png=pictures[split, identifier],
    )


def _rows_of_folder(folder: Path) -> dict[str, list[dict[str, Any]]]:
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder} to take NLVR from")
    rows: dict[str, list[dict[str, Any]]] = {}
    for split in SPLITS:
        names = (f"{split}.jsonl", f"{split}.jsonl.xz", f"{split}.jsonl.gz")
        whole = [folder / name for name in names if (folder / name).is_file()]
        official = folder / split / f"{split}.json"
        if whole:
            rows[split] = list(read_raw(whole[:1]))
        elif official.is_file():
            rows[split] = [json.loads(line) for line in official.read_text(encoding="utf-8").splitlines() if line]
    return rows


def _pictures_of_folder(folder: Path) -> dict[tuple[str, str], bytes]:
    pictures = {}
    for archive in sorted(folder.glob("images*.tar*")):
        pictures.update({key: content for key, content in _members(archive) if isinstance(key, tuple)})
    for file in folder.glob("*/images/**/*-0.png"):
        match = _PICTURE.search(file.name)
        if match:
            pictures[match["split"], match["identifier"]] = file.read_bytes()
    return pictures


def _from_archive(archive: Path) -> tuple[dict[str, list[dict[str, Any]]], dict[tuple[str, str], bytes]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    pictures: dict[tuple[str, str], bytes] = {}
    for key, content in _members(archive):
        if isinstance(key, tuple):
            pictures[key] = content
        else:
            rows[key] = [json.loads(line) for line in content.decode().splitlines() if line]
    return rows, pictures


def _members(archive: Path) -> Iterator[tuple[str | tuple[str, str], bytes]]:
    """The files of an archive that are needed, read without unpacking: (split, identifier) for a picture, the split for
    its rows."""
    with tarfile.open(archive) as files:
        for member in files:
            picture, rows = _PICTURE.search(member.name), _ROWS.search(member.name)
            if not member.isfile() or not (picture or rows):
                continue
            content = files.extractfile(member)
            assert content is not None
            if picture:
                yield (picture["split"], picture["identifier"]), content.read()
            elif rows:
                yield rows["split"], content.read()
