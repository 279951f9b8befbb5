"""The tables: what they find, in which order, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from finomw import limits
from finomw.errors import Conflict, InvalidValue, InvariantBroken, NotFound
from finomw.journal.format import START, Tail
from finomw.money.account import Account
from finomw.money.entries import CALL_SOURCE, Entry
from finomw.money.funding import Parts
from finomw.store import Store
from finomw.store.env import StateUnreadable
from finomw.store.grants import GrantRow
from finomw.store.holds import NOBODY, HoldRow
from finomw.store.keys import KeyRow
from finomw.store.quotas import QuotaRow, UsageRow
from finomw.types import (
    CustomerId,
    EntryKind,
    Fund,
    HoldId,
    HoldState,
    KeyHash,
    OnCrash,
    PlanName,
    RouteName,
    WorkerId,
)

A, B = CustomerId("a"), CustomerId("a!")
ACCOUNT = Account(PlanName("default"), 1)
ROW = HoldRow(
    A,
    KeyHash(b"k"),
    RouteName("chat"),
    PlanName("default"),
    "v1",
    "small",
    Parts((), 5, 0, (Fund.WALLET,)),
    {"n": 1},
    {},
    OnCrash.RELEASE,
    False,
    3,
)


class Never:
    """A policy that leaves the mark alone."""

    def blocks(self, account: Account) -> bool:
        return False

    def clears(self, account: Account) -> bool:
        return False


class Always:
    """A policy that moves the mark whenever it is asked."""

    def blocks(self, account: Account) -> bool:
        return True

    def clears(self, account: Account) -> bool:
        return True


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path, limits.MIB, "0123abcd")
    yield store
    store.close()


def entry(kind: EntryKind, amount: int, source_id: str = "1", source: str = "test") -> Entry:
    return Entry(kind, Fund.WALLET, amount, source, source_id, 50)


def test_a_store_that_cannot_be_made_leaves_nothing_open(tmp_path: Path) -> None:
    first = Store(tmp_path, limits.MIB, "0123abcd")
    with pytest.raises(StateUnreadable):
        Store(tmp_path, limits.MIB, "0123abcd")
    first.close()
    Store(tmp_path, limits.MIB, "0123abcd").close()


def test_the_tail_starts_at_the_beginning_and_moves(store: Store) -> None:
    assert store.tail() == START
    with store.write() as txn:
        store.meta.set_tail(txn, Tail(5000, 2**63, 2**32 - 1, 17))
    assert store.tail() == Tail(5000, 2**63, 2**32 - 1, 17)


def test_the_worker_counter_is_remembered(store: Store) -> None:
    with store.write() as txn:
        assert store.meta.last_worker(txn) == 0
        store.meta.set_last_worker(txn, WorkerId(9))
        assert store.meta.last_worker(txn) == 9


def test_a_customer_is_added_once(store: Store) -> None:
    with store.write() as txn:
        store.accounts.add(txn, A, ACCOUNT)
        with pytest.raises(Conflict, match="'a' exists already"):
            store.accounts.add(txn, A, ACCOUNT)
        assert store.accounts.need(txn, A) == ACCOUNT
        assert store.accounts.get(txn, B) is None
        with pytest.raises(NotFound, match="'a!' does not exist"):
            store.accounts.need(txn, B)
        assert list(store.accounts.items(txn)) == [(A, ACCOUNT)]


def test_entries_are_booked_with_the_balance(store: Store) -> None:
    with store.write() as txn:
        store.accounts.add(txn, A, ACCOUNT)
        entries = [entry(EntryKind.GRANT, 100), entry(EntryKind.GRANT, 20, "2")]
        result = store.accounts.post(txn, A, ACCOUNT, entries, 1, Never())
        assert result.balance == 120
        assert store.accounts.need(txn, A) == result
        assert list(store.ledger.items(txn)) == [(A, entries[0]), (A, entries[1])]
        found = store.ledger.find(txn, A, "test", "2")
        assert found == (1, 1, entries[1])
        assert store.ledger.find(txn, A, "test", "3") is None
        assert store.ledger.find(txn, B, "test", "2") is None


def test_a_call_s_entries_are_not_named(store: Store) -> None:
    with store.write() as txn:
        store.accounts.add(txn, A, ACCOUNT)
        booked = entry(EntryKind.SETTLEMENT, -5, "x/1", CALL_SOURCE)
        store.accounts.post(txn, A, ACCOUNT, [booked], 1, Never())
        assert store.ledger.find(txn, A, CALL_SOURCE, "x/1") is None
        assert [row.entry for row in store.ledger.newest_first(txn, A)] == [booked]


def test_no_entries_change_nothing(store: Store) -> None:
    with store.write() as txn:
        store.accounts.add(txn, A, ACCOUNT)
        assert store.accounts.post(txn, A, ACCOUNT, [], 1, Always()) == ACCOUNT


def test_only_a_settlement_sets_the_mark_and_only_a_grant_clears_it(store: Store) -> None:
    def post(account: Account, booked: Entry, number: int) -> int | None:
        with store.write() as txn:
            return store.accounts.post(txn, A, account, [booked], number, Always()).blocked_at

    marked = Account(PlanName("default"), 1, held=9, blocked_at=7)
    free = Account(PlanName("default"), 1, held=9)
    assert post(free, entry(EntryKind.HOLD, -1, "1"), 1) is None
    assert post(free, entry(EntryKind.HOLD_RELEASE, 1, "2"), 2) is None
    assert post(free, entry(EntryKind.GRANT, 1, "3"), 3) is None
    assert post(free, entry(EntryKind.SETTLEMENT, -1, "4"), 4) == 50
    assert post(marked, entry(EntryKind.SETTLEMENT, -1, "5"), 5) == 7
    assert post(marked, entry(EntryKind.HOLD_RELEASE, 1, "6"), 6) == 7
    assert post(marked, entry(EntryKind.GRANT, 1, "7"), 7) is None


def test_a_place_in_the_ledger_and_a_name_are_used_once(store: Store) -> None:
    with store.write() as txn:
        store.ledger.append(txn, A, 1, 0, entry(EntryKind.GRANT, 1))
        store.ledger.name(txn, A, 1, 0, entry(EntryKind.GRANT, 1))
        with pytest.raises(InvariantBroken, match="has an entry 1/0"):
            store.ledger.append(txn, A, 1, 0, entry(EntryKind.GRANT, 2))
        with pytest.raises(InvariantBroken, match="names test/1 already"):
            store.ledger.name(txn, A, 2, 0, entry(EntryKind.GRANT, 1))


def test_a_name_without_its_entry_is_a_broken_ledger(store: Store) -> None:
    with store.write() as txn:
        store.ledger.name(txn, A, 1, 0, entry(EntryKind.GRANT, 1))
        with pytest.raises(InvariantBroken, match="missing entry"):
            store.ledger.find(txn, A, "test", "1")


def test_a_customer_s_entries_come_newest_first_and_nobody_else_s(store: Store) -> None:
    with store.write() as txn:
        for number, customer in enumerate([A, B, A, CustomerId("A"), A], 1):
            store.ledger.append(txn, customer, number, 0, entry(EntryKind.GRANT, number))
        store.ledger.append(txn, A, 5, 1, entry(EntryKind.GRANT, 50))

        def amounts(customer: CustomerId) -> list[int]:
            return [row.entry.amount for row in store.ledger.newest_first(txn, customer)]

        assert amounts(A) == [50, 5, 3, 1]
        assert amounts(B) == [2]
        assert amounts(CustomerId("A")) == [4]
        assert amounts(CustomerId("0")) == []
        assert amounts(CustomerId("z")) == []
        owners = [customer for customer, _ in store.ledger.items(txn)]
        assert owners == ["A", "a", "a", "a", "a", "a!"]


def test_the_longest_names_fit(store: Store) -> None:
    customer = CustomerId("ä" * (limits.CUSTOMER_ID_BYTES // 2))
    longest = Entry(
        EntryKind.GRANT,
        Fund.WALLET,
        1,
        "s" * limits.SOURCE_BYTES,
        "i" * limits.SOURCE_ID_BYTES,
        1,
    )
    with store.write() as txn:
        store.accounts.add(txn, customer, ACCOUNT)
        store.accounts.post(txn, customer, ACCOUNT, [longest], 2**60, Never())
        found = store.ledger.find(txn, customer, longest.source, longest.source_id)
        assert found is not None
        assert found.number == 2**60


def test_holds_are_found_by_worker(store: Store) -> None:
    holds = store.holds
    with store.write() as txn:
        assert holds.workers(txn) == []
        for worker, number in [(2, 1), (1, 300), (1, 2), (70_000, 1)]:
            holds.put(txn, holds.place_of(holds.id_of(WorkerId(worker), number)), ROW)
        assert holds.workers(txn) == [1, 2, 70_000]
        assert holds.of(txn, WorkerId(1)) == [("0123abcd-1-2", ROW), ("0123abcd-1-300", ROW)]
        assert holds.of(txn, WorkerId(3)) == []
        assert holds.of(txn, WorkerId(70_000)) == [("0123abcd-70000-1", ROW)]
        assert holds.worker_of(HoldId("0123abcd-70000-1")) == 70_000


def test_an_ended_hold_is_kept_apart_with_what_became_of_it(store: Store) -> None:
    holds = store.holds
    first, second = HoldId("0123abcd-2-1"), HoldId("0123abcd-2-2")
    with store.write() as txn:
        for name in (first, second):
            holds.put(txn, holds.place_of(name), ROW)
        place, row = holds.need(txn, first)
        assert row == ROW
        settled = replace(row, state=HoldState.SETTLED, ended=9, charged=4, counts={"n": 1})
        holds.end(txn, place, settled)
        with pytest.raises(NotFound, match="0123abcd-2-1 is not open"):
            holds.need(txn, first)
        assert list(holds.items(txn)) == [(second, ROW)]
        assert list(holds.ended(txn)) == [(first, settled)]
        assert (holds.find(txn, first), holds.find(txn, second)) == (settled, ROW)
        assert holds.find(txn, HoldId("0123abcd-2-3")) is None


def test_nobody_s_holds_are_no_worker_s(store: Store) -> None:
    holds = store.holds
    with store.write() as txn:
        name = holds.id_of(NOBODY, 7)
        assert name == "0123abcd-0-7"
        holds.put(txn, holds.place_of(name), ROW)
        assert holds.workers(txn) == []
        assert holds.of(txn, NOBODY) == [(name, ROW)]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0123abcd",
        "0123abcd-1",
        "0123abcd-1-x",
        "0123abcd-1-2-3",
        "ffffffff-1-2",
        "-1-2",
        "0123abcd-01-2",
        "0123abcd-1-+2",
        "0123abcd-1-٢",
        f"0123abcd-1-{2**64}",
        "0123abcd-1-" + "9" * 5_000,
    ],
)
def test_what_is_no_hold_of_this_node_is_invalid(store: Store, name: str) -> None:
    with pytest.raises(InvalidValue, match="not one of this node"):
        store.holds.place_of(HoldId(name))


def test_keys_are_added_once_and_written_anew(store: Store) -> None:
    key, row = KeyHash(b"k" * 32), KeyRow(A, 5, "wxyz")
    with store.write() as txn:
        assert store.keys.get(txn, key) is None
        store.keys.add(txn, key, row)
        with pytest.raises(Conflict, match="key exists"):
            store.keys.add(txn, key, row)
        store.keys.put(txn, key, KeyRow(A, 5, "wxyz", revoked=6))
        assert list(store.keys.items(txn)) == [(key, KeyRow(A, 5, "wxyz", revoked=6))]


def test_a_lot_is_a_grant_that_may_expire_and_has_something_unspent(store: Store) -> None:
    grants = store.grants

    def grant(name: str, expires: int | None, unspent: int) -> GrantRow:
        return GrantRow("test", name, Fund.WALLET, 100, 0, expires, unspent)

    late, soon, never, empty = (
        grant("late", 2**40, 5),
        grant("soon", 300, 7),
        grant("never", None, 0),
        grant("empty", 200, 0),
    )
    with store.write() as txn:
        for row in (late, soon, never, empty):
            grants.put(txn, A, row)
        grants.put(txn, B, soon)
        assert grants.lots(txn, A) == [soon, late]
        assert grants.get(txn, A, "test", "never") == never
        assert grants.get(txn, B, "test", "late") is None
        assert grants.customers_with_lots(txn) == [A, B]
        assert grants.use(txn, A, 6) == 0
        assert grants.use(txn, A, 2) == 1
        assert grants.lots(txn, A) == [replace(late, unspent=4)]
        assert grants.use(txn, A, 9) == 1
        assert grants.lots(txn, A) == []
        assert grants.use(txn, A, 9) == 0
        assert grants.customers_with_lots(txn) == [B]


def test_a_lot_without_its_grant_is_broken(store: Store) -> None:
    with store.write() as txn:
        store.grants.put(txn, A, GrantRow("test", "1", Fund.WALLET, 100, 0, 300, 5))
        txn.delete(b"a\0test\x001", db=store.grants._table)
        with pytest.raises(InvariantBroken, match="a lot without its grant"):
            store.grants.lots(txn, A)


def test_quotas_are_a_customer_s_own(store: Store) -> None:
    quotas = store.quotas
    row = QuotaRow(("n", "m"), False, 5, 9, 10, 3, 4)
    with store.write() as txn:
        assert quotas.get(txn, A, "free") is None
        quotas.put(txn, A, "free", row)
        quotas.put(txn, A, "gift", replace(row, end=None))
        quotas.put(txn, B, "free", replace(row, used=0))
        assert list(quotas.of(txn, A)) == [("free", row), ("gift", replace(row, end=None))]
        quotas.remove(txn, A, "free")
        assert [name for name, _ in quotas.of(txn, A)] == ["gift"]
        assert quotas.usage(txn, A) is None
        usage = UsageRow(5, 9, {"n": 1}, {"n": 2})
        quotas.put_usage(txn, A, usage)
        assert (quotas.usage(txn, A), quotas.usage(txn, B)) == (usage, None)
    assert (row.left, replace(row, used=9).left) == (3, 0)
    assert [row.period.is_over(at) for at in (8, 9)] == [False, True]


def test_all_keys_of_one_customer_go_at_once(store: Store) -> None:
    with store.write() as txn:
        for letter, customer in ((b"a", A), (b"b", B), (b"c", A)):
            store.keys.add(txn, KeyHash(letter * 32), KeyRow(customer, 5, "wxyz"))
        assert store.keys.remove_all(txn, A) == 2
        assert [row.customer for _, row in store.keys.items(txn)] == [B]
        assert store.keys.remove_all(txn, A) == 0


def test_an_erased_ledger_is_one_customer_s_alone(store: Store) -> None:
    with store.write() as txn:
        for customer in (A, B):
            for number in (1, 2):
                booked = entry(EntryKind.GRANT, number, str(number))
                store.ledger.append(txn, customer, number, 0, booked)
                store.ledger.name(txn, customer, number, 0, booked)
        assert store.ledger.erase(txn, A) == 2
        assert list(store.ledger.newest_first(txn, A)) == []
        assert store.ledger.find(txn, A, "test", "1") is None
        assert store.ledger.find(txn, B, "test", "1") is not None
        assert store.ledger.count(txn) == 2
