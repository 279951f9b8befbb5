"""Customers: who pays, under which plan and terms, and whether they may call at all.

Nothing here sets a balance: money comes and goes by grants, refunds and calls only.
"""

from __future__ import annotations

from finomw import limits
from finomw.engine import records
from finomw.engine.durably import durably
from finomw.engine.engine import Engine
from finomw.money.account import Account
from finomw.money.entries import check_amount, check_name
from finomw.money.periods import check_zone
from finomw.types import CustomerId, Micros, PlanName

DEFAULT_ZONE = "UTC"


def add_customer(
    engine: Engine,
    customer: CustomerId,
    plan: PlanName,
    name: str = "",
    buffer: Micros | None = None,
    zone: str = DEFAULT_ZONE,
) -> None:
    """Create a customer with an empty account, durably. Raises `Conflict`, `InvalidValue`.

    ``buffer`` in micros replaces the configured default for this customer; ``zone`` is the time
    zone that the plan's periods follow.
    """
    check_name("customer", customer, limits.CUSTOMER_ID_BYTES)
    check_name("plan", plan, limits.NAME_BYTES)
    if name:
        check_name("name", name, limits.NOTE_BYTES)
    if buffer is not None:
        check_amount("buffer", buffer)
    check_zone(zone)
    durably(engine, records.AddCustomer(engine.clock.now(), customer, plan, name, buffer, zone))


def set_terms(
    engine: Engine,
    customer: CustomerId,
    credit_limit: Micros | None = None,
    buffer: Micros | None = None,
) -> None:
    """Change a customer's credit limit or buffer, in micros; ``None`` leaves it as it is."""
    for field, amount in (("credit_limit", credit_limit), ("buffer", buffer)):
        if amount is not None:
            check_amount(field, amount)
    durably(engine, records.SetTerms(engine.clock.now(), customer, credit_limit, buffer))


def suspend(engine: Engine, customer: CustomerId, reason: str) -> None:
    """Refuse a customer's new calls until `resume`, whatever the balance; no grant changes it."""
    check_name("reason", reason, limits.NOTE_BYTES)
    durably(engine, records.Suspend(engine.clock.now(), customer, reason))


def resume(engine: Engine, customer: CustomerId, reason: str) -> None:
    """End a suspension. Raises `Conflict` where there is none."""
    check_name("reason", reason, limits.NOTE_BYTES)
    durably(engine, records.Resume(engine.clock.now(), customer, reason))


def subscribe(engine: Engine, customer: CustomerId, plan: PlanName, zone: str) -> None:
    """Begin a plan now: its periods start today in the time zone, earlier quotas are gone."""
    check_name("plan", plan, limits.NAME_BYTES)
    check_zone(zone)
    durably(engine, records.Subscribe(engine.clock.now(), customer, plan, zone))


def unsubscribe(engine: Engine, customer: CustomerId) -> None:
    """Leave a customer without a plan: nothing has a price for them."""
    durably(engine, records.Unsubscribe(engine.clock.now(), customer))


def change_plan(engine: Engine, customer: CustomerId, plan: PlanName) -> None:
    """Put a customer on another plan from now on; periods under way go on."""
    check_name("plan", plan, limits.NAME_BYTES)
    durably(engine, records.ChangePlan(engine.clock.now(), customer, plan))


def delete_customer(engine: Engine, customer: CustomerId, erase: bool = False) -> None:
    """Close an account: keys go, what is left is refunded, what is owed is granted.

    The ledger stays unless ``erase`` is given: then entries and name go too, whose sums are 0 by
    then. Raises `Conflict` while holds are open.
    """
    durably(engine, records.DeleteCustomer(engine.clock.now(), customer, erase))


def get_account(engine: Engine, customer: CustomerId) -> Account:
    """Return a customer's account. Raises `NotFound`."""
    with engine.store.read() as txn:
        return engine.store.accounts.need(txn, customer)
