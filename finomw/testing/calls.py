"""The model ledger's calls: hold, then settle or release; and holds that outlive a request.

A hold remembers what each source gave to it. Its ending uses those parts in the order in which
they were given, returns the rest, and charges what goes beyond them to the plan's last fund.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from finomw.errors import InvalidValue, NotFound
from finomw.testing.model import ModelBooks, ModelHold, ModelPart
from finomw.testing.plans import ModelPlan
from finomw.types import Counts, Fund, Micros, OnCrash, Refusal, UnixMicroseconds


@dataclass(frozen=True)
class ModelRequest:
    """What a call wants set aside: at most ``ceiling``, or exactly that where it is ``flat``."""

    customer: str
    plan: ModelPlan
    ceiling: Counts
    buffer: Micros
    on_crash: OnCrash = OnCrash.RELEASE
    cap: bool = False
    flat: bool = False
    owner: int | None = 0
    expires: UnixMicroseconds | None = None


class ModelLedger(ModelBooks):
    """Customers with their calls."""

    def prepare(self, request: ModelRequest, now: UnixMicroseconds) -> Refusal | ModelHold:
        """Do what is due before a call, and say what its hold would be, or why there is none."""
        account = self.customers.get(request.customer)
        if account is None or account.status == "closed":
            return Refusal.UNKNOWN_CUSTOMER
        self.expire(request.customer, now)
        self.begin_periods(request.customer, request.plan, now)
        if account.status == "suspended":
            return Refusal.SUSPENDED
        if account.blocked:
            return Refusal.BLOCKED
        hold = self._divide(request, idle=False)
        if self._covered(request, hold, idle=False):
            return hold
        covered = self._covered(request, self._divide(request, idle=True), idle=True)
        return Refusal.HELD if covered else Refusal.EXHAUSTED

    def open(self, name: str, hold: ModelHold) -> None:
        """Set aside what `prepare` came to."""
        self.holds[name] = hold
        self._book(hold, "hold", (-hold.wallet, -hold.credit))

    def start(self, name: str) -> None:
        """Note that the answer has begun; raises `NotFound`."""
        self._need(name).started = True

    def step(self, name: str, counts: Counts, record: bool) -> Micros:
        """Charge counts of a call under way, or note them; return all that was charged so far.

        Raises `NotFound`, and `InvalidValue` for a hold that belongs to nobody.
        """
        hold = self._need(name)
        if hold.expires is not None:
            raise InvalidValue(name)
        price = self._price_now(hold, _uncovered(_first_parts(hold), counts))
        hold.last = (counts, price)
        if not (record or hold.counted):
            more = self._more(hold, counts, price)
            given = [0, 0]
            for place, fund in enumerate(Fund):
                given[place] = min(more[fund], hold.fund(fund))
                hold.within[fund] = hold.within.get(fund, 0) + given[place]
            hold.wallet -= given[0]
            hold.credit -= given[1]
            self._book(hold, "hold_release", (given[0], given[1]))
            self._charge(hold, more[Fund.WALLET], more[Fund.CREDIT])
        return sum(hold.charged.values())

    def settle(self, name: str, counts: Counts) -> Micros:
        """End a hold and charge for counts; return the micros charged. Raises `NotFound`."""
        hold = self._need(name)
        price = self._price_now(hold, _uncovered(_first_parts(hold), counts))
        return self._settle(name, counts, price)

    def settle_whole(self, name: str) -> Micros:
        """End a hold and charge all of it; return the micros charged."""
        hold = self._need(name)
        self._end(name)
        for part in hold.parts:
            self._use(hold, part, part.amount)
        self._count(hold, hold.counted)
        self._charge(hold, hold.wallet, hold.credit)
        return sum(hold.charged.values())

    def release(self, name: str) -> bool:
        """End a hold and give back what it has; return whether steps charged of it before."""
        hold = self._need(name)
        self._end(name)
        if hold.charged:
            self._charge(hold, 0, 0)
        return bool(hold.charged)

    def extend(
        self, name: str, expires: UnixMicroseconds, ceiling: Counts | None, buffer: Micros
    ) -> Refusal | None:
        """Let a hold live on, for more with a ceiling. Raises `NotFound`, `InvalidValue`."""
        hold = self._need(name)
        if hold.expires is None:
            raise InvalidValue(name)
        if ceiling is not None:
            rest = _uncovered(hold.parts, ceiling)
            usage = self.customers[hold.customer].usage
            meters = tuple(hold.counted)
            used = _only(usage.used if usage else {}, meters)
            others = self._others(hold.customer, meters, but=hold)
            more = max(0, hold.plan.worst(rest, used, others) - hold.amount)
            wallet, credit = self._funds(hold.customer, hold.order, more, idle=False)
            account = self.customers[hold.customer]
            below = -(buffer if account.buffer is None else account.buffer)
            if wallet and not (hold.order and self.balance(hold.customer) - wallet >= below):
                return Refusal.EXHAUSTED
            if credit and self.owed(hold.customer) + credit > account.credit_limit:
                return Refusal.EXHAUSTED
            self._book(hold, "hold", (-wallet, -credit))
            hold.wallet += wallet
            hold.credit += credit
            hold.ceiling, hold.counted = ceiling, _only(rest, meters)
            hold.used, hold.others = used, others
        hold.expires = max(hold.expires, expires)
        return None

    def sweep(self, living: int, now: UnixMicroseconds) -> list[str]:
        """End the holds of all but the living owner, then those that expired; return which."""
        dead = [n for n, hold in self.holds.items() if hold.owner not in (living, None)]
        dead += [n for n, hold in self.holds.items() if hold.owner is None and _over(hold, now)]
        for name in dead:
            hold = self.holds[name]
            if hold.last is not None:
                self._settle(name, *hold.last)
            elif hold.settle_price is not None:
                self._settle(name, hold.ceiling, hold.settle_price)
            elif hold.started or hold.on_crash is OnCrash.SETTLE:
                self.settle_whole(name)
            else:
                self.release(name)
        return dead

    def _divide(self, request: ModelRequest, idle: bool) -> ModelHold:
        """Walk quotas of units, of money, and the funds; with ``idle`` as if no call was open."""
        customer, plan = request.customer, request.plan
        account = self.customers[customer]
        used = _only(account.usage.used if account.usage else {}, plan.counted)
        others = self._others(customer, plan.counted)
        left = {}
        for quota in plan.quotas:
            period = account.quotas[quota.name]
            held = 0 if idle else self.quota_held(customer, quota.name)
            left[quota.name] = max(0, period.units - period.used - held)
        parts = []
        rest = request.ceiling
        for name in left:
            period = account.quotas[name]
            if not period.money:
                given, rest = _cover(rest, period.meters, left[name])
                parts.append(ModelPart(name, period.start, period.meters, False, given))
        price = plan.worst(rest, used, others)
        for name in left:
            period = account.quotas[name]
            if period.money:
                given = min(price, left[name])
                price -= given
                parts.append(ModelPart(name, period.start, (), True, given))
        order = plan.order
        if account.credit_limit == 0 and Fund.WALLET in order:
            order = (Fund.WALLET,)
        wallet, credit = self._funds(customer, order, price, idle)
        return ModelHold(
            customer,
            plan,
            [part for part in parts if part.amount],
            wallet,
            credit,
            order,
            request.ceiling,
            _only(rest, plan.counted),
            used,
            others,
            request.on_crash,
            request.cap,
            request.owner,
            request.expires,
            plan.price(rest, used) if request.flat else None,
        )

    def _funds(
        self, customer: str, order: Sequence[Fund], amount: Micros, idle: bool
    ) -> tuple[Micros, Micros]:
        """Let the first fund give what it has, and the last whatever is missing."""
        if not order:
            return amount, 0  # which `_covered` refuses
        balance, room = self._money(customer, idle)
        gives = {Fund.WALLET: 0, Fund.CREDIT: 0}
        for fund in order:
            has = max(0, balance if fund is Fund.WALLET else room)
            gives[fund] = amount if fund is order[-1] else min(amount, has)
            amount -= gives[fund]
        return gives[Fund.WALLET], gives[Fund.CREDIT]

    def _covered(self, request: ModelRequest, hold: ModelHold, idle: bool) -> bool:
        account = self.customers[request.customer]
        buffer = request.buffer if account.buffer is None else account.buffer
        balance, room = self._money(request.customer, idle)
        enough = balance > 0 and balance - hold.wallet >= -buffer and Fund.WALLET in hold.order
        return (hold.wallet == 0 or enough) and (hold.credit == 0 or hold.credit <= room)

    def _money(self, customer: str, idle: bool) -> tuple[Micros, Micros]:
        """Return the balance, and what the credit limit leaves."""
        balance, owed = self.balance(customer), self.owed(customer)
        if idle:
            balance += self.held(customer)
            owed -= self.held(customer, Fund.CREDIT)
        return balance, self.customers[customer].credit_limit - owed

    def _others(self, customer: str, meters: Sequence[str], but: ModelHold | None = None) -> Counts:
        """Return what the customer's open holds may still use, all ``but`` one."""
        open_holds = [hold for hold in self.holds_of(customer) if hold is not but]
        return {m: sum(hold.counted.get(m, 0) for hold in open_holds) for m in meters}

    def _price_now(self, hold: ModelHold, rest: Counts) -> Micros:
        """Return what counts cost now, but no more than at a usage that the hold reckoned with."""
        meters = tuple(hold.counted)
        usage = self.customers[hold.customer].usage
        now = _only(usage.used if usage else {}, meters)
        near = {}
        for meter in meters:
            low = hold.used[meter]
            near[meter] = sorted((low, now[meter], low + hold.others[meter]))[1]
        return min(hold.plan.price(rest, now), hold.plan.price(rest, near))

    def _settle(self, name: str, counts: Counts, price: Micros) -> Micros:
        hold = self._need(name)
        self._end(name)
        first = _first_parts(hold)
        more = self._more(hold, counts, price)
        self._count(hold, _only(_uncovered(first, counts), tuple(hold.counted)))
        self._charge(hold, more[Fund.WALLET], more[Fund.CREDIT])
        return sum(hold.charged.values())

    def _more(self, hold: ModelHold, counts: Counts, price: Micros) -> dict[Fund, Micros]:
        """Use quotas for counts, beyond what steps used; return what each fund has to pay more."""
        first = _first_parts(hold)
        gave = {fund: hold.fund(fund) + hold.within.get(fund, 0) for fund in Fund}
        if hold.cap:
            price = min(
                price, sum(gave.values()) + sum(part.amount for part in first if part.money)
            )
        taken = hold.taken or [0] * len(first)
        rest = counts
        for place, part in enumerate(first):
            if part.money:
                used = min(price, part.amount)
                price -= used
            else:
                used, rest = _cover(rest, part.meters, part.amount)
            more = max(0, used - taken[place])
            self._use(hold, part, more)
            taken[place] += more
            hold.parts[place] = part._replace(amount=part.amount - taken[place])
        hold.taken = taken
        paid = {Fund.WALLET: 0, Fund.CREDIT: 0}
        for fund in hold.order:
            paid[fund] = min(price, gave[fund])
            price -= paid[fund]
        paid[hold.order[-1] if hold.order else Fund.WALLET] += price
        return {fund: max(0, paid[fund] - hold.charged.get(fund, 0)) for fund in Fund}

    def _charge(self, hold: ModelHold, wallet: Micros, credit: Micros) -> None:
        account = self.customers[hold.customer]
        for fund, amount in ((Fund.WALLET, wallet), (Fund.CREDIT, credit)):
            hold.charged[fund] = hold.charged.get(fund, 0) + amount
        left = wallet
        for grant in account.lots() if wallet else ():
            used = min(left, grant.unspent)
            grant.unspent -= used
            left -= used
        if wallet or not credit:
            account.book("settlement", Fund.WALLET, -wallet)
        if credit:
            account.book("settlement", Fund.CREDIT, -credit)
        self.judge(hold.customer)

    def _end(self, name: str) -> None:
        hold = self.holds.pop(name)
        self._book(hold, "hold_release", (hold.wallet, hold.credit))

    def _book(self, hold: ModelHold, kind: str, amounts: tuple[Micros, Micros]) -> None:
        for fund, amount in zip((Fund.WALLET, Fund.CREDIT), amounts, strict=True):
            if amount:
                self.customers[hold.customer].book(kind, fund, amount)

    def _use(self, hold: ModelHold, part: ModelPart, amount: int) -> None:
        """Count what is used of a quota, if its period is not over."""
        period = self.customers[hold.customer].quotas.get(part.quota)
        if period is not None and period.start == part.start:
            period.used += amount

    def _count(self, hold: ModelHold, used: Counts) -> None:
        usage = self.customers[hold.customer].usage
        if usage is not None:
            for meter, count in used.items():
                usage.used[meter] = usage.used.get(meter, 0) + count

    def _need(self, name: str) -> ModelHold:
        if name not in self.holds:
            raise NotFound(name)
        return self.holds[name]


def _cover(counts: Counts, meters: Sequence[str], units: int) -> tuple[int, Counts]:
    """Let a quota give its units one by one; return how many it gave, and what is left."""
    given = 0
    rest = dict(counts)
    for meter in meters:
        while given < units and rest.get(meter, 0):
            rest[meter] -= 1
            given += 1
    return given, rest


def _first_parts(hold: ModelHold) -> list[ModelPart]:
    """Return a hold's parts as they were before any step took of them."""
    taken = hold.taken or [0] * len(hold.parts)
    return [
        part._replace(amount=part.amount + t) for part, t in zip(hold.parts, taken, strict=True)
    ]


def _uncovered(parts: Sequence[ModelPart], counts: Counts) -> Counts:
    """Return what a hold's quotas of units leave of counts."""
    for part in parts:
        if not part.money:
            _, counts = _cover(counts, part.meters, part.amount)
    return counts


def _only(counts: Counts, meters: Sequence[str]) -> Counts:
    """Return the counts of some meters, each of them present."""
    return {meter: counts.get(meter, 0) for meter in meters}


def _over(hold: ModelHold, now: UnixMicroseconds) -> bool:
    return hold.expires is not None and hold.expires <= now
