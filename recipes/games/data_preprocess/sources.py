"""The recipes of TextCraft in two layouts, one record.

* packed: `recipes.jsonl` (also `.jsonl.xz`), one recipe per row, as `sample/` has them;
* the game's: `minecraft_recipes.jsonl` (also `.xz`), its recipe files as one row each, or a folder of these files, as
  TextCraft has them.

Of the game's recipes those for the crafting table are taken; furnaces and stonecutters are left out, as in TextCraft.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_r1.data import DATA_VARIABLE, read_raw
from agent_r1.errors import DataError
from agent_r1.registry import load_module, recipe_folder

RECIPE = Path(__file__).resolve().parents[1]

with recipe_folder(RECIPE):
    kinds = load_module("textcraft.kinds")
    worlds = load_module("textcraft.world")

SAMPLE = RECIPE / "sample"
_PACKED = ("recipes.jsonl", "recipes.jsonl.xz")
_GAME = ("minecraft_recipes.jsonl", "minecraft_recipes.jsonl.xz")


def world_recipes(folder: Path | None = None) -> list[Any]:
    """The recipes: from `folder`, else from what AGENT_R1_DATA names, else those that come with the recipe."""
    parent = os.environ.get(DATA_VARIABLE)
    shared = Path(parent).expanduser() / "textcraft" if parent else None
    given = folder or (shared if shared is not None and shared.is_dir() else SAMPLE)
    for names, convert in ((_PACKED, _packed), (_GAME, game_recipes)):
        files = [given / name for name in names if (given / name).is_file()]
        if files:
            return list(convert(read_raw(files[:1])))
    single = sorted(given.glob("*.json")) if given.is_dir() else []
    if single:
        return list(game_recipes(_read(file) for file in single))
    raise DataError(f"{given} has none of {', '.join((*_PACKED, *_GAME))}, and no recipe files *.json of the game")


def _packed(rows: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    return map(worlds.Recipe.from_json, rows)


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise DataError(f"{file} is not JSON: {error}") from error


def game_recipes(rows: Iterable[Any]) -> Iterator[Any]:
    """Rows of the game as recipes.

    >>> row = {"type": "minecraft:crafting_shaped", "pattern": ["#", "#"], "key": {"#": {"tag": "minecraft:coals"}},
    ...        "result": {"item": "minecraft:big_torch", "count": 2}}
    >>> str(next(game_recipes([row])))
    'craft 2 big torch using 2 coals'
    """
    for row in rows:
        try:
            if row["type"] == "minecraft:crafting_shaped":
                symbols = [symbol for line in row["pattern"] for symbol in line if symbol != " "]
                parts = [_options(row["key"][symbol]) for symbol in symbols]
            elif row["type"] == "minecraft:crafting_shapeless":
                parts = [_options(part) for part in row["ingredients"]]
            else:
                continue
            counts = Counter(parts)
            ingredients = tuple(worlds.Ingredient(count, options) for options, count in counts.items())
            yield worlds.Recipe(_name(row["result"]["item"]), int(row["result"].get("count", 1)), ingredients)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"this is no recipe of the game ({error!r}): {row!r:.200}") from error


def _options(entry: Any) -> tuple[str, ...]:
    """The items that an entry of a recipe stands for: an item, a tag, or a list of these."""
    entries = entry if isinstance(entry, list) else [entry]
    return tuple(dict.fromkeys(item for one in entries for item in _items(one)))


def _items(entry: Mapping[str, Any]) -> tuple[str, ...]:
    if "tag" not in entry:
        return (_name(entry["item"]),)
    tag = _name(entry["tag"])
    if tag not in kinds.KINDS:
        raise DataError(f"the tag '{tag}' is unknown: name its items in textcraft/kinds.py")
    items: tuple[str, ...] = kinds.KINDS[tag]
    return items


def _name(identifier: str) -> str:
    return identifier.rpartition(":")[2].replace("_", " ")
