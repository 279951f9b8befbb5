"""What an owner does: named once, durable when it returns, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nodes
import pytest
from nodes import ALICE

from finomw import limits
from finomw.engine import customers, grants, keys, ledger
from finomw.engine.engine import Engine
from finomw.errors import Conflict, FlushFailed, InvalidValue, NotFound
from finomw.testing.files import FaultyFiles
from finomw.types import CustomerId, KeyHash, PlanName

NOBODY = CustomerId("nobody")


def test_everything_an_owner_does_is_durable_when_it_returns(engine: Engine) -> None:
    bob = CustomerId("bob")
    steps: list[Callable[[], object]] = [
        lambda: customers.add_customer(engine, bob, nodes.PLAN, "Bob"),
        lambda: keys.create_key(engine, bob),
        lambda: keys.revoke_key(engine, keys.create_key(engine, bob).key),
        lambda: grants.grant(engine, bob, 5, "test", "1"),
        lambda: grants.refund(engine, bob, 2, "test", "2", ("test", "1")),
        lambda: grants.pay(engine, bob, 3, "test", "3"),
        lambda: customers.set_terms(engine, bob, credit_limit=7),
        lambda: customers.suspend(engine, bob, "late"),
        lambda: customers.resume(engine, bob, "paid"),
        lambda: customers.change_plan(engine, bob, PlanName("other")),
        lambda: customers.unsubscribe(engine, bob),
        lambda: customers.subscribe(engine, bob, nodes.PLAN, "Europe/Berlin"),
    ]
    for step in steps:
        before = engine.tail()
        step()
        assert before < engine.tail() == engine.durable()
    account = customers.get_account(engine, bob)
    assert (account.name, account.plan, account.buffer) == ("Bob", "default", None)
    assert (account.balance, account.credit_used, account.credit_limit) == (3, -3, 7)
    assert account.zone == "Europe/Berlin"
    customers.delete_customer(engine, bob)
    assert engine.tail() == engine.durable()


def test_nothing_is_said_to_be_done_when_the_flush_fails(path: Path) -> None:
    files = FaultyFiles()
    engine = nodes.open_node(path, files)
    customers.add_customer(engine, ALICE, nodes.PLAN)
    files.fail("flush")
    with pytest.raises(FlushFailed):
        grants.grant(engine, ALICE, 5, "test", "1")
    nodes.drop(engine)


def test_a_repeated_grant_is_given_once_and_durable_too(engine: Engine) -> None:
    first = grants.grant(engine, ALICE, 5, "stripe", "evt_1", "thanks")
    held = nodes.held(engine, 1)
    again = grants.grant(engine, ALICE, 5, "stripe", "evt_1", "thanks")
    assert (first.repeated, first.account.balance) == (False, 1_005)
    assert (again.repeated, again.account.balance) == (True, 1_004)
    assert engine.durable() >= held.end
    assert customers.get_account(engine, ALICE).credited_total == 1_005


@pytest.mark.parametrize(("amount", "note", "field"), [(6, "thanks", "amount"), (5, "", "note")])
def test_a_grant_of_the_same_name_with_other_content_is_a_conflict(
    engine: Engine, amount: int, note: str, field: str
) -> None:
    grants.grant(engine, ALICE, 5, "stripe", "evt_1", "thanks")
    before = nodes.dump(engine)
    with pytest.raises(Conflict, match=f"stripe/evt_1 was used before with {field} "):
        grants.grant(engine, ALICE, amount, "stripe", "evt_1", note)
    assert nodes.dump(engine) == before


def test_names_are_a_customer_s_own(engine: Engine) -> None:
    bob = CustomerId("bob")
    customers.add_customer(engine, bob, nodes.PLAN)
    grants.grant(engine, ALICE, 5, "test", "same")
    assert not grants.grant(engine, bob, 7, "test", "same").repeated


def test_what_is_malformed_is_refused_by_its_field(engine: Engine) -> None:
    long = "x" * (limits.NOTE_BYTES + 1)
    bob = CustomerId("bob")
    refused = {
        "customer: must not": lambda: customers.add_customer(engine, CustomerId(""), nodes.PLAN),
        "customer: longer": lambda: customers.add_customer(engine, CustomerId(long), nodes.PLAN),
        "plan: must not": lambda: customers.add_customer(engine, bob, PlanName("")),
        "name: longer": lambda: customers.add_customer(engine, bob, nodes.PLAN, long),
        "buffer: -1": lambda: customers.add_customer(engine, bob, nodes.PLAN, buffer=-1),
        "name: must consist": lambda: keys.create_key(engine, ALICE, "a\nb"),
        "amount: 0": lambda: grants.grant(engine, ALICE, 0, "test", "1"),
        "amount: -5": lambda: grants.grant(engine, ALICE, -5, "test", "1"),
        "amount: 9007199254740993": lambda: grants.grant(engine, ALICE, 2**53 + 1, "t", "1"),
        "source: 'call'": lambda: grants.grant(engine, ALICE, 1, "call", "1"),
        "source: must not": lambda: grants.grant(engine, ALICE, 1, "", "1"),
        "source_id: must not": lambda: grants.grant(engine, ALICE, 1, "test", ""),
        "source_id: must": lambda: grants.refund(engine, ALICE, 1, "t", "", ("test", "first")),
        "source: must": lambda: grants.refund(engine, ALICE, 1, "", "1", ("test", "first")),
        "reason: must not": lambda: customers.suspend(engine, ALICE, ""),
        "reason: must": lambda: customers.resume(engine, ALICE, "\n"),
        "expected a time zone": lambda: customers.subscribe(engine, ALICE, nodes.PLAN, "Mars"),
        "plan: longer": lambda: customers.change_plan(engine, ALICE, PlanName(long)),
        "credit_limit: -1": lambda: customers.set_terms(engine, ALICE, credit_limit=-1),
        "source_id: longer": lambda: grants.grant(engine, ALICE, 1, "test", long),
        "note: longer": lambda: grants.grant(engine, ALICE, 1, "test", "1", long),
    }
    before = nodes.dump(engine)
    for message, act in refused.items():
        with pytest.raises(InvalidValue, match=f"^{message}"):
            act()
    assert nodes.dump(engine) == before


def test_who_does_not_exist_gets_nothing(engine: Engine) -> None:
    for act in (
        lambda: grants.grant(engine, NOBODY, 1, "test", "1"),
        lambda: keys.create_key(engine, NOBODY),
        lambda: customers.get_account(engine, NOBODY),
        lambda: ledger.ledger(engine, NOBODY, 5),
    ):
        with pytest.raises(NotFound, match="'nobody' does not exist"):
            act()
    with pytest.raises(Conflict, match="'alice' exists already"):
        customers.add_customer(engine, ALICE, nodes.PLAN)


def test_a_key_is_known_by_its_hash_alone(path: Path, engine: Engine) -> None:
    made = keys.create_key(engine, ALICE, "laptop")
    assert made.token.startswith("fino_")
    assert keys.hash_token(made.token) == made.key
    key, row = keys.find_key(engine, made.token)
    assert (key, row.customer, row.name, row.last_four) == (
        made.key,
        ALICE,
        "laptop",
        made.token[-4:],
    )
    assert keys.find_key(engine, made.key.hex()[:10].upper())[0] == made.key
    engine.flush()
    secret = made.token.removeprefix("fino_").encode()
    assert not any(secret in data for data in nodes.journal_bytes(path).values())
    assert secret not in (path / "state" / "data.mdb").read_bytes()


def test_a_key_that_cannot_be_told_is_refused(engine: Engine) -> None:
    made = [keys.create_key(engine, ALICE).key.hex() for _ in range(17)]
    shared = next(digit for digit in "0123456789abcdef" if sum(k[0] == digit for k in made) > 1)
    with pytest.raises(InvalidValue, match="give more digits"):
        keys.find_key(engine, shared)
    for unknown in ("", "xyz", "fino_unknown", "f" * 64):
        with pytest.raises(NotFound, match="no key begins with"):
            keys.find_key(engine, unknown)


def test_a_key_is_revoked_once(engine: Engine) -> None:
    made = keys.create_key(engine, ALICE)
    keys.revoke_key(engine, made.key)
    assert keys.find_key(engine, made.token)[1].revoked == engine.clock.now()
    with pytest.raises(Conflict, match="revoked before"):
        keys.revoke_key(engine, made.key)
    with pytest.raises(NotFound):
        keys.revoke_key(engine, KeyHash(bytes(32)))


def test_the_ledger_shows_the_newest_first_up_to_a_limit(engine: Engine) -> None:
    for number in range(5):
        grants.grant(engine, ALICE, number + 1, "test", str(number))
    assert [row.entry.amount for row in ledger.ledger(engine, ALICE, 3)] == [5, 4, 3]
    assert len(ledger.ledger(engine, ALICE, 100)) == 6
