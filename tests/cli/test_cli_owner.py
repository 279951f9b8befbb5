"""What an owner does: customers, keys and grants."""

from __future__ import annotations

import hashlib
import json

import pytest
from cli_nodes import Call, Node, hold, spend

pytestmark = pytest.mark.usefixtures("ticking")


def test_customers_are_added_and_listed(node: Node, call: Call) -> None:
    assert call("customer", "list").out == (
        "CUSTOMER  PLAN  BALANCE USD  HELD USD  LEFT  OWED USD  STATUS  NAME\n"
    )
    added = call("customer", "add", "alice", "--name", "Zoë [red]Ltd", "--plan", "pro")
    assert added == (0, "added customer alice with the plan pro\n", "")
    assert call("customer", "add", "bob").status == 0
    assert call("grant", "bob", "12.5").status == 0
    done = call("customer", "list")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "CUSTOMER  PLAN     BALANCE USD  HELD USD   LEFT  OWED USD  STATUS  NAME",
        "alice     pro             0.00      0.00    0 %      0.00  active  Zoë [red]Ltd",
        "bob       default        12.50      0.00  100 %      0.00  active",
    ]


def test_adding_a_customer_tells_programs_its_account(node: Node, call: Call) -> None:
    done = call("customer", "add", "alice", "--buffer", "0", "--json")
    account = {
        "customer": "alice",
        "status": "active",
        "balance_micros": 0,
        "held_micros": 0,
        "credit_limit_micros": 0,
        "credit_used_micros": 0,
        "credit_held_micros": 0,
        "remaining_percent": 0,
        "blocked_at": None,
        "name": "",
        "plan": "default",
        "zone": "UTC",
        "created": "2026-01-31T23:59:58.000001Z",
        "subscribed": "2026-01-31T23:59:58.000001Z",
        "credited_total_micros": 0,
        "spent_total_micros": 0,
        "buffer_micros": 0,
        "open_holds": 0,
    }
    assert json.loads(done.out) == account
    assert json.loads(call("customer", "list", "--json").out) == {"customers": [account]}


def test_a_customer_is_added_once(node: Node, call: Call) -> None:
    call("customer", "add", "alice")
    done = call("customer", "add", "alice", "--plan", "pro")
    assert done == (2, "", "error: customer 'alice' exists already\n")
    assert json.loads(call("customer", "show", "alice", "--json").out)["plan"] == "default"


def test_a_plan_is_one_of_the_file(node: Node, call: Call) -> None:
    done = call("customer", "add", "alice", "--plan", "defalt")
    assert done == (2, "", 'error: --plan: the YAML has no plan "defalt"; nearest: default\n')
    done = call("customer", "add", "alice", "--plan", "x")
    assert done == (2, "", 'error: --plan: the YAML has no plan "x"; known: default, pro\n')
    assert json.loads(call("customer", "list", "--json").out) == {"customers": []}


def test_showing_a_customer_says_everything_about_it(node: Node, call: Call) -> None:
    call("customer", "add", "alice", "--buffer", "0.25")
    call("grant", "alice", "1")
    token = call("key", "create", "alice", "--name", "old").out.strip()
    call("key", "revoke", token)
    call("key", "create", "alice")
    keys = json.loads(call("key", "list", "alice", "--json").out)["keys"]
    with node.engine() as engine:
        spend(engine, 500_000, 150_000, {"tokens": 3})
        hold(engine, 200_000)
        hold(engine, 100_000)
        done = call("customer", "show", "alice")
        told = call("customer", "show", "alice", "--json")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "customer    alice",
        "name        -",
        "plan        default since 2026-01-31 23:59:58 UTC",
        "time zone   UTC",
        "created     2026-01-31 23:59:58 UTC",
        "status      active",
        "balance     0.55 USD",
        "held        0.30 USD",
        "open holds  2",
        "left        55 % of the balance after the last grant",
        "credited    1.00 USD in total",
        "spent       0.15 USD in total",
        "credit      0.00 of 0.00 USD used",
        "buffer      0.25 USD",
        "",
        "KEY           TOKEN  CREATED UTC          REVOKED UTC          NAME",
        f"{keys[0]['key'][:12]}  …{token[-4:]}  {_seconds(keys[0]['created'])}  "
        f"{_seconds(keys[0]['revoked'])}  old",
        f"{keys[1]['key'][:12]}  …{keys[1]['last_four']}  {_seconds(keys[1]['created'])}  -",
    ]
    document = json.loads(told.out)
    assert document["open_holds"] == 2
    assert document["keys"] == keys
    assert document["held_micros"] == 300_000
    assert document["balance_micros"] == 550_000
    assert document["remaining_percent"] == 55
    assert document["spent_total_micros"] == 150_000


def _seconds(rfc3339: str) -> str:
    return rfc3339[:19].replace("T", " ")


def test_a_token_is_printed_once_and_nowhere_stored(node: Node, call: Call) -> None:
    call("customer", "add", "alice")
    done = call("key", "create", "alice", "--name", "prod")
    token = done.out.removesuffix("\n")
    key = hashlib.sha256(token.encode()).hexdigest()
    assert done.status == 0
    assert token.startswith("fino_")
    assert "\n" not in token
    assert done.err == (f"key {key[:12]} of alice: the token is shown only now, keep it safe\n")
    listed = call("key", "list", "alice")
    assert token not in listed.out
    assert json.loads(call("key", "list", "alice", "--json").out) == {
        "customer": "alice",
        "keys": [
            {
                "key": key,
                "customer": "alice",
                "name": "prod",
                "last_four": token[-4:],
                "created": "2026-02-01T00:00:00.000001Z",
                "revoked": None,
            }
        ],
    }
    stored = b"".join(path.read_bytes() for path in node.data.rglob("*") if path.is_file())
    assert token.encode() not in stored
    assert bytes.fromhex(key) in stored


def test_creating_a_key_gives_programs_token_and_key(node: Node, call: Call) -> None:
    call("customer", "add", "alice")
    done = call("key", "create", "alice", "--json")
    document = json.loads(done.out)
    assert done.err == ""
    assert document["key"] == hashlib.sha256(document["token"].encode()).hexdigest()
    assert document["token"].endswith(document["last_four"])


@pytest.mark.parametrize("whole_token", [True, False])
def test_a_key_is_revoked_by_its_digits_or_its_token(
    node: Node, call: Call, whole_token: bool
) -> None:
    call("customer", "add", "alice")
    made = json.loads(call("key", "create", "alice", "--json").out)
    other = json.loads(call("key", "create", "alice", "--json").out)
    done = call("key", "revoke", made["token"] if whole_token else made["key"][:12].upper())
    assert done == (
        0,
        f"revoked key {made['key'][:12]} (…{made['last_four']}) of alice\n",
        "",
    )
    keys = json.loads(call("key", "list", "alice", "--json").out)["keys"]
    revoked = {key["key"]: key["revoked"] for key in keys}
    assert revoked[other["key"]] is None
    assert revoked[made["key"]] > made["created"]
    tail = node.tail()
    again = call("key", "revoke", made["key"])
    assert again == (2, "", "error: this key was revoked before\n")
    assert node.tail() == tail


def test_revoking_tells_programs_the_key(node: Node, call: Call) -> None:
    call("customer", "add", "alice")
    made = json.loads(call("key", "create", "alice", "--json").out)
    document = json.loads(call("key", "revoke", made["key"], "--json").out)
    assert document["key"] == made["key"]
    assert document["revoked"] == "2026-02-01T00:00:02.000001Z"


def test_a_grant_has_an_id_and_counts_once(node: Node, call: Call) -> None:
    call("customer", "add", "alice")
    done = call("grant", "alice", "25", "--id", "invoice-7", "--note", "bank transfer")
    assert done == (0, "gave alice 25.00 USD: manual/invoice-7; the balance is 25.00 USD\n", "")
    again = call("grant", "alice", "25.000000", "--id", "invoice-7", "--note", "bank transfer")
    assert again == (
        0,
        "booked before, nothing changed: manual/invoice-7; the balance is 25.00 USD\n",
        "",
    )
    other = call("grant", "alice", "1", "--id", "invoice-7", "--source", "gift", "--json")
    assert json.loads(other.out) == {
        "customer": "alice",
        "amount_micros": 1_000_000,
        "source": "gift",
        "source_id": "invoice-7",
        "repeated": False,
        "balance_micros": 26_000_000,
        "credit_used_micros": 0,
        "expires": None,
    }
    entries = json.loads(call("ledger", "alice", "--json").out)["entries"]
    assert [(entry["source"], entry["amount_micros"]) for entry in entries] == [
        ("gift", 1_000_000),
        ("manual", 25_000_000),
    ]


def test_the_same_id_with_another_amount_is_an_error(node: Node, call: Call) -> None:
    call("customer", "add", "alice")
    call("grant", "alice", "25", "--id", "invoice-7")
    done = call("grant", "alice", "26", "--id", "invoice-7")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: manual/invoice-7 was used before with amount ")
    assert json.loads(call("balance", "alice", "--json").out)["balance_micros"] == 25_000_000


def test_grants_without_an_id_are_grants_of_their_own(node: Node, call: Call) -> None:
    call("customer", "add", "alice")
    ids = [json.loads(call("grant", "alice", ".5", "--json").out)["source_id"] for _ in range(2)]
    assert ids[0] != ids[1]
    assert [len(bytes.fromhex(made)) for made in ids] == [8, 8]
    assert json.loads(call("balance", "alice", "--json").out)["balance_micros"] == 1_000_000


def test_with_data_the_file_is_not_needed(node: Node, call: Call) -> None:
    node.config.unlink()
    assert call("customer", "add", "alice", "--data", "fino-data").status == 0
    assert call("grant", "alice", "3", "--data", str(node.data)).status == 0
    done = call("balance", "alice", "--data", "fino-data")
    assert done == (0, "balance  3.00 USD\nheld     0.00 USD\nleft     100 %\n", "")
