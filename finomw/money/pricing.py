"""What a call costs: exact rates, computed in integers, rounded once at the end.

The rates of a list are brought over one common denominator when the plan is compiled, so that
pricing a call multiplies and adds integers and divides once: the sum over its meters (``rates.py``
says how each becomes money), raised to the list's minimum if the call used anything at all, then
rounded by the plan's rounding. With ``up`` a call that used something at a price above zero
therefore never costs nothing. A list's version names all that makes its prices, so that a record
can say by which price it was charged.

How much a customer used so far in the period is given from outside. Between a call's hold and its
settlement other calls may settle, so a hold needs the worst price over all of that: ``worst``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Final, Literal, TypeAlias

import msgspec

from finomw import limits
from finomw.errors import InvalidValue, InvariantBroken, Unpriced
from finomw.money.micros import to_usd
from finomw.money.periods import Per
from finomw.money.rates import MeterPrice, PackageScale, Rate, Scale, Tiers, rates_of, scale_of
from finomw.money.rates import written as price_text
from finomw.types import Counts, Micros, UnixMicroseconds

Rounding: TypeAlias = Literal["up", "down", "half_up"]

_VERSION_DIGITS: Final = 12


class PriceList(msgspec.Struct, frozen=True):
    """The prices of one route's meters, made by ``of``. All its numbers are numerators."""

    numerators: Mapping[str, int]
    """The rate of each meter that has one rate for each unit."""
    scales: Mapping[str, Scale]
    """The scale of each other meter."""
    otherwise: Scale | None
    """The scale of meters that are in neither; ``None`` where they are unpriced."""
    minimum: int
    """What a call that used anything costs at least."""
    denominator: int
    addend: int
    """Added before the division that drops the remainder: this is the rounding."""
    rounding: Rounding
    tiered_meters: frozenset[str]
    """The meters whose price depends on the usage so far, which must be counted."""
    version: str
    """The first 12 hex digits of a SHA-256 over all that makes a price."""

    @classmethod
    def of(
        cls,
        prices: Mapping[str, MeterPrice],
        rounding: Rounding,
        *,
        minimum: Rate = Fraction(0),
        period: Per = Per.MONTH,
        valid_from: UnixMicroseconds | None = None,
    ) -> PriceList:
        """Return the list of these prices; their order does not matter.

        ``period`` is what tiers count by. It and ``valid_from`` are only named in the version.
        """
        rates = [rate for price in prices.values() for rate in rates_of(price)]
        denominator = math.lcm(minimum.denominator, *(rate.denominator for rate in rates))
        addends = {"up": denominator - 1, "down": 0, "half_up": denominator // 2}
        tiered = frozenset(meter for meter, price in prices.items() if isinstance(price, Tiers))
        lines = [f"rounding {rounding}"]
        if minimum:
            lines.append(f"minimum {minimum}")
        if tiered:
            lines.append(f"period {period.name.lower()}")
        if valid_from is not None:
            lines.append(f"valid_from {valid_from}")
        lines += sorted(f"{meter} {price_text(price)}" for meter, price in prices.items())
        return cls(
            numerators={
                meter: int(price * denominator)
                for meter, price in prices.items()
                if isinstance(price, Fraction)
            },
            scales={
                meter: scale_of(price, denominator)
                for meter, price in prices.items()
                if not isinstance(price, Fraction)
            },
            otherwise=None,
            minimum=int(minimum * denominator),
            denominator=denominator,
            addend=addends[rounding],
            rounding=rounding,
            tiered_meters=tiered,
            version=_digest(lines),
        )

    @classmethod
    def free(cls) -> PriceList:
        """Return the list by which any meter costs nothing."""
        nothing = cls.of({}, "up")
        version = _digest(["free"])
        return msgspec.structs.replace(nothing, otherwise=PackageScale(1, 0), version=version)

    @property
    def costs(self) -> bool:
        """Whether any use can cost anything by this list."""
        return bool(self.minimum or self.scales or any(self.numerators.values()))

    def price(self, counts: Counts, used: Counts) -> Micros:
        """Return what these counts cost after the usage so far in the period, rounded once.

        ``used`` needs the ``tiered_meters``; one that is not in it was not used yet.

        Raises
        ------
        Unpriced
            A count's meter has no price here.
        InvalidValue
            The price is above ``limits.AMOUNT_MAX``.
        InvariantBroken
            A count is not an integer from 0 to ``limits.COUNT_MAX``, or usage none from 0.
        """
        numerators = self.numerators
        total = 0
        for meter, count in counts.items():
            if type(count) is not int or not 0 <= count <= limits.COUNT_MAX:
                raise _no_count(meter, count)
            numerator = numerators.get(meter)
            if numerator is None:
                total += self.scale(meter).cost(count, units(used, meter))
            else:
                total += count * numerator
        return self._rounded(total, counts)

    def worst(self, ceiling: Counts, used: Counts, others: Counts) -> Micros:
        """Return the highest price that a call of at most these counts may turn out to have.

        It is that of the dearest counts up to ``ceiling``, at the dearest usage from ``used`` to
        ``used + others``, for each meter: exactly the highest, so it is reached. ``others`` are
        the counts of the customer's other open holds, of which any may settle before this call.

        Raises as ``price`` does.
        """
        tiered = self.tiered_meters
        if not tiered:
            return self.price(ceiling, used)  # which rises with each count
        total = 0
        for meter, count in ceiling.items():
            if type(count) is not int or not 0 <= count <= limits.COUNT_MAX:
                raise _no_count(meter, count)
            if meter in self.numerators:
                total += count * self.numerators[meter]
            else:
                total += self.scale(meter).worst(count, units(used, meter), units(others, meter))
        return self._rounded(total, ceiling)

    def scale(self, meter: str) -> Scale:
        """Return the scale of a meter that has more than a rate; raises `Unpriced` without one."""
        scale = self.scales.get(meter, self.otherwise)
        if scale is None:
            raise Unpriced(meter)
        return scale

    def _rounded(self, total: int, counts: Counts) -> Micros:
        if total < self.minimum and any(counts.values()):
            total = self.minimum
        micros = (total + self.addend) // self.denominator
        if micros > limits.AMOUNT_MAX:
            most = to_usd(limits.AMOUNT_MAX)
            raise InvalidValue(f"the price of one call is above the largest amount, {most} dollars")
        return micros


def units(usage: Counts, meter: str) -> int:
    """Return how much of a meter was used; raises `InvariantBroken` unless it is a number of it."""
    count = usage.get(meter, 0)
    if type(count) is not int or count < 0:
        raise InvariantBroken(f"usage of {meter} that nothing may have counted: {count!r}")
    return count


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_VERSION_DIGITS]


def _no_count(meter: str, count: object) -> InvariantBroken:
    return InvariantBroken(f"a count of {meter} that metering must refuse: {count!r}")
