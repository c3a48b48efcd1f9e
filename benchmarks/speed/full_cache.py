"""What a KV cache that is too small costs: tokens computed for each that a cache with room for all computes.

    python benchmarks/speed/full_cache.py
    python benchmarks/speed/full_cache.py --conversations 64 --turns 30 --cache 40000 20000
    python benchmarks/speed/full_cache.py --tiny    # tries the script

Conversations that all begin at once, each turn with all that came before it: 96 tokens at first, and 8 sampled and 24
read tokens per turn. They are played on the engine's scheduler without a model, so the figures are counts, the same on
every machine. `in order of asking` serves whoever asked first; `now` is the engine's scheduler.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the clone: agent_r1, benchmarks, recipes

from agent_r1.engines.local.scheduler import Scheduler
from agent_r1.files import write_atomically
from benchmarks.common.played_conversations import ANSWERED, OPENING, SAMPLED, FirstComeFirstServed, computed_tokens

TINY = ["--conversations", "4", "--turns", "3", "--cache", "400"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One size of the cache."""

    cache: int
    """Tokens that it holds."""
    in_order: float
    """Tokens computed in the order of asking, for each that a cache with room for all computes."""
    now: float
    """The same with the engine's scheduler."""


def measure(cache: Sequence[int], *, count: int, turns: int) -> list[Row]:
    """A row for each size of the cache."""
    whole = final_tokens(count=count, turns=turns)
    ideal = computed_tokens(Scheduler, tokens=2 * whole, count=count, turns=turns)

    def ratio(kind: type[Scheduler], tokens: int) -> float:
        return computed_tokens(kind, tokens=tokens, count=count, turns=turns) / ideal

    return [Row(cache=size, in_order=ratio(FirstComeFirstServed, size), now=ratio(Scheduler, size)) for size in cache]


def final_tokens(*, count: int, turns: int) -> int:
    """Tokens of all conversations in the end."""
    return count * (OPENING + turns * (SAMPLED + ANSWERED))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each size of the cache."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=32, help="that begin at once (32)")
    parser.add_argument("--turns", type=int, default=20, help="of each (20)")
    parser.add_argument(
        "--cache",
        type=int,
        nargs="+",
        default=[20_000, 16_000, 12_000, 8_000],
        metavar="TOKENS",
        help="sizes of the cache, each with room for one conversation (20000 16000 12000 8000)",
    )
    parser.add_argument("--tiny", action="store_true", help="4 conversations of 3 turns in one small cache")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    asked = sys.argv[1:] if arguments is None else list(arguments)
    given = parser.parse_args([*TINY, *asked] if "--tiny" in asked else asked)
    count, turns = given.conversations, given.turns
    longest = final_tokens(count=1, turns=turns)
    if min(given.cache) < longest:
        parser.error(f"a conversation has {longest:,} tokens in the end; give sizes of at least that")
    rows = measure(given.cache, count=count, turns=turns)
    print(f"{count} conversations of {turns} turns, {final_tokens(count=count, turns=turns):,} tokens in the end\n")
    print("| cache, tokens | in order of asking | now |\n|---:|---:|---:|")
    for row in rows:
        print(f"| {row.cache:,} | {row.in_order:.1f} | {row.now:.1f} |")
    if given.json is not None:
        write_atomically(given.json, json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
