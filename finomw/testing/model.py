"""The ledger as a dict: what the engine must answer, worked out in the plainest way.

Written from the design and from nothing else; it shares no rule with the package. A customer is a
list of entries and a dict of open holds, and every sum is added up anew each time it is asked
for. It is slow, keeps all in memory and knows no disk: an engine that agrees with it after every
step, whatever was closed, killed or replayed in between, computes the right thing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from finomw.errors import Conflict, NotFound
from finomw.types import Micros, OnCrash, Refusal


@dataclass
class ModelHold:
    """An open hold; ``owner`` stands for the worker that made it."""

    customer: str
    amount: Micros
    on_crash: OnCrash
    owner: int
    started: bool = False


@dataclass
class ModelCustomer:
    """What is known about one customer; ``buffer`` in micros replaces the default if set."""

    buffer: Micros | None
    entries: list[tuple[str, Micros]] = field(default_factory=list)
    grants: dict[tuple[str, str], tuple[Micros, str]] = field(default_factory=dict)
    blocked: bool = False


class ModelLedger:
    """Customers and open holds."""

    def __init__(self) -> None:
        self.customers: dict[str, ModelCustomer] = {}
        self.holds: dict[str, ModelHold] = {}

    def balance(self, customer: str) -> Micros:
        """Return the sum of the ledger."""
        return sum(amount for _, amount in self.customers[customer].entries)

    def held(self, customer: str) -> Micros:
        """Return the sum of the open holds."""
        return sum(hold.amount for hold in self.holds.values() if hold.customer == customer)

    def add_customer(self, customer: str, buffer: Micros | None = None) -> None:
        """Create a customer; raises `Conflict` when there is one."""
        if customer in self.customers:
            raise Conflict(customer)
        self.customers[customer] = ModelCustomer(buffer)

    def grant(
        self, customer: str, amount: Micros, source: str, source_id: str, note: str = ""
    ) -> bool:
        """Give credit; return whether it had been given before. Raises `Conflict`, `NotFound`."""
        if customer not in self.customers:
            raise NotFound(customer)
        account = self.customers[customer]
        given = account.grants.get((source, source_id))
        if given is not None:
            if given != (amount, note):
                raise Conflict(f"{source}/{source_id}")
            return True
        account.grants[source, source_id] = (amount, note)
        account.entries.append(("grant", amount))
        if self.balance(customer) + self.held(customer) > 0:
            account.blocked = False
        return False

    def hold(
        self,
        customer: str,
        name: str,
        amount: Micros,
        buffer: Micros,
        on_crash: OnCrash = OnCrash.RELEASE,
        owner: int = 0,
    ) -> Refusal | None:
        """Set money aside as the hold ``name``, or say why not; ``buffer`` is the default."""
        refusal = self.refusal(customer, amount, buffer)
        if refusal is None:
            self.holds[name] = ModelHold(customer, amount, on_crash, owner)
            if amount:
                self.customers[customer].entries.append(("hold", -amount))
        return refusal

    def refusal(self, customer: str, amount: Micros, buffer: Micros) -> Refusal | None:
        """Say why a hold may not be made."""
        account = self.customers.get(customer)
        if account is None:
            return Refusal.UNKNOWN_CUSTOMER
        if account.blocked:
            return Refusal.BLOCKED
        if amount == 0:
            return None
        if account.buffer is not None:
            buffer = account.buffer
        free = self.balance(customer)
        if free > 0 and free - amount >= -buffer:
            return None
        unheld = free + self.held(customer)
        if unheld > 0 and unheld - amount >= -buffer:
            return Refusal.HELD
        return Refusal.EXHAUSTED

    def start(self, name: str) -> None:
        """Note that the answer has begun; raises `NotFound`."""
        if name not in self.holds:
            raise NotFound(name)
        self.holds[name].started = True

    def settle(self, name: str, price: Micros) -> None:
        """End a hold and charge the price; raises `NotFound`."""
        customer = self.release(name)
        account = self.customers[customer]
        account.entries.append(("settlement", -price))
        if self.balance(customer) + self.held(customer) < 0:
            account.blocked = True

    def release(self, name: str) -> str:
        """End a hold and give it back; return whose it was. Raises `NotFound`."""
        if name not in self.holds:
            raise NotFound(name)
        hold = self.holds.pop(name)
        if hold.amount:
            self.customers[hold.customer].entries.append(("hold_release", hold.amount))
        return hold.customer

    def sweep(self, living: int) -> int:
        """End every hold that does not belong to the living owner; return how many."""
        dead = [name for name, hold in self.holds.items() if hold.owner != living]
        for name in dead:
            hold = self.holds[name]
            if hold.started or hold.on_crash is OnCrash.SETTLE:
                self.settle(name, hold.amount)
            else:
                self.release(name)
        return len(dead)
