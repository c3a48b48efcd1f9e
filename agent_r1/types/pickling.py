"""Quick pickling of records, which travel between a run and its rollout workers by the thousand."""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import Any, TypeVar

Record = TypeVar("Record", bound=type)


def quickly_pickled(record: Record) -> Record:
    """Decorates a frozen dataclass with slots and two fields or more: the values of the slots are read and set directly
    instead of field by field through `dataclasses.fields`. Subclasses, which may have more fields, are pickled as
    dataclasses are."""
    names = tuple(field.name for field in dataclasses.fields(record))
    read_all = attrgetter(*names)
    setters = tuple(record.__dict__[name].__set__ for name in names)  # past the frozen `__setattr__`
    get_any, set_any = record.__dict__["__getstate__"], record.__dict__["__setstate__"]

    def get_state(self: Any) -> Any:
        return read_all(self) if type(self) is record else get_any(self)

    def set_state(self: Any, state: Any) -> None:
        if type(self) is not record:
            set_any(self, state)
            return
        for set_value, value in zip(setters, state, strict=True):
            set_value(self, value)

    setattr(record, "__getstate__", get_state)  # noqa: B010 - unknown to the type of `record`
    setattr(record, "__setstate__", set_state)  # noqa: B010
    return record
