"""Token ids for a file: the tokens of an image, which count up from a number of 19 digits, are written as one entry.

    [7, 8, {"image": 4611703610613432320, "tokens": 64, "picture": "9f86d0..."}, 9]

`image` is the first of these ids; `picture`, where it is known, the content hash of the picture they stand for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent_r1.images.ids import FIRST_IMAGE_ID, MAX_IMAGE_TOKENS, image_number, is_image_id
from agent_r1.types import TokenIds


def has_image_ids(ids: Sequence[int]) -> bool:
    """Whether some of the ids are those of images."""
    return bool(ids) and max(ids) >= FIRST_IMAGE_ID


def compact_ids(ids: Sequence[int], pictures: Mapping[int, str] | None = None) -> Sequence[Any]:
    """The ids with one entry per run of image tokens; `pictures` gives hashes by `image_number`. Ids of text alone are
    returned as they are.

    >>> compact_ids([7, FIRST_IMAGE_ID, FIRST_IMAGE_ID + 1, 8])
    [7, {'image': 4611686018427387904, 'tokens': 2}, 8]
    """
    if not has_image_ids(ids):
        return ids
    entries: list[Any] = []
    run: dict[str, Any] | None = None
    for token_id in ids:
        if not is_image_id(token_id):
            entries.append(token_id)
            run = None
        elif run is not None and token_id == run["image"] + run["tokens"]:
            run["tokens"] += 1
        else:
            run = {"image": token_id, "tokens": 1}
            picture = (pictures or {}).get(image_number(token_id))
            entries.append(run if picture is None else run | {"picture": picture})
            run = entries[-1]
    return entries


def expand_ids(entries: Iterable[Any]) -> TokenIds:
    """The ids of `compact_ids`.

    >>> expand_ids([7, {"image": FIRST_IMAGE_ID, "tokens": 2}]) == (7, FIRST_IMAGE_ID, FIRST_IMAGE_ID + 1)
    True
    """
    ids = tuple(entries)
    if not any(isinstance(entry, dict) for entry in ids):
        return ids
    return tuple(token_id for entry in ids for token_id in (_run(entry) if isinstance(entry, dict) else (entry,)))


def _run(entry: Mapping[str, Any]) -> range:
    first, count = entry.get("image"), entry.get("tokens")
    if type(first) is not int or type(count) is not int or not 0 < count <= MAX_IMAGE_TOKENS:
        raise ValueError(f"{entry!r:.120} is no run of image tokens")
    return range(first, first + count)


def picture_numbers(ids: Sequence[int], hashes: Iterable[str]) -> dict[int, str]:
    """Which picture each image of a prompt is, by `image_number`: the pictures of its messages in the order in which
    they first appear are its images in that order. Empty when their numbers differ, as for a prompt of bare ids."""
    if not has_image_ids(ids):
        return {}
    numbers = dict.fromkeys(image_number(token_id) for token_id in ids if is_image_id(token_id))
    pictures = dict.fromkeys(hashes)
    return dict(zip(numbers, pictures, strict=True)) if len(numbers) == len(pictures) else {}
