"""Which server a request goes to: the one that has most of its prompt in its prefix cache, unless it is too busy."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BLOCK = 64
"""Tokens per block."""

MAX_BLOCKS = 2**17
"""Blocks that are remembered; the oldest are forgotten."""

MIN_SHARE = 0.5
"""A server that has less of a prompt than this is not preferred for it."""


class PrefixRouter:
    """Remembers which servers have computed which prefixes.

    The engine sees prompts, not trajectories. A later turn repeats the earlier ones, so its longest known prefix leads
    to the server of its trajectory, and members of a group meet at the server that has their prompt.

    >>> router = PrefixRouter()
    >>> router.note(range(200), 1)
    >>> router.choose(range(300), {0: 0, 1: 3}, slack=8), router.choose(range(300), {0: 0, 1: 9}, slack=8)
    (1, 0)
    """

    def __init__(self) -> None:
        self._servers: OrderedDict[int, set[int]] = OrderedDict()

    def choose(self, prompt: Sequence[int], load: dict[int, int], *, slack: int) -> int:
        """One of the servers in `load` (requests in flight by server): the one that knows the longest prefix, if that
        is most of the prompt and no other server has `slack` requests less; else the least busy one."""
        idlest = min(load, key=lambda server: (load[server], server))
        prefix_lengths = {server: length for server, length in self._known(prompt).items() if server in load}
        if prefix_lengths:
            best = max(prefix_lengths, key=lambda server: (prefix_lengths[server], -load[server], -server))
            if prefix_lengths[best] >= MIN_SHARE * len(prompt) and load[best] - load[idlest] < slack:
                return best
        return idlest

    def note(self, tokens: Sequence[int], server: int) -> None:
        """A server has computed these tokens."""
        for key in _block_keys(tokens):
            servers = self._servers.setdefault(key, set())
            servers.add(server)
            self._servers.move_to_end(key)
        while len(self._servers) > MAX_BLOCKS:
            self._servers.popitem(last=False)

    def forget(self, server: int | None = None) -> None:
        """A server has lost its cache; None: all have."""
        if server is None:
            self._servers.clear()
        else:
            for servers in self._servers.values():
                servers.discard(server)

    def _known(self, prompt: Sequence[int]) -> dict[int, int]:
        """How many leading tokens each server knows."""
        lengths: dict[int, int] = {}
        for number, key in enumerate(_block_keys(prompt), start=1):
            servers = self._servers.get(key)
            if not servers:
                break
            lengths.update(dict.fromkeys(servers, number * BLOCK))
        return lengths


def _block_keys(tokens: Sequence[int]) -> list[int]:
    """One hash per full block, each of the whole prefix up to the block's end."""
    keys, chained = [], 0
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        chained = hash((chained, tuple(tokens[start : start + BLOCK])))
        keys.append(chained)
    return keys
