"""Rows that are held out do not depend on the order of the rows, and share no question with the others."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from agent_r1.data import hold_out


@given(
    st.lists(st.integers(0, 40).map(str), min_size=2, max_size=60),
    st.integers(1, 30),
    st.randoms(use_true_random=False),
)
def test_no_question_is_on_both_sides_and_the_order_does_not_matter(
    rows: list[str], count: int, rng: random.Random
) -> None:
    kept, held = hold_out(rows, count, key=str)
    assert not set(kept) & set(held)
    assert sorted(kept + held) == sorted(rows)
    shuffled = rng.sample(rows, len(rows))
    assert [sorted(side) for side in hold_out(shuffled, count, key=str)] == [sorted(kept), sorted(held)]


def test_as_many_rows_are_held_out_as_asked_for_up_to_a_fifth() -> None:
    rows = [str(number) for number in range(100)]
    assert [len(hold_out(rows, count, key=str)[1]) for count in (1, 7, 20, 50)] == [1, 7, 20, 20]
    assert len(hold_out(rows[:3], 50, key=str)[1]) == 1


def test_more_rows_leave_the_choice_among_the_old_ones() -> None:
    """What is held out of a part is held out of the whole or replaced by new rows, never by old ones."""
    rows = [str(number) for number in range(200)]
    before, after = (set(hold_out(part, 20, key=str)[1]) for part in (rows[:100], rows))
    assert after & set(rows[:100]) <= before
