"""The ledger as a dict: what the engine must answer, worked out in the plainest way.

Written from the design and from nothing else; it shares no rule with the package. A customer is a
list of entries, a few dicts of quotas and grants; holds are a dict, and every sum is added up anew
each time it is asked for. It is slow, keeps all in memory and knows no disk: an engine that agrees
with it after every step, whatever was closed, killed or replayed in between, computes the right
thing. Plans are in ``plans.py``; what becomes of a call, from its hold to its end, in ``calls.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from finomw.errors import Conflict, InvalidValue, NotFound
from finomw.testing.plans import ModelPlan, ModelQuota, period_start
from finomw.types import Counts, Fund, Micros, OnCrash, UnixMicroseconds

Name = tuple[str, str]
"""Source and source id."""


class ModelEntry(NamedTuple):
    """One line of a ledger."""

    kind: str
    fund: Fund
    amount: Micros


class ModelPart(NamedTuple):
    """What a quota's period gives to a hold: so many units, or micros."""

    quota: str
    start: UnixMicroseconds
    meters: tuple[str, ...]
    money: bool
    amount: int


@dataclass
class ModelPeriod:
    """A quota's period: what is in it by its definition when it began."""

    meters: tuple[str, ...]
    money: bool
    start: UnixMicroseconds
    end: UnixMicroseconds | None
    units: int
    used: int = 0


@dataclass
class ModelUsage:
    """What was used in a period, by meter."""

    start: UnixMicroseconds
    end: UnixMicroseconds
    used: Counts = field(default_factory=dict)


@dataclass
class ModelGrant:
    """A grant as far as it can be taken back."""

    fund: Fund
    amount: Micros
    expires: UnixMicroseconds | None
    refunded: Micros = 0
    unspent: Micros = 0


@dataclass
class ModelHold:
    """A hold; ``owner`` stands for the worker that made it, ``None`` for nobody."""

    customer: str
    plan: ModelPlan
    parts: list[ModelPart]
    wallet: Micros
    credit: Micros
    order: tuple[Fund, ...]
    ceiling: Counts
    counted: Counts
    used: Counts
    others: Counts
    on_crash: OnCrash
    cap: bool
    owner: int | None
    expires: UnixMicroseconds | None = None
    settle_price: Micros | None = None
    started: bool = False
    last: tuple[Counts, Micros] | None = None
    """Counts and price of the last step."""
    taken: list[int] = field(default_factory=list)
    """What steps took of each part."""
    within: dict[Fund, Micros] = field(default_factory=dict)
    """And of what each fund gave."""
    charged: dict[Fund, Micros] = field(default_factory=dict)
    """And charged to it, which is more where it is an overrun."""

    def fund(self, fund: Fund) -> Micros:
        """Return what a fund gives."""
        return self.wallet if fund is Fund.WALLET else self.credit

    @property
    def amount(self) -> Micros:
        """Everything that is set aside and money, of quotas too."""
        return self.wallet + self.credit + sum(part.amount for part in self.parts if part.money)


@dataclass
class ModelCustomer:
    """What is known about one customer; ``buffer`` in micros replaces the default if set."""

    plan: str
    anchor: UnixMicroseconds
    buffer: Micros | None = None
    credit_limit: Micros = 0
    status: str = "active"
    blocked: bool = False
    entries: list[ModelEntry] = field(default_factory=list)
    names: dict[Name, tuple[object, ...]] = field(default_factory=dict)
    grants: dict[Name, ModelGrant] = field(default_factory=dict)
    quotas: dict[str, ModelPeriod] = field(default_factory=dict)
    usage: ModelUsage | None = None
    credited: Micros = 0
    spent: Micros = 0

    def sum(self, fund: Fund) -> Micros:
        """Return the sum of a fund's entries."""
        return sum(entry.amount for entry in self.entries if entry.fund is fund)

    def book(self, kind: str, fund: Fund, amount: Micros) -> None:
        """Write an entry, and count for people."""
        self.entries.append(ModelEntry(kind, fund, amount))
        if kind == "settlement":
            self.spent -= amount
        if kind == "grant" and fund is Fund.WALLET:
            self.credited += amount

    def lots(self) -> list[ModelGrant]:
        """Return expiring grants with something unspent, soonest first."""
        lots = [grant for grant in self.grants.values() if grant.unspent]
        return sorted(lots, key=lambda grant: grant.expires or 0)


class ModelBooks:
    """Customers, and what owners do to them."""

    def __init__(self) -> None:
        self.customers: dict[str, ModelCustomer] = {}
        self.holds: dict[str, ModelHold] = {}

    def balance(self, customer: str) -> Micros:
        """Return the sum of the wallet's entries."""
        return self.customers[customer].sum(Fund.WALLET)

    def owed(self, customer: str) -> Micros:
        """Return what is owed on the credit."""
        return -self.customers[customer].sum(Fund.CREDIT)

    def holds_of(self, customer: str) -> list[ModelHold]:
        """Return a customer's open holds."""
        return [hold for hold in self.holds.values() if hold.customer == customer]

    def held(self, customer: str, fund: Fund = Fund.WALLET) -> Micros:
        """Return what open holds have of a fund."""
        return sum(hold.fund(fund) for hold in self.holds_of(customer))

    def quota_held(self, customer: str, quota: str) -> int:
        """Return what open holds have of a quota's period under way."""
        period = self.customers[customer].quotas[quota]
        parts = [part for hold in self.holds_of(customer) for part in hold.parts]
        mine = [part for part in parts if (part.quota, part.start) == (quota, period.start)]
        return sum(part.amount for part in mine)

    def add_customer(
        self, customer: str, plan: str, now: UnixMicroseconds, buffer: Micros | None = None
    ) -> None:
        """Create a customer; raises `Conflict` when there is one."""
        if customer in self.customers:
            raise Conflict(customer)
        self.customers[customer] = ModelCustomer(plan, now, buffer)

    def need(self, customer: str, *, closed: bool = False) -> ModelCustomer:
        """Return a customer; raises `NotFound`, and `Conflict` for one that is closed."""
        if customer not in self.customers:
            raise NotFound(customer)
        account = self.customers[customer]
        if account.status == "closed" and not closed:
            raise Conflict(customer)
        return account

    def grant(
        self,
        customer: str,
        amount: Micros,
        name: Name,
        note: str,
        now: UnixMicroseconds,
        expires: UnixMicroseconds | None = None,
        fund: Fund = Fund.WALLET,
    ) -> bool:
        """Give credit, or book a payment; return whether it had been booked before."""
        account = self.need(customer, closed=True)
        content = ("grant", fund, amount, note, expires)
        if _repeated(account, name, content):
            return True
        self.need(customer)
        if expires is not None and expires <= now:
            raise InvalidValue("expires")
        account.names[name] = content
        account.book("grant", fund, amount)
        grant = ModelGrant(fund, amount, expires)
        total = self.balance(customer) + self.held(customer)
        if expires is not None:
            grant.unspent = max(0, min(amount, total))
        account.grants[name] = grant
        if total > 0:
            account.blocked = False
        return False

    def refund(self, customer: str, amount: Micros, name: Name, of: Name, note: str) -> bool:
        """Take a grant back, or a part of it; return whether it had been taken before."""
        account = self.need(customer, closed=True)
        grant = account.grants.get(of)
        if grant is None:
            raise NotFound(str(of))
        content = ("refund", grant.fund, amount, note, of)
        if _repeated(account, name, content):
            return True
        self.need(customer)
        if grant.refunded + amount > grant.amount:
            raise InvalidValue(str(of))
        account.names[name] = content
        grant.refunded += amount
        grant.unspent = max(0, grant.unspent - amount)
        account.book("refund", grant.fund, -amount)
        self.judge(customer)
        return False

    def judge(self, customer: str) -> None:
        """Set the block mark after what was spent or taken back."""
        if self.balance(customer) + self.held(customer) < 0:
            self.customers[customer].blocked = True

    def expire(self, customer: str, now: UnixMicroseconds) -> None:
        """Take back what is unspent of grants at their date, but not what calls hold of them.

        Calls hold the grants that expire first, as they use them up.
        """
        account = self.customers[customer]
        held = self.held(customer)
        for grant in account.lots():
            kept = min(held, grant.unspent)
            held -= kept
            if grant.expires is not None and grant.expires <= now:
                taken = min(grant.unspent - kept, max(0, self.balance(customer)))
                grant.refunded += taken
                grant.unspent = kept
                if taken:
                    account.book("refund", Fund.WALLET, -taken)

    def corrupt(self, customer: str, fund: Fund, amount: Micros) -> None:
        """Explain that an account was found to say ``amount`` more than its ledger."""
        self.customers[customer].book("adjustment", fund, amount)

    def suspend(self, customer: str) -> None:
        """Refuse new calls; raises `Conflict` where they are refused already."""
        account = self.need(customer)
        if account.status == "suspended":
            raise Conflict(customer)
        account.status = "suspended"

    def resume(self, customer: str) -> None:
        """End a suspension; raises `Conflict` without one."""
        account = self.need(customer)
        if account.status != "suspended":
            raise Conflict(customer)
        account.status = "active"

    def set_terms(self, customer: str, credit_limit: Micros | None, buffer: Micros | None) -> None:
        """Change the terms that are given."""
        account = self.need(customer)
        if credit_limit is not None:
            account.credit_limit = credit_limit
        if buffer is not None:
            account.buffer = buffer

    def subscribe(self, customer: str, plan: str, now: UnixMicroseconds) -> None:
        """Begin a plan: all periods start anew, but what was given once is not given again."""
        account = self.need(customer)
        periodic = [name for name, period in account.quotas.items() if period.end is not None]
        if any(self.quota_held(customer, name) for name in periodic):
            raise Conflict(customer)
        for name in periodic:
            del account.quotas[name]
        if account.usage is not None:
            account.usage = ModelUsage(account.usage.start, now)
        account.plan, account.anchor = plan, now

    def change_plan(self, customer: str, plan: str) -> None:
        """Go on under another plan, or, with an empty one, under none."""
        account = self.need(customer)
        if not account.plan:
            raise Conflict(customer)
        account.plan = plan

    def delete(self, customer: str, erase: bool) -> None:
        """Close an account at zero."""
        account = self.need(customer, closed=True)
        if self.holds_of(customer) or (account.status == "closed" and not erase):
            raise Conflict(customer)
        for fund in Fund:
            left = account.sum(fund)
            if left:
                account.book("refund" if left > 0 else "grant", fund, -left)
        for grant in account.grants.values():
            grant.unspent = 0
        account.status, account.plan = "closed", ""
        if erase:
            account.entries.clear()
            account.names.clear()
            account.grants.clear()
            account.grants.clear()

    def begin_periods(self, customer: str, plan: ModelPlan, now: UnixMicroseconds) -> None:
        """Begin the periods that are due, one after the other."""
        account = self.customers[customer]
        for quota in plan.quotas:
            period = account.quotas.get(quota.name)
            if period is None:
                first = _period(quota, account.anchor, now, quota.units)
                first.start = max(first.start, account.anchor)
                account.quotas[quota.name] = first
            while (period := account.quotas[quota.name]).end is not None and period.end <= now:
                units = quota.units
                if quota.roll_over:
                    held = self.quota_held(customer, quota.name)
                    units += max(0, period.units - period.used - held)
                following = _period(quota, account.anchor, period.end, units)
                following.start = max(following.start, period.end)
                account.quotas[quota.name] = following
        if plan.counted and (account.usage is None or account.usage.end <= now):
            earliest = account.anchor if account.usage is None else account.usage.end
            start = period_start(plan.usage_length, account.anchor, now)
            end = start + plan.usage_length
            account.usage = ModelUsage(max(start, earliest), end)


def _repeated(account: ModelCustomer, name: Name, content: tuple[object, ...]) -> bool:
    """Return whether a name is known with this content; raise `Conflict` with another."""
    known = account.names.get(name)
    if known is not None and known != content:
        raise Conflict(str(name))
    return known is not None


def _period(
    quota: ModelQuota, anchor: UnixMicroseconds, at: UnixMicroseconds, units: int
) -> ModelPeriod:
    if quota.length is None:
        return ModelPeriod(quota.meters, quota.money, anchor, None, units)
    start = period_start(quota.length, anchor, at)
    return ModelPeriod(quota.meters, quota.money, start, start + quota.length, units)
