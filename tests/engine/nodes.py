"""Small node directories for tests: made, opened, dropped as a kill would drop them, compared."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

from finomw import limits
from finomw.engine import charge, ledger
from finomw.engine.directory import create
from finomw.engine.engine import Engine
from finomw.engine.keys import hash_token
from finomw.engine.policy import BelowZero
from finomw.journal.files import Files
from finomw.money.entries import KIND_NAMES, Entry
from finomw.money.periods import Per
from finomw.money.pricing import PriceList
from finomw.money.quotas import Quota
from finomw.money.terms import WALLET_ONLY, Terms
from finomw.store.holds import HoldRow
from finomw.testing.clock import ManualClock
from finomw.types import (
    Counts,
    CustomerId,
    Fund,
    HoldId,
    Lsn,
    Micros,
    OnCrash,
    PlanName,
    Refusal,
    RouteName,
    UsageStatus,
)

SEGMENT = limits.SEGMENT_SIZE_MIN
STATE = 4 * limits.MIB
ALICE = CustomerId("alice")
PLAN = PlanName("default")
ROUTE = RouteName("chat")
KEY = hash_token("fino_test")


def make(path: Path, state_size: int = STATE) -> Path:
    create(path, SEGMENT, state_size)
    return path


def open_node(path: Path, files: Files | None = None, clock: ManualClock | None = None) -> Engine:
    """Open an engine that nobody shares."""
    return Engine(path, clock or ManualClock(), files or Files(), BelowZero())


def drop(engine: Engine) -> None:
    """Let go of an engine as the system does when its process is killed: nothing is flushed."""
    engine._watchdog.stop()
    if engine._worker is not None:
        engine._worker[1].close()
        engine._worker[2].close()
    engine._closed = True
    engine._opened.close()


def hold(
    engine: Engine,
    amount: Micros,
    customer: CustomerId = ALICE,
    *,
    buffer: Micros = 0,
    on_crash: OnCrash = OnCrash.RELEASE,
    flat: bool = False,
) -> charge.Held | Refusal:
    request = charge.HoldRequest(
        customer, KEY, ROUTE, amount, {"requests": 1}, buffer, on_crash, "v1"
    )
    if flat:
        request = request._replace(settle=lambda counts, used: amount)
    return charge.hold(engine, request)


def held(engine: Engine, amount: Micros, **options: Any) -> charge.Held:
    """Make a hold that must be admitted."""
    done = hold(engine, amount, **options)
    assert isinstance(done, charge.Held), done
    return done


def settle(engine: Engine, name: HoldId, price: Micros) -> charge.Ended:
    return charge.settle(engine, name, price, {"requests": 1}, UsageStatus.KNOWN)


def dump(engine: Engine) -> dict[str, object]:
    """Return all that the state says, to be compared."""
    store = engine.store
    with store.read() as txn:
        return {
            "tail": store.meta.tail(txn),
            "workers": store.meta.last_worker(txn),
            "accounts": list(store.accounts.items(txn)),
            "ledger": list(store.ledger.items(txn)),
            "keys": list(store.keys.items(txn)),
            "holds": list(store.holds.items(txn)),
            "ended": list(store.holds.ended(txn)),
            **{
                name: [(bytes(key), bytes(row)) for key, row in txn.cursor(db=table)]
                for name, table in {
                    "quotas": store.quotas._quotas,
                    "usage": store.quotas._usage,
                    "grants": store.grants._table,
                    "lots": store.grants._lots,
                    "names": store.ledger._names,
                }.items()
            },
        }


def journal_bytes(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (path / "journal").iterdir()}


def fill_to(engine: Engine, lsn: Lsn, customer: CustomerId = ALICE) -> None:
    """Hold and settle nothing until the tail has passed an LSN."""
    while engine.tail() < lsn:
        settle(engine, held(engine, 0, customer=customer).hold, 0)


def plan_hold(
    engine: Engine,
    prices: PriceList,
    ceiling: Counts,
    terms: Terms = WALLET_ONLY,
    customer: CustomerId = ALICE,
    **more: Any,
) -> charge.Held | Refusal:
    """Hold what a plan's prices and terms make of a ceiling."""
    request = charge.HoldRequest(
        customer,
        KEY,
        ROUTE,
        prices.worst,
        ceiling,
        0,
        OnCrash.RELEASE,
        prices.version,
        plan=PLAN,
        terms=terms,
        counted=tuple(sorted(prices.tiered_meters)),
    )
    return charge.hold(engine, request._replace(**more))


def plan_settle(engine: Engine, held: charge.Held, prices: PriceList, counts: Counts) -> Micros:
    """Settle at a plan's prices; return the micros charged."""
    known = UsageStatus.KNOWN
    return charge.settle(engine, held.hold, prices.price, counts, known).charged


def plan_call(
    engine: Engine,
    prices: PriceList,
    counts: Counts,
    terms: Terms = WALLET_ONLY,
    customer: CustomerId = ALICE,
) -> Micros:
    """Hold and settle the same counts; return the micros charged."""
    held = plan_hold(engine, prices, counts, terms, customer)
    assert isinstance(held, charge.Held), held
    return plan_settle(engine, held, prices, counts)


def entries_of(engine: Engine, customer: CustomerId = ALICE) -> list[Entry]:
    """Return a customer's ledger entries, oldest first."""
    return [line.entry for line in ledger.ledger(engine, customer, 10**6)][::-1]


def short(entries: list[Entry]) -> list[tuple[str, str, Micros]]:
    """Return what a test compares of entries: kind, source and amount."""
    return [(KIND_NAMES[entry.kind], entry.source, entry.amount) for entry in entries]


def hold_row(engine: Engine, hold: HoldId) -> HoldRow:
    """Return a hold, open or ended."""
    with engine.store.read() as txn:
        row = engine.store.holds.find(txn, hold)
    assert row is not None
    return row


def rebuilt(engine: Engine, path: Path) -> Engine:
    """Kill an engine and rebuild its state from the journal; it must be what it was."""
    before = dump(engine)
    drop(engine)
    (path / "control").unlink()
    clock = engine.clock
    assert isinstance(clock, ManualClock)
    again = open_node(path, clock=clock)
    assert dump(again) == before
    return again


MICRO = PriceList.of({"n": Fraction(1)}, "up")
"""One micro for each ``n``."""


def units(name: str, amount: int, *meters: str, per: Per = Per.MONTH, roll: bool = False) -> Quota:
    """Make a quota of units."""
    return Quota(name, meters, amount, False, per, roll)


def micros(name: str, amount: int, per: Per = Per.MONTH, roll: bool = False) -> Quota:
    """Make a quota of money."""
    return Quota(name, (), amount, True, per, roll)


def terms(
    *quotas: Quota, order: tuple[Fund, ...] = (Fund.WALLET,), usage_per: Per = Per.MONTH
) -> Terms:
    """Make a plan's terms."""
    return Terms(quotas, order, usage_per)


def price_list(**micros_each: int) -> PriceList:
    """Make a price list of whole micros for each unit."""
    return PriceList.of({meter: Fraction(rate) for meter, rate in micros_each.items()}, "up")
