"""The prefix cache: a tree of the full blocks that are already computed.

A node is one full block; its path from the root is the whole prefix its keys and values depend on. Members of a group
find their prompt here, a later turn finds the earlier one, and rewritten history branches where it differs.

Nodes are not objects: a node is its block's number, and a dictionary maps (parent, key) to it, where the key is the
block's tokens as bytes (`request.block_keys`). A million small objects would cause long pauses of the garbage
collector.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from agent_r1.engines.local.blocks import SPARE_BLOCK, BlockPool

Edge = tuple[int, bytes]
"""The parent's block, and the key of a node's tokens."""

ROOT = SPARE_BLOCK
"""Never allocated, so it can stand for the empty prefix."""


class PrefixCache:
    """A tree of full blocks. It is one owner of each of its blocks; requests that use a block are further owners.

    >>> from agent_r1.engines.local.request import block_keys
    >>> pool = BlockPool(8)
    >>> cache, keys = PrefixCache(pool), block_keys(range(40))
    >>> cache.insert(keys, pool.allocate(3))  # two full blocks, one begun
    [1, 2, 3]
    >>> cache.match(keys)
    [1, 2]
    >>> cache.match(block_keys([*range(16), *range(24)]))
    [1]
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._blocks: dict[Edge, int] = {}
        # Least recently used first. A node always comes before its ancestors, so the first one is a leaf.
        self._recency: OrderedDict[int, Edge] = OrderedDict()
        self.query_tokens = 0
        """Tokens that were looked up."""
        self.hit_tokens = 0
        """Tokens that were found."""

    def __len__(self) -> int:
        return len(self._recency)

    def match(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of the longest cached prefix; the caller becomes an owner of each, until it calls `leave`."""
        node, blocks, find = ROOT, list[int](), self._blocks.get
        for key in keys:
            child = find((node, key))
            if child is None:
                break
            node = child
            blocks.append(node)
        self._pool.share(blocks)
        return blocks

    def count(self, query_tokens: int, hit_tokens: int) -> None:
        """Add one lookup to the counts. Separate from `match`, because a lookup may be retried until blocks are free.

        >>> cache = PrefixCache(BlockPool(1)); cache.count(40, 32); cache.hit_tokens / cache.query_tokens
        0.8
        """
        self.query_tokens += query_tokens
        self.hit_tokens += hit_tokens

    def insert(self, keys: Sequence[bytes], blocks: list[int], *, num_known: int = 0) -> list[int]:
        """Add the full blocks of a computed prefix, one per key. Returns `blocks` as its owner holds them from now on.

        Where a block with the same prefix is cached already, it replaces the owner's, which is released: two requests
        that computed the same prefix in parallel end up sharing it. The first `num_known` blocks came from the cache
        and are not looked up again.

        Their owner uses the new blocks, so they are not evicted; `leave` marks its whole path as just used.
        """
        node = blocks[num_known - 1] if num_known else ROOT
        fresh: list[int] = []
        for index in range(num_known, len(keys)):
            edge = node, keys[index]
            child = self._blocks.get(edge)
            if child is None:
                child = blocks[index]
                self._blocks[edge] = child
                self._recency[child] = edge
                self._recency.move_to_end(child, last=False)  # before its ancestors
                fresh.append(child)
            elif child != blocks[index]:
                self._pool.share([child])
                self._pool.release([blocks[index]])
                blocks[index] = child
            node = child
        self._pool.share(fresh)
        return blocks

    def leave(self, blocks: Sequence[int], num_cached: int) -> None:
        """An owner releases its blocks, the first `num_cached` of which are cached: they count as just used."""
        if num_cached:
            self._touch(blocks[num_cached - 1])
        self._pool.release(blocks)

    def evict(self, count: int) -> int:
        """Evict up to `count` blocks that no request uses, least recently used first. Returns how many."""
        evicted, first_in_use = 0, ROOT
        while evicted < count and self._recency:
            node = next(iter(self._recency))
            if self._pool.owners(node) > 1:
                if node == first_in_use:
                    break  # a full round: all remaining blocks are in use
                first_in_use = first_in_use or node
                self._touch(node)  # in use counts as recently used; an owner of a block owns its ancestors too
            else:
                self._drop(node)
                evicted += 1
        return evicted

    def clear(self) -> None:
        """Drop all entries; blocks that requests use stay allocated."""
        self._pool.release(self._recency)
        self._recency.clear()
        self._blocks.clear()

    def _touch(self, node: int) -> None:
        """Mark the path to this node as just used."""
        recency = self._recency
        while node != ROOT:
            recency.move_to_end(node)
            node = recency[node][0]

    def _drop(self, leaf: int) -> None:
        del self._blocks[self._recency.pop(leaf)]
        self._pool.release([leaf])
