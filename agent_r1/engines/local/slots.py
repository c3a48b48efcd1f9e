"""A key/value cache in slots: each running request owns one row of a fixed set, filled from position 0.

Because a slot's index along the sequence is the token's position, whether a cached token is visible follows from
positions alone, and requests of any length share one batch without moving anything.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

LENGTH_STEP = 64
"""Capacity grows in these units."""


class SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """The keys and values of one layer, `[slots, heads, capacity + 1, head_dim]`; the last index takes padding."""

    is_compileable = False
    is_sliding = False

    def __init__(self, num_slots: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_slots = num_slots
        self.capacity = 0
        self.rows: Tensor | slice = slice(0)
        self.row_index: Tensor = torch.empty(0, dtype=torch.long)
        self.positions: Tensor = torch.empty(0, dtype=torch.long)
        self.visible = 0

    def address(self, rows: Tensor | slice, row_index: Tensor, positions: Tensor, visible: int) -> None:
        """Say where the next `update` writes (`positions`, one per new token of each row) and how much it reads."""
        self.rows, self.row_index, self.positions, self.visible = rows, row_index, positions, visible

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take shape, type and device from the first keys and values."""
        shape = (self.num_slots, key_states.shape[1], self.capacity + 1, key_states.shape[3])
        self.keys = key_states.new_zeros(shape)
        self.values = value_states.new_zeros((*shape[:3], value_states.shape[3]))
        self.is_initialized = True

    def grow(self, capacity: int) -> None:
        """Make room for longer sequences, keeping what is there."""
        if self.is_initialized:
            self.keys = _grown(self.keys, capacity + 1)
            self.values = _grown(self.values, capacity + 1)
        self.capacity = capacity

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the new tokens at their positions, give back all that is visible."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        self.keys[self.row_index, :, self.positions] = key_states.transpose(1, 2)
        self.values[self.row_index, :, self.positions] = value_states.transpose(1, 2)
        return self.keys[self.rows, :, : self.visible], self.values[self.rows, :, : self.visible]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of what is visible."""
        return self.visible, 0

    def get_seq_length(self) -> int:
        """0: positions are always given."""
        return 0

    def get_max_length(self) -> int:
        """No limit of its own."""
        return -1

    def get_max_cache_shape(self) -> int:
        """The name of `get_max_length` in earlier releases of transformers."""
        return -1


def _grown(old: Tensor | None, length: int) -> Tensor:
    assert old is not None
    new = old.new_zeros((*old.shape[:2], length, old.shape[3]))
    new[:, :, : old.shape[2] - 1] = old[:, :, :-1]
    return new


class SlotCache(Cache):
    """All layers, addressed together."""

    def __init__(self, num_layers: int, num_slots: int) -> None:
        self.slot_layers = [SlotLayer(num_slots) for _ in range(num_layers)]
        super().__init__(layers=list(self.slot_layers))
        self.capacity = 0

    def reserve(self, length: int) -> None:
        """Make sure sequences of `length` tokens fit."""
        if length > self.capacity:
            self.capacity = max(-(-length // LENGTH_STEP) * LENGTH_STEP, 2 * self.capacity)
            for layer in self.slot_layers:
                layer.grow(self.capacity)

    def address(self, rows: Tensor | slice, row_index: Tensor, positions: Tensor, visible: int) -> None:
        """Address every layer; a position of -1 marks padding."""
        placed = torch.where(positions < 0, self.capacity, positions)
        for layer in self.slot_layers:
            layer.address(rows, row_index, placed, visible)
