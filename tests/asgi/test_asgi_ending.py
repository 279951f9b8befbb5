"""The table of endings, row by row; then every row through the middleware."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from asgi_shop import (
    FLAT,
    HOLD,
    TOKEN,
    Ended,
    Message,
    Shop,
    answer,
    body,
    call,
    config_text,
    script,
    start,
    used,
)

from finomw.asgi.ending import WHOLE_HOLD, Answer, Charge, decide
from finomw.asgi.estimation import Passed
from finomw.asgi.rules import Rule, compile_config
from finomw.config.load import parse
from finomw.metering.usage import Usage
from finomw.types import UsageStatus

KNOWN, MISSING = UsageStatus.KNOWN, UsageStatus.MISSING
INVALID, PARTIAL = UsageStatus.INVALID, UsageStatus.PARTIAL

RULES = compile_config(parse(config_text(), Path("/"))).router


def rule(path: str) -> Rule:
    found = RULES.find("POST", path)
    assert found is not None
    assert found.rule is not None
    return found.rule


COUNTS = {"tokens": 1}


def price(usage: UsageStatus = KNOWN) -> Charge:
    return Charge(COUNTS, usage)


def hold(usage: UsageStatus) -> Charge:
    return Charge(None, usage, WHOLE_HOLD)


ERROR = "error"
NONE = "no answer began"
FAILED = "the answer failed with status {}"
EMPTY = "the answer has no body"
UNDELIVERED = "nothing was delivered"

TABLE: list[tuple[str, UsageStatus | str, int | None, str, Charge | str]] = [
    # rule, usage (or an error object), status, how the answer came, what is charged
    ("/chat", KNOWN, 200, "whole", price()),
    ("/chat", KNOWN, 200, "cut", price(PARTIAL)),
    ("/chat", KNOWN, 500, "whole", price()),
    ("/chat", KNOWN, 204, "empty", price()),
    ("/chat", KNOWN, None, "cut", NONE),
    ("/chat", MISSING, 500, "whole", FAILED.format(500)),
    ("/chat", MISSING, 400, "whole", FAILED.format(400)),
    ("/chat", INVALID, 404, "cut", FAILED.format(404)),
    ("/chat", ERROR, 200, "whole", FAILED.format(200)),
    ("/chat", MISSING, 399, "whole", hold(MISSING)),
    ("/chat_errors", MISSING, 500, "whole", hold(MISSING)),
    ("/chat_errors", ERROR, 200, "whole", hold(MISSING)),
    ("/chat_errors", INVALID, 500, "cut", hold(INVALID)),
    ("/chat", MISSING, 204, "empty", EMPTY),
    ("/chat", MISSING, 304, "empty", EMPTY),
    ("/chat", MISSING, None, "cut", NONE),
    ("/chat", MISSING, 200, "whole", hold(MISSING)),
    ("/chat", INVALID, 200, "whole", hold(INVALID)),
    ("/chat", MISSING, 200, "cut", hold(PARTIAL)),
    ("/chat", MISSING, 200, "blank", EMPTY),
    ("/chat", MISSING, 200, "before", UNDELIVERED),
    ("/chat", KNOWN, 200, "before", price(PARTIAL)),
    ("/chat_none", MISSING, 200, "before", UNDELIVERED),
    ("/flat", KNOWN, 200, "before", UNDELIVERED),
    ("/flat", KNOWN, 200, "blank", price()),
    ("/chat_errors", MISSING, 500, "before", UNDELIVERED),
    ("/chat", INVALID, 200, "cut", hold(INVALID)),
    ("/chat_none", MISSING, 200, "whole", "usage missing"),
    ("/chat_none", INVALID, 200, "whole", "usage invalid"),
    ("/chat_none", MISSING, 200, "cut", "usage missing"),
    ("/chat_none", KNOWN, 200, "cut", price(PARTIAL)),
    ("/flat", KNOWN, 200, "whole", price()),
    ("/flat", KNOWN, 200, "cut", price(PARTIAL)),
    ("/flat", KNOWN, 204, "empty", price()),
    ("/flat", KNOWN, 500, "whole", FAILED.format(500)),
    ("/flat", ERROR, 200, "whole", FAILED.format(200)),
    ("/flat", KNOWN, None, "cut", NONE),
    ("/flat_errors", KNOWN, 500, "whole", price()),
    ("/flat_errors", ERROR, 200, "cut", price(PARTIAL)),
    ("/flat_errors", KNOWN, None, "cut", NONE),
]


@pytest.mark.parametrize(("path", "usage", "status", "came", "charged"), TABLE)
def test_every_row_of_the_table_holds(
    path: str, usage: UsageStatus | str, status: int | None, came: str, charged: Charge | str
) -> None:
    charged_rule = rule(path)
    if not isinstance(usage, UsageStatus):
        usage, error = KNOWN if charged_rule.flat else MISSING, True
    else:
        error = False
    size = 0 if came in ("empty", "blank", "before") else 9
    ending = Answer(status, came == "empty", came not in ("cut", "before"), Passed(size, 0))
    counts = COUNTS if usage is KNOWN else {}
    assert decide(charged_rule, Usage(counts, usage, error), ending, {"tokens": 100}) == charged


def test_a_failed_answer_whose_counts_are_all_0_is_not_charged() -> None:
    nothing = Usage(dict.fromkeys(rule("/chat").measured, 0), KNOWN, error=False)
    failed, whole = Answer(500, False, True, Passed(9, 0)), Answer(200, False, True, Passed(9, 0))
    assert decide(rule("/chat"), nothing, failed, {}) == FAILED.format(500)
    assert decide(rule("/chat"), nothing, whole, {}) == Charge({"tokens": 0}, KNOWN)


CHAT_PRICE = 7 * TOKEN
ESTIMATED = "estimated: the hold"
ERROR_OBJECT = {"error": {"message": "no", "type": "server_error"}}
HTML = b"text/html"


def ended(charged: int, usage: UsageStatus | None, note: str, counts: object = None) -> Ended:
    if counts is None:
        counts = {}
    assert isinstance(counts, dict)
    return Ended(charged, usage, note, counts)


@pytest.mark.parametrize(
    ("path", "messages", "expected"),
    [
        ("/chat", answer(used(7)), ended(CHAT_PRICE, KNOWN, "", {"tokens": 7})),
        ("/chat", answer(used(0)), ended(0, KNOWN, "", {"tokens": 0})),
        ("/chat", answer(used(1000)), ended(1000 * TOKEN, KNOWN, "", {"tokens": 1000})),
        ("/chat", answer(used(7), 500), ended(CHAT_PRICE, KNOWN, "", {"tokens": 7})),
        ("/chat", answer({}), ended(HOLD, MISSING, ESTIMATED)),
        ("/chat", answer(used(None)), ended(HOLD, MISSING, ESTIMATED)),
        ("/chat", answer(used(-1)), ended(HOLD, INVALID, ESTIMATED)),
        ("/chat", answer(used("7")), ended(HOLD, INVALID, ESTIMATED)),
        ("/chat", answer(used(7.5)), ended(HOLD, INVALID, ESTIMATED)),
        ("/chat", answer(used(2**53 + 2)), ended(HOLD, INVALID, ESTIMATED)),
        ("/chat", answer(used(True)), ended(HOLD, INVALID, ESTIMATED)),
        ("/chat", answer([1]), ended(HOLD, MISSING, ESTIMATED)),
        ("/chat", answer([{"usage": 1}]), ended(HOLD, INVALID, ESTIMATED)),
        ("/chat", answer({}, 500), ended(0, None, FAILED.format(500))),
        ("/chat", answer({}, 404), ended(0, None, FAILED.format(404))),
        ("/chat", answer(ERROR_OBJECT), ended(0, None, FAILED.format(200))),
        ("/chat", [start(), body()], ended(0, None, EMPTY)),
        ("/chat", [start(), body(b"{")], ended(HOLD, INVALID, ESTIMATED)),
        ("/chat", [start(200, HTML), body(b"x")], ended(HOLD, MISSING, ESTIMATED)),
        ("/chat", [start(500, HTML), body(b"x")], ended(0, None, FAILED.format(500))),
        ("/chat", [start(200, None), body(b"x")], ended(HOLD, MISSING, ESTIMATED)),
        ("/chat", [start(204), body()], ended(0, None, EMPTY)),
        ("/chat", [start(205, None), body()], ended(0, None, EMPTY)),
        ("/chat", [start(304, HTML), body()], ended(0, None, EMPTY)),
        ("/chat_none", answer({}), ended(0, None, "usage missing")),
        ("/chat_none", answer(used("7")), ended(0, None, "usage invalid")),
        ("/chat_none", answer(used(7)), ended(CHAT_PRICE, KNOWN, "", {"tokens": 7})),
        ("/chat_errors", answer(ERROR_OBJECT, 500), ended(HOLD, MISSING, ESTIMATED)),
        ("/flat", answer({}), ended(FLAT, KNOWN, "", {"requests": 1})),
        ("/flat", [start(200, HTML), body(b"x")], ended(FLAT, KNOWN, "", {"requests": 1})),
        ("/flat", [start(204), body()], ended(FLAT, KNOWN, "", {"requests": 1})),
        ("/flat", [start(302, None), body()], ended(FLAT, KNOWN, "", {"requests": 1})),
        ("/flat", answer({}, 500), ended(0, None, FAILED.format(500))),
        ("/flat", answer(ERROR_OBJECT), ended(0, None, FAILED.format(200))),
        ("/flat_errors", answer({}, 500), ended(FLAT, KNOWN, "", {"requests": 1})),
    ],
)
def test_every_answer_is_charged_as_its_row_says(
    shop: Shop, path: str, messages: list[Message], expected: Ended
) -> None:
    server = call(shop, script(*messages), path)
    assert server.messages == messages
    assert shop.ended() == expected


@pytest.mark.parametrize(
    ("path", "messages", "charged"),
    [
        ("/chat", answer(used(7)), 0),
        ("/chat", [start(200, b"text/event-stream"), body(more=True), body()], 0),
        ("/flat", answer({}), FLAT),
        ("/flat", answer({}, 500), 0),
    ],
)
def test_a_head_call_is_charged_when_its_head_leaves(
    shop: Shop, path: str, messages: list[Message], charged: int
) -> None:
    server = call(shop, script(*messages), path, "HEAD")
    assert server.messages == messages
    head = server.sent[0]
    assert head.ended == 1
    assert shop.ended().charged == charged
    if not charged:
        assert head.durable == head.tail


def test_a_price_beyond_the_largest_amount_is_charged_as_the_hold(shop: Shop) -> None:
    call(shop, script(*answer(used(2**53))))
    charged, usage, note, _ = shop.ended()
    assert (charged, usage) == (HOLD, INVALID)
    assert note.startswith(ESTIMATED)


def test_an_answer_too_large_to_keep_passes_and_is_charged_as_the_hold(shop: Shop) -> None:
    large = json.dumps({**used(7), "pad": "x" * 100}).encode()
    messages = [start(), body(large[:50], True), body(large[50:], True), body()]
    server = call(shop, script(*messages), "/chat_small")
    assert server.messages == messages
    assert [sent.ended for sent in server.sent] == [0, 0, 0, 1]
    assert shop.ended() == ended(HOLD, MISSING, ESTIMATED)


def test_an_answer_too_large_with_its_last_message_waits_as_a_whole(shop: Shop) -> None:
    messages = [start(), body(b"x" * 65)]
    server = call(shop, script(*messages), "/chat_small")
    assert server.messages == messages
    assert [sent.ended for sent in server.sent] == [1, 1]
    assert shop.ended() == ended(HOLD, MISSING, ESTIMATED)


def test_an_answer_of_the_largest_size_is_read(shop: Shop) -> None:
    exact = json.dumps({"usage": {"tokens": 7}}).encode().ljust(64)
    call(shop, script(start(), body(exact[:40], True), body(exact[40:])), "/chat_small")
    assert shop.ended() == ended(CHAT_PRICE, KNOWN, "", {"tokens": 7})
