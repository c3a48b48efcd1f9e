"""Numbers in text: whatever way one is written, it is read back exactly; what is no number is not read as one."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1.errors import DataError
from agent_r1.rewards import (
    find_last_number,
    find_marked_number,
    last_number,
    number_matches,
    number_text,
    to_number,
)
from tests.helpers.fuzzing import cases

MINUS = ("-", "\u2212", "\u2013", "\uff0d")
SEPARATORS = ("", ",", " ", "\u00a0", "\u202f", "\u2009", "'", "\u2019", "_", "{,}", "\\,")
BEFORE = ("", "The answer is ", "8 + 4 = ", "so\n", "答案是", "**", "(", "\\boxed{", "x=", "3 apples and ")
AFTER = ("", ".", " apples.", " kg", "%", "\\%", "**", ")", "}", "!", "\n", " €", "$")


def grouped(digits: str, separator: str) -> str:
    """Thousands apart.

    >>> grouped("1234567", ",")
    '1,234,567'
    """
    head = len(digits) % 3
    parts = [digits[:head]] * bool(head) + [digits[i : i + 3] for i in range(head, len(digits), 3)]
    return separator.join(parts)


@st.composite
def written_numbers(draw: st.DrawFn) -> tuple[Fraction, str]:
    """A number and one way to write it."""
    whole, places = draw(st.integers(0, 10**12)), draw(st.integers(0, 6))
    decimals = draw(st.integers(0, 10**places - 1)) if places else 0
    value = Fraction(whole) + Fraction(decimals, 10**places)
    text = grouped(str(whole), draw(st.sampled_from(SEPARATORS)))
    if places:
        text += f".{decimals:0{places}d}"
    form = draw(st.sampled_from(("plain", "exponent", "times", "over", "latex")))
    power = draw(st.integers(-12, 12))
    under = draw(st.integers(1, 10**4))
    if form == "exponent":
        value, text = value * Fraction(10) ** power, f"{text}{draw(st.sampled_from('eE'))}{power}"
    elif form == "times":
        sign = draw(st.sampled_from((" x ", "\u00d7", " \\times ", "*", " \\cdot ")))
        value, text = value * Fraction(10) ** power, f"{text}{sign}10^{draw(st.sampled_from(('%d', '{%d}')))}" % power
    elif form == "over" and "\\" not in text:
        value, text = value / under, f"{text}/{under}"
    elif form == "latex":
        value, text = Fraction(whole, under), f"\\frac{{{whole}}}{{{under}}}"
    currency = draw(st.sampled_from(("", "$", "€", "\\$"))) if form in ("plain", "exponent") else ""
    if draw(st.booleans()):
        minus = draw(st.sampled_from(MINUS))
        value, text = -value, draw(st.sampled_from((minus + currency + text, currency + minus + text)))
    else:
        text = currency + text
    return value, text


@pytest.mark.whole
@given(written=written_numbers(), before=st.sampled_from(BEFORE), after=st.sampled_from(AFTER))
@settings(max_examples=cases(1000), deadline=None)
def test_a_number_is_read_back_exactly_however_it_is_written(
    written: tuple[Fraction, str], before: str, after: str
) -> None:
    value, text = written
    assert find_last_number(f"{before}{text}{after}") == value
    assert find_marked_number(f"3 and 4\n#### {text}") == value


@pytest.mark.whole
@given(written=written_numbers(), other=written_numbers())
@settings(max_examples=cases(500), deadline=None)
def test_two_numbers_match_when_and_only_when_they_are_equal(
    written: tuple[Fraction, str], other: tuple[Fraction, str]
) -> None:
    assert number_matches(find_last_number(written[1]), other[1]) == (written[0] == other[0])


@pytest.mark.whole
@given(value=st.fractions(max_denominator=10**6), by=st.fractions(min_value=Fraction(1, 10**9), max_denominator=10**9))
@settings(max_examples=cases(300), deadline=None)
def test_one_form_of_every_number_reads_back(value: Fraction, by: Fraction) -> None:
    assert find_last_number(number_text(value)) == value
    assert number_text(value) != number_text(value + by)


@pytest.mark.whole
@given(st.text(alphabet=" 0123456789,.-+$%/^e\u00d7x*:'_{}()#\\abc½²\u2212", max_size=60))
@settings(max_examples=cases(1000), deadline=None)
def test_no_text_makes_reading_raise(text: str) -> None:
    for read in (find_last_number, find_marked_number):
        found = read(text)
        assert found is None or find_last_number(number_text(found)) == found


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3/2", Fraction(3, 2)),
        ("3.0e5", 300_000),
        ("\u22125", -5),
        ("-$5", -5),
        ("-US$5", -5),
        ("USD200", 200),
        ("= - 5", -5),
        ("½", Fraction(1, 2)),
        ("-1½", Fraction(-3, 2)),
        ("1 1/2", Fraction(3, 2)),
        ("1 000/4", 250),
        ("1 500/2000", Fraction(3, 4)),
        ("10⁻³", Fraction(1, 1000)),
        ("12,50,000", 1_250_000),
        ("90^\\circ", 90),
        ("**5**", 5),
        ("1,2,3", 3),
        ("so 10-5", 5),
    ],
)
def test_forms_of_numbers(text: str, number: Fraction | int) -> None:
    assert find_last_number(text) == number


@pytest.mark.parametrize(
    "text",
    ["3:45", "12/05/2024", "1.2.3", "3,5", "1.234,56", "2^10", "2**10", "5²", "0x1F", "2x3", "1/0", "2 7/3", "CO2",
     "x_1", "1e999999999", "9" * 301, "10^9999", "", "none", "e", "."],
)  # fmt: skip
def test_what_looks_like_a_number_and_cannot_be_read_is_none(text: str) -> None:
    assert find_last_number(text) is None
    assert find_last_number(f"12 of {text}") in (None, 12)


@pytest.mark.whole
@pytest.mark.parametrize("make", [lambda n: "1" * n, lambda n: "1 " * n, lambda n: "$-" * n, lambda n: "1,234" * n])
def test_long_text_is_read_in_linear_time(make: Callable[[int], str]) -> None:
    find_last_number(make(50_000))  # the suite's time limit would notice anything else


def test_large_numbers_that_round_to_one_float_are_still_different() -> None:
    assert not number_matches(find_last_number(str(10**17 + 1)), 10**17)
    assert last_number(str(10**17 + 1)) == float(10**17)


@pytest.mark.parametrize(("truth", "number"), [(0.1, Fraction(1, 10)), ("$1,000", 1000), (7, 7), (1e22, 10**22)])
def test_ground_truths_are_read_as_they_print(truth: object, number: Fraction | int) -> None:
    assert to_number(truth) == number


@pytest.mark.parametrize("truth", [None, "", "three", True, float("nan"), float("inf"), [], {}])
def test_a_ground_truth_that_is_no_number_is_an_error_and_never_a_match(truth: object) -> None:
    assert to_number(truth) is None
    for text in ("", "3", "none", "None", "True"):
        with pytest.raises(DataError, match="cannot be scored"):
            number_matches(find_last_number(text), truth)


def test_one_of_several_right_numbers_is_enough() -> None:
    assert number_matches(find_last_number("1.5"), ["3", "3/2"])
