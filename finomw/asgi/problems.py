"""Refusals, as ``application/problem+json`` (RFC 9457).

``type`` is a stable URN and ``reason`` its last word, for programs; ``title`` and ``detail`` are
for people. No refusal holds a sum of money: a customer sees a percentage of what is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from starlette.types import Send

from finomw.types import Refusal

RETRY_AFTER_SECONDS = 5

_TITLES = {
    "no_key": (401, "A bearer key is needed"),
    "unknown_key": (401, "The key is not known"),
    "unknown_customer": (401, "The key's customer does not exist"),
    "exhausted": (402, "The balance does not cover this call"),
    "blocked": (402, "The balance went below zero"),
    "held": (402, "The rest of the balance is held by your other calls in flight"),
    "suspended": (403, "The account is suspended"),
    "unpriced": (400, "There is no price for this call"),
    "invalid_request": (400, "The request does not say how much it may use"),
    "unmatched": (404, "No rule covers this path"),
    "request_too_large": (413, "The request body is too large"),
    "unsupported_encoding": (415, "The request's content encoding is not supported"),
    "cannot_record": (503, "Billing cannot record calls at the moment"),
}

REFUSAL_REASONS = {
    Refusal.UNKNOWN_CUSTOMER: "unknown_customer",
    Refusal.SUSPENDED: "suspended",
    Refusal.BLOCKED: "blocked",
    Refusal.EXHAUSTED: "exhausted",
    Refusal.HELD: "held",
}


class Refused(NamedTuple):
    """A call's refusal: why, in a word; what to say about it; and what else helps."""

    reason: str
    detail: str = ""
    extra: Mapping[str, object] = {}

    @property
    def status(self) -> int:
        """The HTTP status."""
        return _TITLES[self.reason][0]


async def send_refusal(send: Send, refused: Refused) -> None:
    """Send a refusal as the whole answer."""
    status, title = _TITLES[refused.reason]
    document = {
        "type": f"urn:finomw:problem:{refused.reason}",
        "title": title,
        "status": status,
        "reason": refused.reason,
        **({"detail": refused.detail} if refused.detail else {}),
        **refused.extra,
    }
    body = msgspec.json.encode(document)
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(body)),
    ]
    if status == 401:
        error = b"" if refused.reason == "no_key" else b' error="invalid_token"'
        headers.append((b"www-authenticate", b"Bearer" + error))
    elif status == 503:
        headers.append((b"retry-after", b"%d" % RETRY_AFTER_SECONDS))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
