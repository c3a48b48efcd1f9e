"""The blocks of the KV cache: a fixed number, with reference counts."""

from __future__ import annotations

from collections.abc import Iterable

BLOCK_SIZE = 16
"""Tokens in one block."""
SPARE_BLOCK = 0
"""Never allocated: padding tokens write to it, and unused entries of block tables point to it."""


def blocks_for(num_tokens: int) -> int:
    """How many blocks hold this many tokens.

    >>> blocks_for(0), blocks_for(16), blocks_for(17)
    (0, 1, 2)
    """
    return -(-num_tokens // BLOCK_SIZE)


class BlockPool:
    """Blocks 1 to `num_blocks`, each free or held by one or more owners (requests, the prefix cache).

    >>> pool = BlockPool(2)
    >>> [block] = pool.allocate(1)
    >>> pool.share([block])  # a second owner
    >>> pool.release([block]); pool.num_free, pool.num_held
    (1, 1)
    >>> pool.release([block]); pool.num_free, pool.num_held
    (2, 0)
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # Last freed, first allocated: its memory is most likely in the cache.
        self._free = list(range(num_blocks, 0, -1))
        self._owners = [0] * (num_blocks + 1)

    @property
    def num_free(self) -> int:
        """Blocks without an owner."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        """Blocks with at least one owner; held and free blocks always add up to the pool."""
        return self.num_blocks - len(self._free)

    def owners(self, block: int) -> int:
        """How many owners a block has."""
        return self._owners[block]

    def allocate(self, count: int) -> list[int]:
        """Free blocks, now with one owner each. The caller has seen that there are enough (`num_free`).

        >>> BlockPool(3).allocate(2)
        [1, 2]
        """
        if not count:
            return []
        assert count <= len(self._free), "blocks are counted before they are taken"
        blocks = self._free[: -count - 1 : -1]
        del self._free[-count:]
        for block in blocks:
            self._owners[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add an owner to each block."""
        owners = self._owners
        for block in blocks:
            owners[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Remove an owner from each block; a block without owners is free."""
        owners, free = self._owners, self._free
        for block in blocks:
            owners[block] -= 1
            if not owners[block]:
                free.append(block)
