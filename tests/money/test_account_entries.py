"""Which sign an entry of each kind may have, and what may name it."""

from __future__ import annotations

import msgspec
import pytest

from finomw import limits
from finomw.errors import InvalidValue, InvariantBroken
from finomw.money.entries import CallDetail, Entry, check_amount, check_entry, check_name
from finomw.types import EntryKind, Fund, RouteName, UsageStatus

MAX = limits.AMOUNT_MAX


def entry(kind: EntryKind, amount: int, **fields: str) -> Entry:
    names = {"source": "test", "source_id": "1", **fields}
    return Entry(kind, Fund.WALLET, amount, at=1, **names)


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (EntryKind.GRANT, [1, MAX], [0, -1]),
        (EntryKind.HOLD, [-1, -MAX], [0, 1]),
        (EntryKind.HOLD_RELEASE, [1, MAX], [0, -1]),
        (EntryKind.SETTLEMENT, [0, -1, -MAX], [1]),
        (EntryKind.REFUND, [-1, -MAX], [0, 1]),
    ],
)
def test_a_kind_fixes_the_sign(kind: EntryKind, right: list[int], wrong: list[int]) -> None:
    for amount in right:
        check_entry(entry(kind, amount))
    for amount in wrong:
        with pytest.raises(InvariantBroken, match=f"a {kind.name.lower()} entry cannot have"):
            check_entry(entry(kind, amount))


@pytest.mark.parametrize("amount", [1, -1])
def test_an_adjustment_needs_a_note(amount: int) -> None:
    check_entry(entry(EntryKind.ADJUSTMENT, amount, note="found by hand"))
    with pytest.raises(InvariantBroken):
        check_entry(entry(EntryKind.ADJUSTMENT, amount))
    with pytest.raises(InvariantBroken):
        check_entry(entry(EntryKind.ADJUSTMENT, 0, note="nothing"))


@pytest.mark.parametrize(
    ("kind", "amount"), [(EntryKind.GRANT, MAX + 1), (EntryKind.SETTLEMENT, -MAX - 1)]
)
def test_an_amount_is_bounded(kind: EntryKind, amount: int) -> None:
    with pytest.raises(InvalidValue, match=r"^amount: "):
        check_entry(entry(kind, amount))


@pytest.mark.parametrize("source", ["closing", "reconcile"])
def test_what_closes_or_explains_an_account_may_be_as_large_as_a_sum(source: str) -> None:
    check_entry(entry(EntryKind.GRANT, limits.MICROS_MAX, source=source))
    with pytest.raises(InvalidValue, match=r"^amount: "):
        check_entry(entry(EntryKind.GRANT, limits.MICROS_MAX + 1, source=source))


@pytest.mark.parametrize("amount", [-1, MAX + 1, 1.0, True, "1", None])
def test_an_amount_is_an_integer_within_its_bounds(amount: int) -> None:
    with pytest.raises(InvalidValue, match=r"^what: .* is not a whole number from 0 to "):
        check_amount("what", amount)
    check_amount("what", 0)
    check_amount("what", MAX)
    with pytest.raises(InvalidValue, match=r"^what: 0 micros is not a whole number from 1 to "):
        check_amount("what", 0, least=1)


@pytest.mark.parametrize("field", ["source", "source_id"])
def test_an_entry_needs_both_parts_of_its_name(field: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{field}: must not be empty"):
        check_entry(entry(EntryKind.GRANT, 1, **{field: ""}))


@pytest.mark.parametrize("value", ["a", "ä" * 5, "a" * 10, "a b", "💶" * 2])
def test_a_name_of_printable_text_within_its_bytes_is_taken(value: str) -> None:
    check_name("name", value, 10)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "must not be empty"),
        ("a\0b", "printable"),
        ("a\nb", "printable"),
        ("a\x1b[31m", "printable"),
        ("\ud800", "printable"),
        ("a" * 11, "longer than 10 bytes"),
        ("ä" * 6, "longer than 10 bytes"),
    ],
)
def test_anything_else_is_no_name(value: str, why: str) -> None:
    with pytest.raises(InvalidValue, match=f"^name: .*{why}"):
        check_name("name", value, 10)


def test_an_entry_comes_back_from_its_bytes_as_it_was() -> None:
    detail = CallDetail(RouteName("chat"), {"tokens": 5}, UsageStatus.KNOWN, "v1", "small", 3)
    whole = Entry(EntryKind.SETTLEMENT, Fund.CREDIT, -5, "call", "x/1", 9, "why", detail)
    data = msgspec.msgpack.encode(whole)
    assert msgspec.msgpack.decode(data, type=Entry) == whole
