"""Answers against accepted answers: exact matches and F1, worked out by hand."""

from __future__ import annotations

import pytest

from agent_r1.rewards import exact_match, f1_score


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
