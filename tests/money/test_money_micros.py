"""Dollars to micros and back."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw import limits
from finomw.errors import InvalidValue
from finomw.money.micros import amount, exact_usd, from_usd, to_usd

LARGEST = "9007199254.740992"


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1", 1_000_000),
        (3, 3_000_000),
        ("0.50", 500_000),
        (".5", 500_000),
        ("007.10", 7_100_000),
        ("0", 0),
        ("0.0000005", Fraction(1, 2)),
        ("0." + "0" * 28 + "1", Fraction(1, 10**23)),
    ],
)
def test_from_usd_is_exact(text: str | int, micros: Fraction | int) -> None:
    assert from_usd(text) == micros


@pytest.mark.parametrize(
    "text",
    ["", ".", "5.", "-5", "+5", -5, "1e3", "NaN", "inf", "1,000", "1_000", " 1", "1 ", "1\n",
     "1.2.3", "٣", "\uff11", "0x10", "½", "1/2", "$1", True, None, 0.5, 10**30],
)  # fmt: skip
def test_from_usd_reads_plain_decimals_only(text: str | int) -> None:
    with pytest.raises(InvalidValue, match=r'expected a decimal amount in quotes such as "0\.50"'):
        from_usd(text)


def test_from_usd_reads_thirty_digits_and_no_more() -> None:
    assert from_usd("1" * 15 + "." + "1" * 15) == Fraction(int("1" * 30), 10**9)
    with pytest.raises(InvalidValue, match="expected at most 30 digits"):
        from_usd("1" * 16 + "." + "1" * 15)


def test_an_amount_is_whole_micros_within_its_bounds() -> None:
    assert amount("0.000001") == 1
    assert amount("12.5000000") == 12_500_000
    assert amount(LARGEST) == limits.AMOUNT_MAX
    assert amount("0", least=0) == 0
    assert amount(0, least=0) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.0000001", r"^finer than a micro-dollar \(6 decimals at most\): 0\.0000001$"),
        ("0", r"^expected at least 0\.000001 dollars, found 0$"),
        ("9007199254.740993", r"^expected at most 9007199254\.740992 dollars, found 9007199254\."),
        ("-1", r'^expected a decimal amount in quotes such as "0\.50", found "-1"$'),
    ],
)
def test_an_amount_that_cannot_be_booked_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        amount(text)


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "0.00"),
        (12_500_000, "12.50"),
        (2_000, "0.002"),
        (-1, "-0.000001"),
        (-12_345_678, "-12.345678"),
        (1_234_567_000_000, "1234567.00"),
        (limits.AMOUNT_MAX, LARGEST),
    ],
)
def test_to_usd_is_exact_with_two_decimals_at_least(micros: int, text: str) -> None:
    assert to_usd(micros) == text


@settings(derandomize=True)
@given(st.integers(1, limits.AMOUNT_MAX))
def test_what_is_shown_reads_as_the_same_amount(micros: int) -> None:
    assert amount(to_usd(micros)) == micros
    assert to_usd(-micros) == "-" + to_usd(micros)


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (Fraction(0), "0.00"),
        (Fraction(1), "0.000001"),
        (Fraction(1, 2), "0.0000005"),
        (Fraction(1_000_000), "1.00"),
        (Fraction(12_345_678, 10), "1.2345678"),
        (Fraction(1_500_000), "1.50"),
        (Fraction(1, 3), "1/3000000"),
    ],
)
def test_exact_usd_has_every_decimal_it_needs(micros: Fraction, text: str) -> None:
    assert exact_usd(micros) == text


@settings(derandomize=True)
@given(st.integers(0, 10**30), st.integers(0, 30), st.integers(1, 10**12))
def test_exact_usd_of_what_config_reads_is_the_same_amount(
    digits: int, places: int, count: int
) -> None:
    micros = Fraction(digits, 10**places) * count
    assert Fraction(exact_usd(micros)) * 1_000_000 == micros
