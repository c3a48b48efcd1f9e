"""Answers against accepted answers: exact matches and F1, worked out by hand, and rules for any text."""

from __future__ import annotations

import string
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1.errors import DataError
from agent_r1.rewards import (
    accepted_answers,
    exact_match,
    f1_score,
    normalise_text,
    number_text,
    same_text,
    truth_problem,
)


@pytest.mark.parametrize("answer", ["Beatles", "the beatles", "The  Beatles!", "Fab Four"])
def test_case_punctuation_articles_and_spaces_do_not_matter(answer: str) -> None:
    assert exact_match(answer, ["The Beatles", "fab four"])


@pytest.mark.parametrize("answer", ["", " ", "the", "Beatles band", "Beat les"])
def test_what_says_less_more_or_nothing_is_no_exact_match(answer: str) -> None:
    assert not exact_match(answer, ["The Beatles"])


def test_an_answer_that_is_only_an_article_can_still_be_given() -> None:
    assert exact_match("A", ["a"])
    assert not exact_match("the", ["a"])
    assert f1_score("A", ["a"]) == 1.0


def test_f1_is_the_harmonic_mean_of_precision_and_recall_of_words() -> None:
    # 2 of 3 words are wanted and 2 of 4 are there: 2 * (2/3 * 1/2) / (2/3 + 1/2) = 4/7.
    assert f1_score("Sri Lanka team", ["Sri Lanka national cricket"]) == pytest.approx(4 / 7)


def test_a_word_counts_as_often_as_it_stands_there() -> None:
    # "new new" has one of the two words of "new york": precision 1/2, recall 1/2.
    assert f1_score("new new", ["New York"]) == pytest.approx(1 / 2)


def test_f1_takes_the_nearest_of_several_answers() -> None:
    # 1 of 1 word is wanted; of "New York Mets" 1 of 3: F1 1/2; of "Mets" all: 1.
    assert f1_score("Mets", ["New York Mets"]) == pytest.approx(1 / 2)
    assert f1_score("Mets", ["New York Mets", "Mets"]) == 1.0


def test_yes_and_no_share_nothing_with_longer_answers() -> None:
    assert f1_score("no doubt", ["no"]) == 0.0
    assert f1_score("yes", ["yes they are"]) == 0.0
    assert f1_score("Yes.", ["yes"]) == 1.0


@pytest.mark.parametrize(("answer", "accepted"), [("", ["Rome"]), ("Rome", []), ("Paris", ["Rome"])])
def test_nothing_in_common_is_zero(answer: str, accepted: list[str]) -> None:
    assert f1_score(answer, accepted) == 0.0
    assert not exact_match(answer, accepted)


# --- rules that hold for any text ------------------------------------------------------------------------------------

EMPTY = st.text(alphabet=string.punctuation + " \n\t", max_size=8)


@given(EMPTY, st.text(max_size=20) | EMPTY)
def test_what_is_empty_without_punctuation_matches_nothing(empty: str, other: str) -> None:
    assert normalise_text(empty) == ""
    assert not exact_match(empty, [other])
    assert not exact_match(other, [empty])
    assert f1_score(empty, [other]) == f1_score(other, [empty]) == 0.0


@given(st.text(max_size=30))
def test_a_text_matches_itself_however_it_is_dressed(text: str) -> None:
    matches = bool(normalise_text(text))
    for dressed in (text, f"  {text} \n", f"{text}.", f"'{text}'"):
        assert exact_match(dressed, [text]) == matches


@given(st.text(max_size=30), st.text(max_size=30))
def test_a_match_is_the_same_in_both_directions_and_has_an_f1_of_1(one: str, other: str) -> None:
    assert exact_match(one, [other]) == exact_match(other, [one])
    assert not exact_match(one, [other]) or f1_score(one, [other]) == 1.0


@given(st.integers(-(10**6), 10**6), st.integers(0, 3), st.integers(-(10**6), 10**6), st.integers(0, 3))
def test_numbers_that_differ_never_match_as_text(one: int, places: int, other: int, other_places: int) -> None:
    left, right = Fraction(one, 10**places), Fraction(other, 10**other_places)
    assert exact_match(number_text(left), [f"${number_text(right)}"]) == (left == right)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("15", "1.5"), ("5", "-5"), ("32", "3/2"), ("1030", "10:30"), ("15", "1,5"), ("5", ".5"), ("5", "\u22125"),
     ("105", "10-5")],
)  # fmt: skip
def test_a_number_is_not_the_one_without_its_punctuation(wrong: str, right: str) -> None:
    assert not exact_match(wrong, [right])
    assert exact_match(f"{right}.", [right])


@pytest.mark.parametrize(
    ("one", "other"), [("1,000", "1000"), ("-$5", "-5"), ("(A).", "a"), ("1991\u201392", "1991-92")]
)
def test_other_dress_does_not_matter(one: str, other: str) -> None:
    assert exact_match(one, [other])


@pytest.mark.parametrize("said", ["", "the", "!!!", "an", "B"])
def test_only_the_letter_a_is_the_answer_a(said: str) -> None:
    assert not exact_match(said, ["A"])


# --- ground truths ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("truth", [None, "", "  ", [], [None], {}])
@pytest.mark.parametrize("kind", ["text", "exact", "number"])
def test_a_missing_ground_truth_is_said_to_be_missing(truth: Any, kind: Any) -> None:
    assert truth_problem(truth, kind) == "it has no ground truth (reward_model.ground_truth)"


def test_a_mapping_as_ground_truth_is_named() -> None:
    """It is there, and no answer can be compared with it."""
    assert truth_problem({"value": 12}) == (
        "its ground truth {'value': 12} is a mapping; give text, a number or a list of them"
    )


@pytest.mark.parametrize("truth", [None, "", "  ", [], [None], {}])
@pytest.mark.parametrize("answer", ["", "none", "None", "[]"])
def test_a_missing_ground_truth_is_an_error_and_never_a_match(truth: Any, answer: str) -> None:
    assert not exact_match(answer, truth)
    with pytest.raises(DataError, match="has no ground truth"):
        same_text(answer, truth)


def test_a_ground_truth_of_punctuation_matches_only_letter_for_letter() -> None:
    assert "is empty without punctuation" in (truth_problem("!!!") or "")
    assert truth_problem("!!!", "exact") is None
    assert (same_text(" !!! ", "!!!"), same_text("!!", "!!!"), same_text("", "!!!")) == (True, False, False)


def test_a_ground_truth_may_be_a_number_or_a_list() -> None:
    assert exact_match("12", accepted_answers(12))
    assert exact_match("roma", accepted_answers(("Rome", "Roma")))
    assert [truth_problem(truth) for truth in (0, False, ["", "x"])] == [None, None, None]
