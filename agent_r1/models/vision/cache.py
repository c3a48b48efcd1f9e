"""Tensors by key, bounded by their bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from torch import Tensor


class ByteCache:
    """The least recently used tensors leave first; a tensor that is larger than the bound is not kept.

    >>> import torch
    >>> cache = ByteCache(16)
    >>> for key in "abc":
    ...     cache.put(key, torch.zeros(2))
    >>> cache.get("a") is None, cache.get("c") is None, cache.num_bytes
    (True, False, 16)
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tensors: OrderedDict[Hashable, Tensor] = OrderedDict()
        self.num_bytes = 0
        """Bytes of the tensors in the cache."""

    def __len__(self) -> int:
        return len(self._tensors)

    def get(self, key: Hashable) -> Tensor | None:
        """The tensor with this key, which is now the most recently used."""
        tensor = self._tensors.get(key)
        if tensor is not None:
            self._tensors.move_to_end(key)
        return tensor

    def put(self, key: Hashable, tensor: Tensor) -> None:
        """Keep a tensor. It must not be a view: its whole storage would stay."""
        if key in self._tensors or tensor.nbytes > self._max_bytes:
            return
        self._tensors[key] = tensor
        self.num_bytes += tensor.nbytes
        while self.num_bytes > self._max_bytes:
            _, oldest = self._tensors.popitem(last=False)
            self.num_bytes -= oldest.nbytes

    def clear(self) -> None:
        """Drop all entries."""
        self._tensors.clear()
        self.num_bytes = 0
