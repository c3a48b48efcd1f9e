"""The prefix cache: which full blocks of tokens are already computed, as a tree.

A node is one full block; its path from the root is the whole prefix its keys and values depend on. Members of a group
find their prompt here, a later turn finds the earlier one, and rewritten history branches where it differs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent_r1.engines.local.blocks import BLOCK_SIZE, BlockPool

BlockTokens = tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Node:
    tokens: BlockTokens
    block: int
    parent: _Node | None
    children: dict[BlockTokens, _Node] = field(default_factory=dict)


class PrefixCache:
    """A tree of full blocks. It owns each of its blocks once; whoever uses one as well is a further owner.

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
        self._root = _Node(tokens=(), block=0, parent=None)
        # Least recently used first. A node always stands before its ancestors, so the first one is a leaf.
        self._recency: OrderedDict[_Node, None] = OrderedDict()
        self.query_tokens = 0
        """Tokens that were looked up."""
        self.hit_tokens = 0
        """Tokens that were found."""

    def __len__(self) -> int:
        return len(self._recency)

    def match(self, token_ids: Sequence[int]) -> list[int]:
        """The blocks of the longest known prefix, never of the whole; the caller becomes an owner of each."""
        node, blocks = self._root, list[int]()
        for index in range((len(token_ids) - 1) // BLOCK_SIZE):
            child = node.children.get(_tokens(token_ids, index))
            if child is None:
                break
            node = child
            blocks.append(node.block)
        self._touch(node)
        self._pool.share(blocks)
        return blocks

    def count(self, query_tokens: int, hit_tokens: int) -> None:
        """Add one lookup to the counts. Apart from `match`, because a lookup may be tried again until blocks are free.

        >>> cache = PrefixCache(BlockPool(1)); cache.count(40, 32); cache.hit_tokens / cache.query_tokens
        0.8
        """
        self.query_tokens += query_tokens
        self.hit_tokens += hit_tokens

    def insert(self, token_ids: Sequence[int], blocks: Sequence[int]) -> list[int]:
        """Remember the full blocks of a computed prefix; gives the blocks its owner holds from here on.

        Where a block with the same prefix is known already the owner gets that one and gives its own back: two requests
        that computed the same thing side by side end up sharing it.
        """
        node, held = self._root, list(blocks)
        for index in range(len(token_ids) // BLOCK_SIZE):
            tokens = _tokens(token_ids, index)
            child = node.children.get(tokens)
            if child is None:
                child = _Node(tokens=tokens, block=held[index], parent=node)
                node.children[tokens] = child
                self._recency[child] = None
                self._pool.share([child.block])
            elif child.block != held[index]:
                self._pool.share([child.block])
                self._pool.release([held[index]])
                held[index] = child.block
            node = child
        self._touch(node)
        return held

    def evict(self, count: int) -> int:
        """Forget up to `count` blocks that no request uses, least recently used first; gives how many."""
        evicted = 0
        for _ in range(len(self._recency)):
            if evicted == count:
                break
            node = next(iter(self._recency))
            if self._pool.owners(node.block) > 1:
                self._touch(node)  # in use is recently used; whoever owns a block owns its ancestors too
            else:
                self._forget(node)
                evicted += 1
        return evicted

    def clear(self) -> None:
        """Forget everything; blocks that requests use stay theirs."""
        self._pool.release(node.block for node in self._recency)
        self._recency.clear()
        self._root.children.clear()

    def _touch(self, node: _Node) -> None:
        """The path to this node was just used."""
        while node.parent is not None:
            self._recency.move_to_end(node)
            node = node.parent

    def _forget(self, leaf: _Node) -> None:
        assert leaf.parent is not None
        del self._recency[leaf]
        del leaf.parent.children[leaf.tokens]
        self._pool.release([leaf.block])


def _tokens(token_ids: Sequence[int], index: int) -> BlockTokens:
    return tuple(token_ids[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE])
