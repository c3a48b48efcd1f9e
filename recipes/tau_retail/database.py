"""The shop's database: users, orders and products, loaded once per process, and a copy-on-write view per episode.

    view = View(open_database("runs/tau_retail_data"))
    view.change_order("#W2611340")["status"] = "cancelled"    # only this view sees it
    view.digest()                                             # equal for equal databases

A view holds copies of the records that its episode changed, and nothing else: hundreds of episodes share one database.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from agent_r1.data import read_raw, write_rows
from agent_r1.errors import ConfigError, DataError

Record = dict[str, Any]

TABLES = ("users", "orders", "products")
_FIELDS = {
    "users": ("name", "address", "email", "payment_methods", "orders"),
    "orders": ("order_id", "user_id", "address", "items", "status", "payment_history"),
    "products": ("name", "product_id", "variants"),
}


@dataclass(frozen=True, kw_only=True)
class Database:
    """All records, by their ids. Nothing changes them."""

    users: Mapping[str, Record]
    orders: Mapping[str, Record]
    products: Mapping[str, Record]

    @classmethod
    def from_rows(cls, rows: Mapping[str, Iterable[Mapping[str, Any]]]) -> Database:
        """A database of rows `{"key": ..., "value": ...}` per table. All rows that cannot be used are named at once."""
        tables: dict[str, dict[str, Record]] = {}
        problems: list[str] = []
        for name in TABLES:
            table = tables[name] = {}
            for number, row in enumerate(rows[name]):
                problem = _row_problem(name, row)
                if problem:
                    problems.append(f"{name}, row {number}: {problem}")
                else:
                    table[row["key"]] = row["value"]
        for key, order in tables["orders"].items():
            if order["user_id"] not in tables["users"]:
                problems.append(f"orders, {key}: there is no user {order['user_id']}")
        if problems:
            shown = "\n".join(f"  - {line}" for line in problems[:10])
            raise DataError(f"{len(problems)} records of the database cannot be used:\n{shown}")
        return cls(**tables)

    @cached_property
    def user_of_email(self) -> Mapping[str, str]:
        """Users by their e-mail addresses, in lower case."""
        return {user["email"].lower(): key for key, user in self.users.items()}

    @cached_property
    def user_of_name(self) -> Mapping[tuple[str, str, str], str]:
        """Users by first name, last name (lower case) and zip code."""
        return {
            (user["name"]["first_name"].lower(), user["name"]["last_name"].lower(), user["address"]["zip"]): key
            for key, user in self.users.items()
        }

    @cached_property
    def product_of_item(self) -> Mapping[str, str]:
        """The product of every item that is sold."""
        return {item: key for key, product in self.products.items() for item in product["variants"]}

    def write(self, folder: Path) -> None:
        """Write one file per table."""
        for name in TABLES:
            table: Mapping[str, Record] = getattr(self, name)
            write_rows(folder / f"{name}.jsonl", ({"key": key, "value": value} for key, value in table.items()))


def _row_problem(table: str, row: Mapping[str, Any]) -> str:
    key, value = row.get("key"), row.get("value")
    if not isinstance(key, str) or not isinstance(value, dict):
        return f"expected a text 'key' and an object 'value', found {', '.join(sorted(row)) or 'nothing'}"
    missing = [name for name in _FIELDS[table] if name not in value]
    return f"{key} lacks {', '.join(missing)}" if missing else ""


@lru_cache(maxsize=4)
def open_database(folder: str) -> Database:
    """The database in a folder; one per process."""
    files = {name: Path(folder) / f"{name}.jsonl" for name in TABLES}
    missing = [file.name for file in files.values() if not file.is_file()]
    if missing:
        raise ConfigError(
            f"{folder} has no {', '.join(missing)}. Make the data: python "
            f"recipes/tau_retail/data_preprocess/process_tau_retail.py --local_save_dir {folder}"
        )
    return Database.from_rows({name: read_raw([file]) for name, file in files.items()})


@dataclass(kw_only=True)
class View:
    """What one episode sees: the database with the changes of this episode."""

    database: Database
    changed_users: dict[str, Record] = field(default_factory=dict)
    changed_orders: dict[str, Record] = field(default_factory=dict)

    def user(self, user_id: str) -> Record | None:
        """A user, to read."""
        return self.changed_users.get(user_id) or self.database.users.get(user_id)

    def order(self, order_id: str) -> Record | None:
        """An order, to read."""
        return self.changed_orders.get(order_id) or self.database.orders.get(order_id)

    def product(self, product_id: str) -> Record | None:
        """A product, to read."""
        return self.database.products.get(product_id)

    def change_user(self, user_id: str) -> Record:
        """A user that may be changed: this view's own copy."""
        if user_id not in self.changed_users:
            self.changed_users[user_id] = copy.deepcopy(self.database.users[user_id])
        return self.changed_users[user_id]

    def change_order(self, order_id: str) -> Record:
        """An order that may be changed: this view's own copy."""
        if order_id not in self.changed_orders:
            self.changed_orders[order_id] = copy.deepcopy(self.database.orders[order_id])
        return self.changed_orders[order_id]

    def find_user(self, first_name: str, last_name: str, zip_code: str) -> str | None:
        """The user with this name and zip code, which may have been changed."""
        found = self.database.user_of_name.get((first_name.lower(), last_name.lower(), zip_code))
        if found is not None and found not in self.changed_users:
            return found
        for key, user in self.changed_users.items():
            name = user["name"]
            if (name["first_name"].lower(), name["last_name"].lower(), user["address"]["zip"]) == (
                first_name.lower(),
                last_name.lower(),
                zip_code,
            ):
                return key
        return None

    def changes(self) -> dict[str, dict[str, Record]]:
        """The records that differ from the database's. A record that was changed back does not."""
        pairs = (
            ("users", self.changed_users, self.database.users),
            ("orders", self.changed_orders, self.database.orders),
        )
        return {
            name: {key: record for key, record in changed.items() if record != base[key]}
            for name, changed, base in pairs
        }

    def digest(self) -> str:
        """A hash of the changes, equal for two views of one database if and only if their contents are."""
        text = json.dumps(self.changes(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
