"""The rules stand by themselves: a command that was decided wrongly is refused by its rule."""

from __future__ import annotations

from pathlib import Path

import nodes
import pytest
from msgspec.structs import replace
from nodes import ALICE, MICRO, terms, units

from finomw.engine import charge, customers, grants, records
from finomw.engine.due import Due
from finomw.engine.engine import Engine
from finomw.engine.sweep import expire_grants
from finomw.errors import Conflict, InvalidValue, InvariantBroken
from finomw.money.funding import Parts, QuotaPart
from finomw.node.housekeeper import Housekeeper
from finomw.store.holds import NOBODY
from finomw.testing.clock import ManualClock
from finomw.types import Counts, CustomerId, Fund, HoldId, OnCrash, Refusal

PREPAID = (Fund.WALLET,)


def command(engine: Engine, parts: Parts, **more: object) -> records.Hold:
    made = records.Hold(
        engine.clock.now(),
        NOBODY,
        0,
        ALICE,
        nodes.KEY,
        nodes.ROUTE,
        nodes.PLAN,
        "v1",
        "",
        parts,
        {"n": 5},
        {},
        0,
        OnCrash.RELEASE,
        False,
        {},
        {},
        engine.clock.now() + 10,
    )
    return replace(made, **more)


def test_a_hold_is_checked_again_where_it_is_made(engine: Engine) -> None:
    too_much = command(engine, Parts((), 1_001, 0, PREPAID))
    nobody = replace(too_much, customer=CustomerId("nobody"))
    before = nodes.dump(engine)
    assert engine.execute(too_much) is Refusal.EXHAUSTED
    assert engine.execute(nobody) is Refusal.UNKNOWN_CUSTOMER
    assert engine.execute(command(engine, Parts((), 0, 1, (Fund.CREDIT,)))) is Refusal.EXHAUSTED
    assert nodes.dump(engine) == before


@pytest.mark.parametrize(
    "part",
    [
        QuotaPart("none", 1, ("n",), False, 1),
        QuotaPart("free", 1, ("n",), False, 1),
        QuotaPart("free", 0, ("n",), False, 8),
    ],
)
def test_a_quota_gives_no_more_than_it_has(engine: Engine, part: QuotaPart) -> None:
    nodes.plan_call(engine, MICRO, {"n": 3}, terms(units("free", 10, "n")))
    if part.start == 0:
        part = replace(part, start=customers.get_account(engine, ALICE).anchor)
    before = nodes.dump(engine)
    with pytest.raises(InvariantBroken, match=f"quota {part.quota} has not {part.amount} left"):
        engine.execute(command(engine, Parts((part,), 0, 0, PREPAID)))
    assert nodes.dump(engine) == before


def test_usage_is_counted_only_where_a_period_has_begun(engine: Engine) -> None:
    with pytest.raises(InvariantBroken, match="no usage is counted for 'alice'"):
        engine.execute(command(engine, Parts((), 0, 0, PREPAID), counted={"n": 5}))
    done = engine.execute(command(engine, Parts((), 5, 0, PREPAID), counted={}))
    assert customers.get_account(engine, ALICE).held == 5
    assert done


def test_usage_never_falls_below_zero(engine: Engine) -> None:
    engine.execute(records.PeriodEnd(1, ALICE, "", None, 1, None, (), False, 0))
    with pytest.raises(InvariantBroken, match="usage of 'alice' fell below 0"):
        engine.execute(command(engine, Parts((), 0, 0, PREPAID), counted={"n": -5}))


def extension(engine: Engine, hold: HoldId, wallet: int, credit: int) -> records.Extend:
    ceiling: Counts = {"n": 5}
    now = engine.clock.now()
    return records.Extend(now, hold, now + 99, wallet, credit, ceiling, {}, 20, {}, {})


def test_an_extension_is_divided_again_where_it_is_made(engine: Engine) -> None:
    engine.execute(command(engine, Parts((), 5, 0, PREPAID)))
    with engine.store.read() as txn:
        [named] = engine.store.holds.of(txn, NOBODY)
    before = nodes.dump(engine)
    assert engine.execute(extension(engine, named.hold, 1_016, 0)) is Refusal.EXHAUSTED
    with pytest.raises(InvariantBroken, match=r"is extended by \(7, 0\)"):
        engine.execute(extension(engine, named.hold, 0, 7))
    assert nodes.dump(engine) == before
    engine.execute(extension(engine, named.hold, 1_015, 0))
    assert customers.get_account(engine, ALICE).balance == -20


def test_what_is_due_for_ever_is_an_invariant(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = engine.clock.now()
    never = Due((records.PeriodEnd(now, ALICE, "x", 5, 6, None, (), False, 1),))
    monkeypatch.setattr(charge, "due_before_hold", lambda *_: never)
    with pytest.raises(InvariantBroken, match="what is due for customer 'alice' stays due"):
        nodes.hold(engine, 1)


def test_what_another_process_did_first_is_not_done_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = terms(units("free", 10, "n"))
    execute = engine.execute

    def slower(command: records.AnyCommand) -> object:
        if isinstance(command, records.PeriodEnd):
            execute(command)
        return execute(command)

    monkeypatch.setattr(engine, "execute", slower)
    assert nodes.plan_call(engine, MICRO, {"n": 4}, plan) == 0
    with engine.store.read() as txn:
        row = engine.store.quotas.get(txn, ALICE, "free")
    assert row is not None
    assert (row.units, row.used) == (10, 4)


def test_a_grant_that_debts_have_eaten_expires_without_an_entry(engine: Engine) -> None:
    assert isinstance(engine.clock, ManualClock)
    nodes.settle(engine, nodes.held(engine, 500).hold, 500)
    grants.grant(engine, ALICE, 100, "test", "bonus", expires=engine.clock.now() + 5)
    grants.refund(engine, ALICE, 1_000, "test", "r", ("test", "first"))
    engine.clock.advance(5)
    count = len(nodes.entries_of(engine))
    assert expire_grants(engine) == 1
    account = customers.get_account(engine, ALICE)
    assert (account.balance, account.lots) == (-400, 0)
    assert len(nodes.entries_of(engine)) == count
    assert expire_grants(engine) == 0


def test_the_housekeeper_expires_grants_of_customers_who_never_call(
    path: Path, engine: Engine
) -> None:
    assert isinstance(engine.clock, ManualClock)
    grants.grant(engine, ALICE, 100, "test", "bonus", expires=engine.clock.now() + 5)
    engine.clock.advance(5)
    keeper = Housekeeper(engine)
    keeper.round()
    keeper.stop()
    assert customers.get_account(engine, ALICE).balance == 1_000


def test_a_command_of_a_closed_or_unknown_thing_leaves_no_trace(engine: Engine) -> None:
    before = nodes.dump(engine)
    with pytest.raises(InvalidValue, match="test/unknown does not expire now"):
        engine.execute(records.Expire(1, ALICE, "test", "unknown"))
    with pytest.raises(Conflict, match="'alice' exists already"):
        customers.add_customer(engine, ALICE, nodes.PLAN)
    assert nodes.dump(engine) == before
