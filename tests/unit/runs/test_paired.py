"""A trained model is compared with its start task by task; numbers by hand or against a reference."""

from __future__ import annotations

import itertools
import random

import pytest

from agent_r1.errors import DataError
from agent_r1.runs import paired_gain


def solved(text: str) -> dict[str, float]:
    return {f"task{number}": float(digit) for number, digit in enumerate(text)}


def test_the_p_value_of_one_run_is_mcnemars() -> None:
    """Ten tasks change, nine for the better: 2 * (1 + 10) / 1024."""
    found = paired_gain([(solved("0000000001" + "1" * 20), solved("1111111110" + "1" * 20))])
    assert found.p_value == pytest.approx(22 / 1024)
    assert (found.before, found.after) == (pytest.approx(21 / 30), pytest.approx(29 / 30))
    assert found.gain == pytest.approx(8 / 30)


def test_no_change_is_no_gain() -> None:
    found = paired_gain([(solved("0101"), solved("0101"))])
    assert (found.gain, found.low, found.high, found.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_a_loss_has_the_p_value_of_the_same_gain() -> None:
    left, right = solved("000011110000"), solved("111111110000")
    gain, loss = paired_gain([(left, right)]), paired_gain([(right, left)])
    assert gain.p_value == loss.p_value == pytest.approx(2 / 16)
    assert gain.gain == -loss.gain == pytest.approx(4 / 12)


def test_the_interval_is_narrower_than_that_of_two_unpaired_shares() -> None:
    rng = random.Random(0)
    before = [rng.random() < 0.4 for _ in range(400)]
    after = [value or rng.random() < 0.1 for value in before]
    found = paired_gain([(solved("".join("01"[v] for v in before)), solved("".join("01"[v] for v in after)))])
    assert found.low < found.gain < found.high
    assert found.low > 0
    unpaired = 1.96 * (found.before * (1 - found.before) / 400 + found.after * (1 - found.after) / 400) ** 0.5
    assert found.high - found.low < unpaired  # less than half the width


def test_pooled_seeds_flip_the_signs_of_whole_tasks() -> None:
    """Against all 2 ** 6 signs of the tasks' mean differences."""
    pairs = [
        (solved("000000"), solved("110100")),
        (solved("000000"), solved("100100")),
        (solved("000010"), solved("110000")),
    ]
    differences = [1.0, 2 / 3, 0.0, 2 / 3, -1 / 3, 0.0]
    observed = sum(differences)
    every = [
        sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in itertools.product((1, -1), repeat=6)
    ]
    exact = sum(abs(value) >= observed - 1e-9 for value in every) / len(every)
    found = paired_gain(pairs)
    assert found.p_value == pytest.approx(exact, abs=0.02)
    assert found.gain == pytest.approx(observed / 6)
    assert (found.tasks, found.seeds) == (6, 3)


@pytest.mark.whole
def test_an_interval_holds_the_true_gain_as_often_as_it_says() -> None:
    """Of 60 pairs of models with a true gain of 0.1 over 100 tasks, 95 % up to chance."""
    rng = random.Random(1)
    hits = 0
    for _ in range(60):
        before = [rng.random() < 0.3 for _ in range(100)]
        after = [rng.random() < (0.9 if value else 13 / 70) for value in before]  # 0.27 + 0.13 = 0.4
        found = paired_gain([(solved("".join("01"[v] for v in before)), solved("".join("01"[v] for v in after)))])
        hits += found.low <= 0.1 <= found.high
    assert hits >= 52


def test_evaluations_on_different_tasks_are_refused() -> None:
    with pytest.raises(DataError, match="2 and 3 tasks, of which 1 are in one of them only, such as 'task2'"):
        paired_gain([(solved("00"), solved("011"))])
    with pytest.raises(DataError, match="without tasks"):
        paired_gain([({}, {})])
    with pytest.raises(DataError, match="no evaluation"):
        paired_gain([])
