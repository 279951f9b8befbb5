"""Letting a call in: identify, price, hold; from the left as far as the app.

A call is refused before the app has any work with it. What it may use at most is worked out from
its request, which is read only where its rule says so, and given to the app unchanged or rewritten.
"""

from __future__ import annotations

from typing import NamedTuple

from starlette.types import Scope

from finomw.asgi.identity import Caller, identify
from finomw.asgi.problems import REFUSAL_REASONS, Refused
from finomw.asgi.quote import Quote, quote
from finomw.asgi.request import RequestBody, TooLarge, declared_size, is_encoded
from finomw.asgi.routes import Matched
from finomw.asgi.rules import PricedRule, Rule, Ruleset, SocketRule
from finomw.asgi.serving import Node, Serving
from finomw.asgi.state import Call, CallHold
from finomw.engine import charge
from finomw.engine.charge import Held, HoldRequest
from finomw.errors import (
    DirectoryError,
    InvalidValue,
    JournalDamaged,
    RecordingFailed,
    ReplayDiffers,
)
from finomw.metering.allowance import Allowance, NotInline
from finomw.metering.documents import Document
from finomw.metering.guard import Guard
from finomw.money.account import remaining_percent
from finomw.money.pricing import PriceList
from finomw.types import Counts, Refusal


class Admitted(NamedTuple):
    """A call that was let in: where, at what prices, its hold, and for how much that is."""

    node: Node
    prices: PriceList
    held: Held
    ceiling: Counts
    call: Call


class Admission:
    """Admits the calls of one middleware."""

    def __init__(self, rules: Ruleset, serving: Serving) -> None:
        self._rules = rules
        self._serving = serving

    async def admit(
        self,
        matched: Matched[Rule] | Matched[SocketRule],
        rule: Rule | SocketRule,
        scope: Scope,
        body: RequestBody | None,
    ) -> Admitted | Refused | None:
        """Take a call as far as its hold, whose flush is then under way; or say why not.

        ``None`` is a call that billing cannot record, and that passes unbilled.
        """
        try:
            node = self._serving.node()
            caller = identify(node.engine, scope)
            if isinstance(caller, Refused):
                return caller
            request, size = None, 0
            if isinstance(rule, Rule) and body is not None:
                read = await _read_request(rule, scope, body, node.guard)
                if isinstance(read, Refused):
                    return read
                request, size = read
            if request is not None:
                # That may have taken long. A plan that has changed since would begin its quotas'
                # periods, and those stand until their end; a key may have been revoked.
                caller = identify(node.engine, scope)
                if isinstance(caller, Refused):
                    return caller
            document = Document(request or b"", Allowance())
            try:
                quoted = self._quote(node, rule, matched, caller, document, size)
            except NotInline:
                document = await node.guard.read(self._programs(rule, caller), request or b"")
                caller = identify(node.engine, scope)
                if isinstance(caller, Refused):
                    return caller
                quoted = self._quote(node, rule, matched, caller, document, size)
            if isinstance(quoted, Refused):
                return quoted
            held = self._hold(node, self._hold_request(rule, caller, quoted))
            if isinstance(held, Refusal):
                return self._refused(held, caller)
        except TooLarge as error:
            return Refused("request_too_large", str(error))
        except NotInline:  # the plan has changed while its programs were run apart
            return Refused("invalid_request", "The request takes too long to read.")
        except InvalidValue:
            return Refused("invalid_request", "The request may use more than one call can cost.")
        except (RecordingFailed, DirectoryError, JournalDamaged, ReplayDiffers, OSError) as error:
            # A directory that is not there or damaged is no trouble that a call could pass by.
            if self._serving.failures.passes and isinstance(error, RecordingFailed):
                self._serving.count_unbilled(error)
                return None
            self._serving.failures.note("a call was refused", error)
            return Refused("cannot_record")
        self._serving.failures.over()
        hold = CallHold(quoted.ceiling, rule.splits)
        seen = Call(caller.customer, hold, rule.addable)
        return Admitted(node, quoted.prices, held, quoted.ceiling, seen)

    def _quote(
        self,
        node: Node,
        rule: Rule | SocketRule,
        matched: Matched[Rule] | Matched[SocketRule],
        caller: Caller,
        document: Document,
        size: int,
    ) -> Quote | Refused:
        plan = self._rules.plans.get(caller.account.plan)
        return quote(rule, plan, matched, document, size, node.engine.clock.now())

    def _programs(self, rule: PricedRule, caller: Caller) -> list[str]:
        """Return the programs that run on a request: the rule's, and those of the caller's plan."""
        plan = self._rules.plans.get(caller.account.plan)
        return [*rule.ceiling.programs, *(plan.programs(rule.name) if plan else ())]

    def _hold(self, node: Node, request: HoldRequest) -> Held | Refusal:
        """Hold, and begin the flush. Raises `RecordingFailed` where no refusal can be read."""
        held = None
        try:
            held = charge.hold(node.engine, request)
            if isinstance(held, Held):
                node.durable.begin(held.end)
        except RecordingFailed:
            if isinstance(held, Held):
                charge.abandon(node.engine, held.hold)
            refusal = (
                charge.refusal(node.engine, request) if self._serving.failures.passes else None
            )
            if refusal is None:
                raise
            return refusal
        return held

    def _hold_request(self, rule: PricedRule, caller: Caller, quoted: Quote) -> HoldRequest:
        prices = quoted.prices
        # Who asks for nothing of something that has a price holds the least there is of it: so
        # that a call that may cost something needs a balance.
        least = prices.costs and not any(quoted.ceiling.values())
        return HoldRequest(
            caller.customer,
            caller.key,
            rule.name,
            1 if least else prices.worst,
            quoted.ceiling,
            self._rules.buffer,
            rule.on_crash,
            prices.version,
            quoted.choice,
            caller.account.plan,
            quoted.terms,
            tuple(meter for meter in rule.meters if meter in prices.tiered_meters),
            rule.cap,
            settle=prices.price if rule.flat else None,
        )

    def _refused(self, refusal: Refusal, caller: Caller) -> Refused:
        """Say why there was no hold, with what helps: how much is left, where to top up."""
        reason = REFUSAL_REASONS[refusal]
        extra: dict[str, object] = {"remaining_percent": remaining_percent(caller.account)}
        if self._rules.config.topup_url is not None:
            extra["topup_url"] = self._rules.config.topup_url
        return Refused(reason, extra=extra)


async def _read_request(
    rule: Rule, scope: Scope, body: RequestBody, guard: Guard
) -> tuple[bytes | None, int] | Refused:
    """Return what the rule has to know of a request: its text, and its size in bytes.

    Both are of what the app will see; ``None`` where the text was not read. Raises `TooLarge`,
    `ClientLeft`.
    """
    size = 0
    if rule.sizes_request:
        if is_encoded(scope["headers"]):
            return Refused("invalid_request", "The request's body is compressed.")
        size = declared_size(scope["headers"]) or 0
        if size > rule.request_max:
            raise TooLarge(rule.request_max)
    if not rule.reads_request and (size or not rule.sizes_request):
        return None, size
    request = await body.read(rule.request_max)
    if rule.rewrites.changes_requests:
        rewritten = await rule.rewrites.rewrite_request(request, scope["headers"], guard)
        if isinstance(rewritten, Refused):
            return rewritten
        if rewritten.body is not request:
            body.replace(rewritten.body)
        request, body.asks_usage = rewritten
    return request, len(request)
