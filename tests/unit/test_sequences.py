"""The common prefix of two sequences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_r1.types import common_prefix

short = st.lists(st.integers(0, 2), max_size=6)


@given(short, short)
def test_the_common_prefix_is_the_longest_that_both_begin_with(left: list[int], right: list[int]) -> None:
    length = common_prefix(left, right)
    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]
    assert length == common_prefix(tuple(right), tuple(left)) == common_prefix(left, tuple(right))
