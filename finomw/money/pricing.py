"""What a call costs: exact rates, computed in integers, rounded once at the end.

The rates of a list are brought over one common denominator when the plan is compiled, so that
pricing a call multiplies and adds integers and divides once: the sum over its meters (``rates.py``
says how each becomes money), raised to the list's minimum if the call used anything at all, then
rounded by the plan's rounding. With ``up`` a call that used something at a price above zero
therefore never costs nothing. A list's version names all that makes its prices, so that a record
can say by which price it was charged.

A meter that is a part of another is priced as that one where it has no price here: with it, as if
nobody had told them apart. A hold is made for a meter and its parts together, at the dearest.

How much a customer used so far in the period is given from outside. Between a call's hold and its
settlement other calls may settle, so a hold needs the worst price over all of that: ``worst``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Final, Literal, NamedTuple, TypeAlias

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
_NONE: Final[Mapping[str, str]] = {}


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
    folds: Mapping[str, str]
    """Meters that are added to another before it is priced, and to which."""
    parts: Mapping[str, tuple[str, ...]]
    """The parts of a meter that have prices of their own, where some have."""
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
        parents: Mapping[str, str] = _NONE,
    ) -> PriceList:
        """Return the list of these prices; their order does not matter.

        ``period`` is what tiers count by. It and ``valid_from`` are only named in the version.
        ``parents`` are the meters that are parts of others, and of which.
        """
        rates = [rate for price in prices.values() for rate in rates_of(price)]
        denominator = math.lcm(minimum.denominator, *(rate.denominator for rate in rates))
        addends = {"up": denominator - 1, "down": 0, "half_up": denominator // 2}
        tiered = frozenset(meter for meter, price in prices.items() if isinstance(price, Tiers))
        family = Family.of(prices, parents)
        lines = [f"rounding {rounding}"]
        if minimum:
            lines.append(f"minimum {minimum}")
        if tiered:
            lines.append(f"period {period.name.lower()}")
        if valid_from is not None:
            lines.append(f"valid_from {valid_from}")
        lines += sorted(f"{meter} {price_text(price)}" for meter, price in prices.items())
        lines += sorted(f"{meter} as {parent}" for meter, parent in family.folds.items())
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
            tiered_meters=family.counted(tiered),
            folds=family.folds,
            parts=family.parts,
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
            The price is above ``limits.AMOUNT_MAX``, or a meter with its parts above
            ``limits.COUNT_MAX``.
        InvariantBroken
            A count is not an integer from 0 to ``limits.COUNT_MAX``, or usage none from 0.
        """
        if self.folds:
            counts, used = self.folded(counts), self.folded(used)
        numerators = self.numerators
        total = 0
        for meter, count in counts.items():
            if type(count) is not int or not 0 <= count <= limits.COUNT_MAX:
                raise self._no_count(meter, count)
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
        A ceiling is that of a meter and its parts together: at the dearest rate of them, or where
        some have tiers or packages, for each of them, which may be more than is ever reached.

        Raises as ``price`` does.
        """
        if not self.tiered_meters and not self.parts:
            return self.price(ceiling, used)  # which rises with each count
        if self.folds:
            ceiling, used, others = map(self.folded, (ceiling, used, others))
        total = 0
        for meter, count in ceiling.items():
            if type(count) is not int or not 0 <= count <= limits.COUNT_MAX:
                raise self._no_count(meter, count)
            family = (meter, *self.parts.get(meter, ()))
            if all(each in self.numerators for each in family):
                total += count * max(self.numerators[each] for each in family)
            else:
                total += sum(self._worst(meter, each, count, used, others) for each in family)
        return self._rounded(total, ceiling)

    def _worst(self, held: str, meter: str, count: int, used: Counts, others: Counts) -> int:
        """Return the worst of up to ``count`` units of a meter that is held with ``held``."""
        if meter in self.numerators:
            return count * self.numerators[meter]
        more = units(others, meter) + (units(others, held) if held != meter else 0)
        return self.scale(meter).worst(count, units(used, meter), more)

    def folded(self, counts: Counts) -> Counts:
        """Return the counts as they are priced: what has no price with what it is a part of."""
        rest: Counts = {}
        for meter, count in counts.items():
            if type(count) is not int or count < 0:
                raise _no_count(meter, count)
            into = self.folds.get(meter, meter)
            rest[into] = rest.get(into, 0) + count
        return rest

    def _no_count(self, meter: str, count: object) -> InvalidValue | InvariantBroken:
        if type(count) is int and count > 0 and meter in self.folds.values():
            return InvalidValue(f"{meter} and its parts are more than {limits.COUNT_MAX}")
        return _no_count(meter, count)

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


class Family(NamedTuple):
    """Which meters of a list are priced with others, and which apart though held with others."""

    folds: Mapping[str, str]
    parts: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, prices: Collection[str], parents: Mapping[str, str]) -> Family:
        """Work out both for the meters that have ``prices``."""
        folds: dict[str, str] = {}
        parts: dict[str, list[str]] = {}
        for meter in parents:
            above = _above(meter, parents)
            priced = next((each for each in above if each in prices), None)
            if meter not in prices and priced is not None:
                folds[meter] = priced
            elif meter in prices:
                for each in above:
                    parts.setdefault(each, []).append(meter)
        return cls(folds, {meter: tuple(sorted(found)) for meter, found in parts.items()})

    def counted(self, tiered: frozenset[str]) -> frozenset[str]:
        """Return the meters whose usage has to be counted where these have tiers."""
        folded = {meter for meter, into in self.folds.items() if into in tiered}
        above = {meter for meter, found in self.parts.items() if not tiered.isdisjoint(found)}
        return tiered | folded | above


def _above(meter: str, parents: Mapping[str, str]) -> list[str]:
    """Return what a meter is a part of, the nearest first."""
    found: list[str] = []
    while (parent := parents.get(meter)) is not None:
        found.append(parent)
        meter = parent
    return found


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
