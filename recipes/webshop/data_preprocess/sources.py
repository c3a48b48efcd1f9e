"""The products of WebShop as others have them: in two layouts, one record.

* packed: `products*.jsonl` (also `.jsonl.xz`), one product per row, as `sample/` has them;
* official: `items_shuffle_1000.json`, `items_ins_v2_1000.json` and `items_human_ins.json`, which the `setup.sh` of
  WebShop downloads.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_r1.data import DATA_VARIABLE, locate, read_raw
from agent_r1.errors import DataError

DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="
OFFICIAL = {
    "items_shuffle_1000": [f"{DRIVE}1EgHdxQ_YxqIQlvvq5iKlCrkEKR6-j0Ib"],
    "items_ins_v2_1000": [f"{DRIVE}1IduG0xl544V_A_jv3tHXC0kyFi7PnyBu"],
    "items_human_ins": [f"{DRIVE}14Kb5SPBk_jfdLZ_CDBNitW98QLDlKR5O"],
}
"""The files of WebShop's `setup.sh -d small`: products, their attributes and instructions, goals that people wrote."""

_PRICE = re.compile(r"[^\d.]")


def product_rows(folder: Path | None = None) -> list[dict[str, Any]]:
    """The products, from `folder`, else from what AGENT_R1_DATA names, else downloaded."""
    given = folder or _shared_folder()
    packed = sorted(given.glob("products*.jsonl*")) if given is not None and given.is_dir() else []
    if packed:
        return list(read_raw(packed))
    files = {name: paths[0] for name, paths in locate("webshop", OFFICIAL, given).items()}
    return list(official_rows(*(_read(name, file) for name, file in files.items())))


def _shared_folder() -> Path | None:
    parent = os.environ.get(DATA_VARIABLE)
    return Path(parent).expanduser() / "webshop" if parent else None


def _read(name: str, file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise DataError(
            f"{file} is not the JSON of {name} ({error}). If it was downloaded, delete it and try again, or fetch the "
            "files with WebShop's setup.sh -d small and give their folder with --local_dataset_path"
        ) from error


def official_rows(products: Any, attributes: Any, human: Any) -> Iterator[dict[str, Any]]:
    """The official products as packed rows. Repeated ids, and ids that are none, are left out, as in WebShop."""
    if not isinstance(products, list) or not isinstance(attributes, Mapping) or not isinstance(human, Mapping):
        raise DataError("the official files are a list of products and two tables by product id; found others")
    seen: set[str] = set()
    for item in products:
        asin = str(item["asin"])
        if asin == "nan" or len(asin) > 10 or asin in seen:
            continue
        seen.add(asin)
        known = attributes.get(asin) or {}
        features = item.get("small_description") or []
        yield {
            **{name: item.get(name) for name in ("asin", "name", "category", "query", "product_category")},
            "pricing": prices(item.get("pricing")),
            "full_description": item.get("full_description"),
            "small_description": features if isinstance(features, list) else [features],
            "options": option_values(item.get("customization_options")),
            "attributes": known.get("attributes") or [],
            "instruction": known.get("instruction"),
            "instruction_attributes": known.get("instruction_attributes"),
            "human_instructions": human.get(asin) or [],
        }


def prices(text: str | None) -> list[float]:
    """The prices in a text.

    >>> prices("$1,019.99$27.99"), prices("")
    ([1019.99, 27.99], [])
    """
    return [float(_PRICE.sub("", part)) for part in (text or "").split("$")[1:]]


def option_values(given: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """The options of a product, as its page writes them.

    >>> option_values({"Size": [{"value": " 8/10 Wide"}], "Color": None})
    {'size': ['8 | 10 wide']}
    """
    return {
        name.lower(): [str(content["value"]).strip().replace("/", " | ").lower() for content in contents]
        for name, contents in (given or {}).items()
        if contents
    }
