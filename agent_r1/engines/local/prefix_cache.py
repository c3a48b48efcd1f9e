"""The prefix cache: a tree of the full blocks that are already computed.

A node is one full block; its path from the root is the whole prefix its keys and values depend on. Members of a group
find their prompt here, a later turn finds the earlier one, and rewritten history branches where it differs.

Nodes are not objects: a node is its block's number, and a dictionary maps (parent, tokens) to it. A million small
objects would cause long pauses of the garbage collector.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from agent_r1.engines.local.blocks import BLOCK_SIZE, SPARE_BLOCK, BlockPool

Edge = tuple[int, tuple[int, ...]]
"""The parent's block, and the tokens of a node."""

ROOT = SPARE_BLOCK
"""Never allocated, so it can stand for the empty prefix."""


class PrefixCache:
    """A tree of full blocks. It is one owner of each of its blocks; requests that use a block are further owners.

    >>> pool = BlockPool(8)
    >>> cache = PrefixCache(pool)
    >>> cache.insert(range(40), [pool.allocate(), pool.allocate(), pool.allocate()])  # two full blocks, one begun
    [1, 2, 3]
    >>> cache.match([*range(32), 99])
    [1, 2]
    >>> cache.match(range(32))  # the last token must be computed, so its block is left out
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

    def match(self, token_ids: Sequence[int]) -> list[int]:
        """The blocks of the longest cached prefix, never of all tokens; the caller becomes an owner of each."""
        node, blocks = ROOT, list[int]()
        for index in range((len(token_ids) - 1) // BLOCK_SIZE):
            child = self._blocks.get(_edge(node, token_ids, index))
            if child is None:
                break
            node = child
            blocks.append(node)
        self._touch(node)
        self._pool.share(blocks)
        return blocks

    def count(self, query_tokens: int, hit_tokens: int) -> None:
        """Add one lookup to the counts. Separate from `match`, because a lookup may be retried until blocks are free.

        >>> cache = PrefixCache(BlockPool(1)); cache.count(40, 32); cache.hit_tokens / cache.query_tokens
        0.8
        """
        self.query_tokens += query_tokens
        self.hit_tokens += hit_tokens

    def insert(self, token_ids: Sequence[int], blocks: Sequence[int], *, num_known: int = 0) -> list[int]:
        """Add the full blocks of a computed prefix. Returns the blocks that its owner holds from now on.

        Where a block with the same prefix is cached already, the owner gets that one and its duplicate is released: two
        requests that computed the same prefix in parallel end up sharing it. The first `num_known` blocks came from the
        cache and are not looked up again.
        """
        held = list(blocks)
        node = held[num_known - 1] if num_known else ROOT
        fresh: list[int] = []
        for index in range(num_known, len(token_ids) // BLOCK_SIZE):
            edge = _edge(node, token_ids, index)
            child = self._blocks.get(edge)
            if child is None:
                child = held[index]
                self._blocks[edge] = child
                self._recency[child] = edge
                fresh.append(child)
            elif child != held[index]:
                self._pool.share([child])
                self._pool.release([held[index]])
                held[index] = child
            node = child
        self._pool.share(fresh)
        self._touch(node)
        return held

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
        while node != ROOT:
            self._recency.move_to_end(node)
            node = self._recency[node][0]

    def _drop(self, leaf: int) -> None:
        del self._blocks[self._recency.pop(leaf)]
        self._pool.release([leaf])


def _edge(parent: int, token_ids: Sequence[int], index: int) -> Edge:
    return parent, tuple(token_ids[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE])
