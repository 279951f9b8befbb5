"""Dollars to micros and back: the only place that knows how many micros a dollar has.

Amounts enter as decimal text and leave as decimal text; in between they are whole micro-dollars.
Reading is strict: what a person may have meant in another way (``1e3``, ``1,000``, a sign, a
space) is refused rather than guessed. Nothing here ever is a binary floating-point number.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from finomw import limits
from finomw.errors import InvalidValue, quoted
from finomw.types import Micros

MICROS_PER_USD: Final = 1_000_000

_DECIMALS: Final = len(str(MICROS_PER_USD)) - 1
_DIGITS_MAX: Final = 30
_PLAIN_DECIMAL: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+")


def from_usd(text: str | int) -> Fraction:
    """Return the exact micros of a plain decimal number of dollars; they need not be whole.

    Raises
    ------
    InvalidValue
        Anything but decimal digits with at most one point, or more than 30 digits.
    """
    if isinstance(text, str):
        written = text
    elif type(text) is int and abs(text) < 10**_DIGITS_MAX:
        written = str(text)
    else:
        raise InvalidValue('expected a decimal amount in quotes such as "0.50"')
    if not _PLAIN_DECIMAL.fullmatch(written):
        raise InvalidValue(
            f'expected a decimal amount in quotes such as "0.50", found {quoted(written)}'
        )
    if len(written) - written.count(".") > _DIGITS_MAX:
        raise InvalidValue(f"expected at most {_DIGITS_MAX} digits, found {quoted(written)}")
    return Fraction(written) * MICROS_PER_USD


def amount(text: str | int, *, least: Micros = 1) -> Micros:
    """Return the micros of an amount of dollars that is to be booked, at least ``least``.

    Raises
    ------
    InvalidValue
        As ``from_usd``; or not whole micros, below ``least`` or above ``limits.AMOUNT_MAX``.
    """
    micros = from_usd(text)
    if micros.denominator != 1:
        raise InvalidValue(f"finer than a micro-dollar ({_DECIMALS} decimals at most): {text}")
    if micros < least:
        raise InvalidValue(f"expected at least {to_usd(least)} dollars, found {text}")
    if micros > limits.AMOUNT_MAX:
        raise InvalidValue(f"expected at most {to_usd(limits.AMOUNT_MAX)} dollars, found {text}")
    return micros.numerator


def to_usd(micros: Micros) -> str:
    """Return the exact dollars of ``micros`` as text, with at least two decimals: ``-12.50``."""
    sign = "-" if micros < 0 else ""
    dollars, rest = divmod(abs(micros), MICROS_PER_USD)
    decimals = f"{rest:0{_DECIMALS}}".rstrip("0").ljust(2, "0")
    return f"{sign}{dollars}.{decimals}"


def exact_usd(micros: Fraction) -> str:
    """Return the exact dollars of a rational number of micros, at least zero, as text.

    It has at least two decimals and as many as it needs: ``0.0000005``; where none would be
    enough, it is a fraction: ``1/3``.
    """
    dollars = micros / MICROS_PER_USD
    for places in range(2, max(2, dollars.denominator.bit_length()) + 1):
        scaled = dollars * 10**places
        if scaled.denominator == 1:
            digits = str(scaled.numerator).rjust(places + 1, "0")
            return f"{digits[:-places]}.{digits[-places:]}"
    return str(dollars)
