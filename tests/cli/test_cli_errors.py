"""Every error is one line on stderr and status 2, and changes nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cli_nodes import Call, Node

import finomw.cli
from finomw import limits
from finomw.cli.output import one_line, print_table
from finomw.clock import rfc3339

AMOUNT = 'expected a decimal amount in quotes such as "0.50"'


@pytest.fixture
def alice(node: Node, call: Call) -> Node:
    """Make a node with one customer."""
    call("customer", "add", "alice")
    return node


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["balance", "nobody"], "customer 'nobody' does not exist"),
        (["ledger", "nobody"], "customer 'nobody' does not exist"),
        (["customer", "show", "nobody"], "customer 'nobody' does not exist"),
        (["key", "list", "nobody"], "customer 'nobody' does not exist"),
        (["key", "create", "nobody"], "customer 'nobody' does not exist"),
        (["grant", "nobody", "5"], "customer 'nobody' does not exist"),
        (["key", "revoke", "0123"], "no key begins with '0123'"),
        (["key", "revoke", ""], "key: must not be empty"),
        (["balance", ""], "customer: must not be empty"),
        (["balance", "a\x1b[31m"], "customer: must consist of printable characters"),
        (["balance", "\udcff"], "customer: must consist of printable characters"),
        (["balance", "x" * 600], f"customer: longer than {limits.CUSTOMER_ID_BYTES} bytes"),
        (["customer", "add", "a\0b"], "customer: must consist of printable characters"),
        (["customer", "add", "bob", "--name", "a\nb"],
         "name: must consist of printable characters"),
        (["key", "create", "alice", "--name", "n" * 65], "name: longer than 64 bytes"),
        (["grant", "alice", "5", "--note", "\t"], "note: must consist of printable characters"),
        (["grant", "alice", "5", "--id", ""], "--id: must not be empty"),
        (["grant", "alice", "5", "--source", "s" * 65], "--source: longer than 64 bytes"),
        (["customer", "add", "bob", "--buffer", "-1"], f'--buffer: {AMOUNT}, found "-1"'),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(
    alice: Node, call: Call, command: list[str], message: str
) -> None:
    tail, journal = alice.tail(), alice.journal()
    assert call(*command) == (2, "", f"error: {message}\n")
    assert call(*command, "--json") == (2, "", f"error: {message}\n")
    assert alice.tail() == tail
    assert alice.journal() == journal


@pytest.mark.parametrize(
    ("amount", "message"),
    [
        ("1e3", f'{AMOUNT}, found "1e3"'),
        ("-5", f'{AMOUNT}, found "-5"'),
        ("-.5", f'{AMOUNT}, found "-.5"'),
        ("--5", f'{AMOUNT}, found "--5"'),
        ("+5", f'{AMOUNT}, found "+5"'),
        ("NaN", f'{AMOUNT}, found "NaN"'),
        ("-inf", f'{AMOUNT}, found "-inf"'),
        ("5,00", f'{AMOUNT}, found "5,00"'),
        (" 5", f'{AMOUNT}, found " 5"'),
        ("", f'{AMOUNT}, found ""'),
        ("$5", f'{AMOUNT}, found "$5"'),
        ("٣", f'{AMOUNT}, found "٣"'),
        ("5\n", f'{AMOUNT}, found "5\\n"'),
        ("0.0000001", "finer than a micro-dollar (6 decimals at most): 0.0000001"),
        ("0", "expected at least 0.000001 dollars, found 0"),
        ("9007199254.740993",
         "expected at most 9007199254.740992 dollars, found 9007199254.740993"),
    ],
)  # fmt: skip
def test_a_bad_amount_is_refused_as_an_amount(
    alice: Node, call: Call, amount: str, message: str
) -> None:
    tail, journal = alice.tail(), alice.journal()
    assert call("grant", "alice", amount) == (2, "", f"error: USD: {message}\n")
    assert alice.tail() == tail
    assert alice.journal() == journal


def test_the_largest_amount_is_no_bad_one(alice: Node, call: Call) -> None:
    assert call("grant", "alice", "9007199254.740992").status == 0
    balance = json.loads(call("balance", "alice", "--json").out)["balance_micros"]
    assert balance == limits.AMOUNT_MAX


READING = [
    "balance alice",
    "ledger alice",
    "customer list",
    "key list alice",
    "holds",
    "invoice alice --period 2026-01",
    "verify",
]
WRITING = [
    "grant alice 5",
    "refund alice 5 --of manual x",
    "paid alice 5",
    "customer add bob",
    "customer delete alice --yes",
    "unsubscribe alice",
    "reconcile",
]


@pytest.mark.parametrize("command", [*READING, *WRITING])
def test_a_missing_directory_says_how_to_make_one(folder: Path, call: Call, command: str) -> None:
    done = call(*command.split(), "--data", "gone")
    assert done == (
        2,
        "",
        "error: gone: no node directory here; make one with `finomw init`\n",
    )
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("command", [*READING, *WRITING])
def test_a_directory_of_a_newer_format_is_left_alone(alice: Node, call: Call, command: str) -> None:
    file = alice.data / "node.json"
    file.write_text(file.read_text().replace('"format":1', '"format":2'))
    before, journal = file.read_text(), alice.journal()
    done = call(*command.split())
    assert done == (
        2,
        "",
        f"error: {file}: directory format 2 is newer than this finomw (1); "
        "install the version that wrote it\n",
    )
    assert (file.read_text(), alice.journal()) == (before, journal)


@pytest.mark.parametrize("command", [*READING, *WRITING])
def test_a_bad_file_is_summed_up_in_one_line(alice: Node, call: Call, command: str) -> None:
    journal = alice.journal()
    alice.config.write_text("durabilty: settled\nunmatched: 5\nroutes: 6\n")
    done = call(*command.split())
    assert done == (
        2,
        "",
        "error: fino.yaml: durabilty: unknown option; nearest: durability; known here: data,"
        " durability, on_failure, unmatched, buffer_usd, topup_url, storage, plans, routes;"
        " 2 more, see `finomw check`\n",
    )
    assert alice.journal() == journal


def test_a_missing_file_says_how_to_make_one(folder: Path, call: Call) -> None:
    assert call("balance", "alice", "-c", "no.yaml") == (
        2,
        "",
        "error: no.yaml: cannot be read: No such file or directory;"
        " make one with `finomw init`, or name another with --config\n",
    )


def test_a_file_that_is_a_directory_cannot_be_read(folder: Path, call: Call) -> None:
    (folder / "fino.yaml").mkdir()
    assert call("verify") == (2, "", "error: fino.yaml: cannot be read: Is a directory\n")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("balance", "Missing argument 'CUSTOMER'; see `finomw balance --help`"),
        ("customer", "Missing command; see `finomw customer --help`"),
        ("customer list --bogus", "No such option: --bogus; see `finomw customer list --help`"),
        ("grnt", "No such command 'grnt'. Did you mean 'grant'?; see `finomw --help`"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(call: Call, command: str, message: str) -> None:
    assert call(*command.split()) == (2, "", f"error: {message}\n")


def test_what_the_system_refuses_is_told_in_one_line(
    alice: Node, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(alice.data / "state"))

    monkeypatch.setattr("finomw.cli.options.open_engine", refuse)
    done = call("balance", "alice")
    assert done == (2, "", f"error: {alice.data / 'state'}: Permission denied\n")


def test_ctrl_c_ends_quietly(alice: Node, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("finomw.cli.options.open_engine", interrupt)
    assert call("balance", "alice") == (130, "", "")
    monkeypatch.setattr(finomw.cli, "require_linux", interrupt)
    assert finomw.cli.main() == 130


def test_another_system_is_refused_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(sys, "argv", ["finomw", "init"])
    assert finomw.cli.main() == 2
    assert capsys.readouterr() == (
        "",
        "error: finomw runs on Linux only; this system is darwin\n",
    )
    assert list(folder.iterdir()) == []


def test_a_message_stays_one_line_whatever_is_in_it() -> None:
    assert one_line("a\nb\x1b[31m\udcff é") == "a\\nb\\x1b[31m\\udcff é"


def test_columns_stand_under_each_other_by_the_width_of_their_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [("日本", "7", ""), ("x", "100", "y" * 500), ("\x1b[1m", "", "")]
    print_table(("A", "N", "LAST"), rows, right=("N",))
    assert capsys.readouterr().out.splitlines() == [
        "A          N  LAST",
        "日本       7",
        "x        100  " + "y" * 500,
        "\\x1b[1m",
    ]


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1_769_903_999_999_999, "2026-01-31T23:59:59.999999Z"),
        (1_709_210_096_000_001, "2024-02-29T12:34:56.000001Z"),
        (limits.AMOUNT_MAX, "2255-06-05T23:47:34.740992Z"),
    ],
)
def test_times_are_rfc_3339_to_the_microsecond(at: int, text: str) -> None:
    assert rfc3339(at) == text
