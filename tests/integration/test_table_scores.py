"""The scores of the recipe tables, case by case, as the official evaluators of both data sets decide them.

Where a comment says "officially", they decide otherwise.
"""

from __future__ import annotations

import pytest

from recipes.tables.denotation import is_right, normal_form
from recipes.tables.tatqa_score import exact_and_f1

# --- WikiTableQuestions ----------------------------------------------------------------------------------------------

NUMBERS = [
    (["1,234"], ["1234"], True),
    (["1234"], ["1,234"], False),  # an answer is read strictly
    (["3"], ["3.0"], True),
    (["3"], ["3."], True),
    (["3"], ["+3"], True),
    (["0.5"], [".5"], True),
    (["1500"], ["1.5e3"], True),
    (["3"], ["3.0000001"], True),
    (["3"], ["2.9999999"], True),  # officially cut to 2
    (["3"], ["3.00001"], False),
    (["3"], ["3.1"], False),
    (["3"], ["-3"], False),
    (["-3"], ["\N{MINUS SIGN}3"], True),  # as a text: dashes are one
    (["3"], ["three"], False),
    (["3"], ["3 goals"], False),
    (["0"], [""], False),
    (["1"], ["nan"], False),
    (["1"], ["inf"], False),
    (["1"], ["1e400"], False),
]
DATES = [
    (["June 7, 2003"], ["2003-06-07"], True),
    (["June 7, 2003"], ["2003-6-7"], True),
    (["7 June 2003"], ["2003-06-07"], True),
    (["June 7, 2003"], ["june 7, 2003"], True),
    (["June 7, 2003"], ["2003-06-08"], False),
    (["June 7, 2003"], ["xx-06-07"], False),  # all three must be equal
    (["June 7, 2003"], ["2003-06-xx"], False),
    (["June 7"], ["xx-06-07"], True),
    (["June 7"], ["xxxx-06-07"], True),
    (["June 7"], ["2003-06-07"], False),
    (["June 2003"], ["2003-06-xx"], True),
    (["2003-06-07"], ["2003-06-07"], True),
    (["2003"], ["2003-xx-xx"], True),  # a year alone is a number
    (["2003"], ["2003"], True),
    (["2003"], ["xx-xx-xx"], False),
    (["2003-13-01"], ["2003-13-1"], False),  # no date, and other texts
    (["2003-01-32"], ["2003-1-32"], False),
]
TEXTS = [
    (["Paris"], ["PARIS"], True),
    (["Paris"], ["  paris "], True),
    (["New  York"], ["New York"], True),
    (["Caf\u00e9"], ["cafe"], True),
    (["\u0130zmir"], ["izmir"], True),
    (["\ufb01rst"], ["first"], True),  # compatibility forms
    (["\u2018Hi\u2019"], ["'hi'"], True),
    (["\u201cThin Line\u201d"], ["Thin Line"], True),
    (['"Thin Line"'], ["Thin Line"], True),
    (['"Thin" Line'], ["Thin Line"], False),  # only marks around the whole
    (["'Thin Line'"], ["Thin Line"], False),
    (["1-0"], ["1\N{EN DASH}0"], True),
    (["Smith[2]"], ["Smith"], True),
    (["Smith[note 2]"], ["Smith\u2020"], True),
    (["Smith*"], ["Smith#+"], True),
    (["[2] Smith"], ["Smith"], False),  # only at the end
    (["Paris (France)"], ["paris"], True),
    (["Paris (France) (old)"], ["paris"], True),
    (["Paris(France)"], ["Paris"], False),  # a remark has a space before it
    (["(a)"], ["(b)"], False),  # a text that is all remark stays
    (['"Paris" (song)[1]'], ["paris"], True),  # one after another
    (["St. Johns."], ["st. johns"], True),
    (["a.."], ["a"], False),  # one full stop is removed
    (["Paris"], ["Paris, France"], False),
]
SETS = [
    (["a", "b"], ["b", "a"], True),
    (["a", "b"], ["a", "a"], False),
    (["a", "b"], ["a"], False),
    (["a"], ["a", "b"], False),
    (["a", "a"], ["A"], True),
    (["a"], ["a", "A"], True),
    (["3"], ["3", "3.0"], True),  # one number
    (["3", "3.0"], ["3"], True),
    (["June 7, 2003"], ["2003-06-07", "2003-6-7"], True),  # one date
    (["1", "2", "3"], ["3", "1", "2"], True),
    (["1", "June 7"], ["xx-06-07", "1.0"], True),
    (["a"], [], False),
    (["1"], ["1" * 700], False),
    (["1"], ["1"] * 101, False),  # a limit of ours
]


@pytest.mark.parametrize("cases", [NUMBERS, DATES, TEXTS, SETS], ids=["numbers", "dates", "texts", "sets"])
def test_denotations_are_those_of_the_official_rules(cases: list[tuple[list[str], list[str], bool]]) -> None:
    assert [case for case in cases if is_right(case[0], case[1]) != case[2]] == []


def test_the_normal_form_is_a_fixed_point() -> None:
    texts = [text for cases in (NUMBERS, DATES, TEXTS, SETS) for gold, answer, _ in cases for text in (*gold, *answer)]
    stable = [text for text in texts if not normal_form(text).endswith(".")]
    assert [text for text in stable if normal_form(normal_form(text)) != normal_form(text)] == []


# --- TAT-QA ----------------------------------------------------------------------------------------------------------

RIGHT, WRONG = (1.0, 1.0), (0.0, 0.0)
CALCULATED = [
    # gold, its scale, answer, its scale
    ("-12.6", "million", "-12.6", "million", RIGHT),
    ("-12.6", "million", "(12.6)", "Millions", RIGHT),
    ("-1234", "", "(1,234)", "", RIGHT),  # officially only without a comma
    ("-12.6", "million", "12.6", "million", WRONG),
    ("-12.6", "million", "-12.6", "", WRONG),
    ("-12.6", "million", "-12.6", "thousand", WRONG),
    ("1.5", "million", "1,500", "thousand", RIGHT),
    ("1.5", "million", "1500000", "", RIGHT),
    ("1.5", "million", "0.0015", "billion", WRONG),  # rounded to two places before its scale
    ("1.5", "million", "1.5 million", "", RIGHT),
    ("1.5", "million", "1.5 million", "million", WRONG),  # twice
    ("1.5", "million", "$1.50", "million", RIGHT),
    ("1.5", "million", "1.504", "million", RIGHT),
    ("1.5", "million", "1.51", "million", WRONG),
    ("2", "billion", "2,000", "million", RIGHT),
    ("3", "thousand", "3000", "", RIGHT),
    ("22.22", "percent", "22.22", "percent", RIGHT),
    ("22.22", "percent", "22.22%", "", RIGHT),
    ("22.22", "percent", "22.22 %", "percent", RIGHT),  # the sign is the scale
    ("22.22", "percent", "22.22", "", WRONG),
    ("22.22", "percent", "0.2222", "", RIGHT),  # a share
    ("22.22", "percent", "0.22", "", WRONG),
    ("22.22", "percent", "0.2222", "percent", WRONG),
    ("22.22", "percent", "22.2", "percent", WRONG),
    ("22.22", "percent", "22.218", "percent", RIGHT),
    ("-3.5", "percent", "(3.5)%", "", RIGHT),  # officially 3.5
    ("0", "percent", "-0", "percent", RIGHT),
    ("2", "", "2", "none", RIGHT),
    ("2", "", "2", "dozen", WRONG),  # officially an unknown scale is none
    ("2", "", "two", "", WRONG),
    ("2019", "", "2019.", "", RIGHT),
    ("1234567", "", "1234568", "", WRONG),
]
SPANS = [
    (["the net sales"], "", ["Net sales."], "", RIGHT),
    (["net sales"], "", ["the sales"], "", (0.0, 0.67)),
    (["net sales of 2019"], "", ["net sales"], "", (0.0, 0.67)),  # a number is a word like others
    (["non-current"], "", ["noncurrent"], "", RIGHT),  # punctuation inside a word goes
    (["non-current"], "", ["non current"], "", WRONG),
    (["R&D"], "", ["rd"], "", RIGHT),
    (["rose by 1,234.50"], "", ["rose by $1234.5"], "", RIGHT),
    (["rose by 12%"], "", ["rose by 12"], "", (0.0, 0.67)),
    (["grew 1234567"], "", ["grew 1234568"], "", (0.0, 0.5)),
    (["a b", "c d"], "", ["c d", "a b"], "", RIGHT),
    (["x y", "c d"], "", ["c d"], "", (0.0, 0.67)),  # the words of all spans are one bag
    (["x y", "c d"], "", ["c d", "z w"], "", (0.0, 0.5)),
    (["2019", "2018"], "", ["2018", "2019"], "", RIGHT),
    (["1.5", "2"], "million", ["2,000", "1,500"], "thousand", RIGHT),
    (["1.5", "2"], "million", ["2", "1.5"], "", WRONG),
    (["apple", "Banana"], "", ["Apple", "banana"], "", RIGHT),  # officially capitals sort first
    (["sales"], "million", ["sales"], "", (0.0, 0.67)),  # the scale of a text is a word
    (["sales"], "million", ["sales"], "million", RIGHT),
    (["-"], "", ["."], "", WRONG),  # officially both are nothing
    (["x"], "", [], "", WRONG),
    (["x"], "", ["x"] * 50, "", WRONG),
]


def test_numbers_of_tatqa_are_compared_with_their_scale() -> None:
    found = [(*case[:4], exact_and_f1([case[0]], case[1], [case[2]], case[3], numeric=True)) for case in CALCULATED]
    assert [case for case, expected in zip(found, CALCULATED, strict=True) if case != expected] == []


def test_spans_of_tatqa_are_bags_of_words() -> None:
    found = [(*case[:4], exact_and_f1(case[0], case[1], case[2], case[3], numeric=False)) for case in SPANS]
    assert [case for case, expected in zip(found, SPANS, strict=True) if case != expected] == []
    assert exact_and_f1(["2 items"], "", ["2 goods"], "", numeric=True) == WRONG  # counted: no part of it
