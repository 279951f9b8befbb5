"""Money that comes and goes outside of calls: grants that expire, refunds, payments, invoices."""

from __future__ import annotations

import json

import pytest
from cli_nodes import Call, Node, Ticker, work

pytestmark = pytest.mark.usefixtures("ticking")


@pytest.fixture
def alice(shop: Node, call: Call) -> Node:
    """Make a node with one customer in Berlin."""
    assert call("customer", "add", "alice", "--zone", "Europe/Berlin").status == 0
    return shop


@pytest.fixture
def bob(shop: Node, call: Call) -> Node:
    """Bob may owe ten dollars, and made calls around the end of February in Berlin."""
    call("customer", "add", "bob", "--plan", "postpaid", "--zone", "Europe/Berlin")
    call("customer", "set", "bob", "--credit-limit", "10")
    return shop


def test_a_day_is_when_it_begins_in_the_customers_time_zone(alice: Node, call: Call) -> None:
    done = call("grant", "alice", "5", "--id", "a", "--expires", "2026-07-01")
    assert done == (
        0,
        "gave alice 5.00 USD until 2026-06-30 22:00:00 UTC: manual/a; the balance is 5.00 USD\n",
        "",
    )
    told = json.loads(call("grant", "alice", "5", "--expires", "2026-03-01", "--json").out)
    assert told["expires"] == "2026-02-28T23:00:00.000000Z"
    told = call("grant", "alice", "5", "--expires", "2026-03-01T00:00:00-05:00", "--json").out
    assert json.loads(told)["expires"] == "2026-03-01T05:00:00.000000Z"


def test_a_grant_that_expires_counts_once_too(alice: Node, call: Call) -> None:
    first = ("grant", "alice", "5", "--id", "a", "--expires", "2026-07-01")
    call(*first)
    again = call(*first)
    assert again.out == "booked before, nothing changed: manual/a; the balance is 5.00 USD\n"
    other = call("grant", "alice", "5", "--id", "a")
    assert (other.status, other.out) == (2, "")
    assert other.err.startswith("error: manual/a was used before with expires ")


@pytest.mark.parametrize(
    ("expires", "message"),
    [
        ("2026-01-31", "expires: must be in the future"),
        ("tomorrow", "--expires: expected a time such as 2027-01-31T00:00:00Z, a day such as "
         '2027-01-31, found "tomorrow"'),
        ("30d", "--expires: expected a time such as 2027-01-31T00:00:00Z, a day such as "
         '2027-01-31, found "30d"'),
        ("2027-02-29", "--expires: expected a time such as 2027-01-31T00:00:00Z, a day such as "
         '2027-01-31, found "2027-02-29"'),
        ("2027-01-31T00:00:00", "--expires: expected a time such as 2027-01-31T00:00:00Z, a day "
         'such as 2027-01-31, found "2027-01-31T00:00:00"'),
        ("9999-01-01", "--expires: expected a day in the years 1970 to 9998, found 9999-01-01"),
    ],
)  # fmt: skip
def test_an_expiry_that_cannot_be_is_refused(
    alice: Node, call: Call, expires: str, message: str
) -> None:
    books = alice.books()
    done = call("grant", "alice", "5", "--expires", expires)
    assert done == (2, "", f"error: {message}\n")
    assert alice.books() == books


def test_a_refund_takes_a_part_of_its_grant(alice: Node, call: Call) -> None:
    call("grant", "alice", "5", "--id", "a")
    done = call("refund", "alice", "2", "--of", "manual", "a", "--id", "r1", "--note", "unhappy")
    assert done == (
        0,
        "took 2.00 USD of manual/a back from alice: manual/r1; the balance is 3.00 USD\n",
        "",
    )
    again = call("refund", "alice", "2", "--of", "manual", "a", "--id", "r1", "--note", "unhappy")
    assert again.out == "booked before, nothing changed: manual/r1; the balance is 3.00 USD\n"
    told = call("refund", "alice", "1", "--of", "manual", "a", "--id", "r2", "--json")
    assert json.loads(told.out) == {
        "customer": "alice",
        "amount_micros": 1_000_000,
        "source": "manual",
        "source_id": "r2",
        "repeated": False,
        "balance_micros": 2_000_000,
        "credit_used_micros": 0,
        "of": {"source": "manual", "source_id": "a"},
    }
    [newest, older] = json.loads(call("ledger", "alice", "--kind", "refund", "--json").out)[
        "entries"
    ]
    assert (newest["amount_micros"], newest["note"]) == (-1_000_000, "of manual/a")
    assert (older["amount_micros"], older["note"]) == (-2_000_000, "of manual/a: unhappy")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("refund alice 5.01 --of manual a", "amount: 5010000 micros is more than the 5000000"),
        ("refund alice 1 --of manual b", "customer 'alice' has no grant manual/b"),
        ("refund alice -1 --of manual a", 'USD: expected a decimal amount in quotes such as "0.50'),
        ("refund nobody 1 --of manual a", "customer 'nobody' does not exist"),
        ("refund alice 1", "Missing option '--of'; see `finomw refund --help`"),
        ("refund alice 1 --of manual", "Option '--of' requires 2 arguments"),
        ("paid nobody 1", "customer 'nobody' does not exist"),
        ("paid alice -1", 'USD: expected a decimal amount in quotes such as "0.50", found "-1"'),
        ("paid alice 1 --source call", "source: 'call' is kept for finomw's own entries"),
        ("paid alice 5 --id a", "manual/a was used before with fund"),
        ("invoice nobody --period 2026-02", "customer 'nobody' does not exist"),
        ("invoice alice", "Missing option '--period'; see `finomw invoice --help`"),
        ("invoice alice --period 2026-13", '--period: expected a month such as "2027-01"'),
        ("invoice alice --period 2026-02 --csv --json", "--csv: not together with --json"),
    ],
)
def test_what_cannot_be_booked_is_refused_and_changes_nothing(
    alice: Node, call: Call, command: str, message: str
) -> None:
    call("grant", "alice", "5", "--id", "a")
    books = alice.books()
    done = call(*command.split())
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: {message}")
    assert done.err.count("\n") == 1
    assert alice.books() == books


def test_a_payment_frees_credit_and_is_no_top_up(bob: Node, call: Call) -> None:
    work(bob, "bob", "search", {"requests": 4, "pages": 0})
    done = call("paid", "bob", "3", "--id", "p1", "--note", "transfer")
    assert done == (
        0,
        "booked a payment of 3.00 USD by bob: manual/p1; "
        "the balance is 0.00 USD, 1.00 USD of credit are used\n",
        "",
    )
    told = call("paid", "bob", "3", "--id", "p1", "--note", "transfer", "--json")
    assert json.loads(told.out) == {
        "customer": "bob",
        "amount_micros": 3_000_000,
        "source": "manual",
        "source_id": "p1",
        "repeated": True,
        "balance_micros": 0,
        "credit_used_micros": 1_000_000,
    }
    assert "credit   1.00 of 10.00 USD used\n" in call("balance", "bob").out
    back = call("refund", "bob", "0.5", "--of", "manual", "p1", "--json")
    assert json.loads(back.out)["credit_used_micros"] == 1_500_000


@pytest.fixture
def owing(bob: Node, call: Call, ticking: Ticker) -> Node:
    """Let bob call in January, February and March, as Berlin counts, and pay a part."""
    ticking.seconds = 1_769_900_395  # 2026-01-31T22:59:55Z, five seconds before February
    work(bob, "bob", "search", {"requests": 3, "pages": 0})
    ticking.seconds = 1_769_904_000
    work(bob, "bob", "chat", {"tokens": 13}, "small-1")
    work(bob, "bob", "chat", {"tokens": 7}, "large-1")
    work(bob, "bob", "chat", {"tokens": 5}, "small-1")
    call("paid", "bob", "1.5")
    ticking.seconds = 1_772_320_000  # 2026-02-28T23:06:40Z, already March
    work(bob, "bob", "search", {"requests": 1, "pages": 2})
    return bob


def test_an_invoice_has_a_line_for_each_meter(owing: Node, call: Call) -> None:
    done = call("invoice", "bob", "--period", "2026-02")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "ROUTE  CHOICE   CALLS  METER   UNITS  AMOUNT USD",
        "chat   large-1      1                       0.70",
        "                       tokens      7",
        "chat   small-1      2                       0.18",
        "                       tokens     18",
        "",
        "period  2026-02 in Europe/Berlin: 2026-01-31 23:00:00 to 2026-02-28 23:00:00 UTC",
        "total   0.88 USD",
        "paid    1.50 USD in the period",
        "owed    3.88 USD now",
    ]
    assert "total   3.00 USD" in call("invoice", "bob", "--period", "2026-01").out
    assert "total   5.38 USD" in call("invoice", "bob", "--period", "2026").out
    assert call("invoice", "bob", "--period", "2025").out.splitlines()[:2] == [
        "ROUTE  CHOICE  CALLS  METER  UNITS  AMOUNT USD",
        "",
    ]


def test_an_invoice_tells_programs_the_same(owing: Node, call: Call) -> None:
    told = call("invoice", "bob", "--period", "2026-03", "--json")
    assert json.loads(told.out) == {
        "customer": "bob",
        "period": "2026-03",
        "zone": "Europe/Berlin",
        "start": "2026-02-28T23:00:00.000000Z",
        "end": "2026-03-31T22:00:00.000000Z",
        "lines": [
            {
                "route": "search",
                "choice": "",
                "calls": 1,
                "units": {"pages": 2, "requests": 1},
                "amount_micros": 1_500_000,
            }
        ],
        "total_micros": 1_500_000,
        "paid_micros": 0,
        "owed_micros": 3_880_000,
    }


def test_the_amounts_of_an_invoices_csv_add_up(owing: Node, call: Call) -> None:
    done = call("invoice", "bob", "--period", "2026-02", "--csv")
    ends = "bob,2026-01-31T23:00:00.000000Z,2026-02-28T23:00:00.000000Z"
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "customer,start,end,route,choice,calls,meter,units,amount_micros",
        f"{ends},chat,large-1,1,,,700000",
        f"{ends},chat,large-1,,tokens,7,",
        f"{ends},chat,small-1,2,,,180000",
        f"{ends},chat,small-1,,tokens,18,",
    ]
