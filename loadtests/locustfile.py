"""Load on the example app, and a proof that every client was charged what it saw.

Two commands, the first in ``examples/llm_gateway`` (after ``finomw init``), the second, in another
terminal, at the top of the checkout::

    uvicorn app:app --port 8000 --log-level warning
    locust -f loadtests/locustfile.py --headless -u 20 -r 10 -t 30s -H http://127.0.0.1:8000

Each user is a customer of its own with its own key and a little money. It chats, plain and
streamed, and searches; a 402 when the money is gone is the right answer, and only then is a top-up
made. In the end the sum that each user reckons from its answers is compared with its ledger, and
the node directory is verified; a difference makes the exit status 1. ``FINOMW_CONFIG`` names
another ``fino.yaml`` than the example's.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
from pathlib import Path
from typing import Any, ClassVar

from locust import HttpUser, between, events, task

from finomw.cli.demo import calls
from finomw.config.load import load
from finomw.engine import customers, grants, keys
from finomw.engine.engine import close_engine, open_engine
from finomw.engine.ledger import Filter, ledger
from finomw.engine.verify import verify
from finomw.money.micros import amount, to_usd
from finomw.types import CustomerId, EntryKind, Micros, PlanName

EXAMPLE = Path(__file__).parents[1] / "examples" / "llm_gateway" / "fino.yaml"
GRANT: Micros = amount("0.004")
FINISHING_SECONDS = 10
ENTRIES_MOST = 10**9
WORDS = ("hold", "settle", "release", "grant", "ledger", "journal", "balance", "plan")

logger = logging.getLogger("finomw.loadtest")
engine = open_engine(load(os.environ.get("FINOMW_CONFIG") or EXAMPLE).data)


class Customer(HttpUser):
    """One customer: calls one after the other, with its own key."""

    wait_time = between(0.005, 0.05)
    all: ClassVar[list[Customer]] = []

    def on_start(self) -> None:
        """Become a customer with a key and a little money."""
        self.id = CustomerId(f"load-{secrets.token_hex(8)}")
        self.reckoned: Micros = 0
        self.served = self.refused = 0
        customers.add_customer(engine, self.id, PlanName("default"))
        token = keys.create_key(engine, self.id).token
        self.client.headers["Authorization"] = f"Bearer {token}"
        self.grant()
        self.all.append(self)

    def grant(self) -> None:
        """Top up, while the server runs."""
        grants.grant(engine, self.id, GRANT, "loadtest", secrets.token_hex(8))

    @task(3)
    def chat(self) -> None:
        """Ask the cheaper model."""
        self.make(calls.chat("demo-small", self.question(), random.randint(1, 64)))

    @task(3)
    def chat_streamed(self) -> None:
        """Ask the dearer model, and read the answer as it comes."""
        self.make(calls.chat("demo-large", self.question(), random.randint(1, 64), stream=True))

    @task(1)
    def embeddings(self) -> None:
        """Ask for the vectors of some texts."""
        self.make(calls.embeddings([self.question() for _ in range(random.randint(1, 4))]))

    @task(2)
    def search(self) -> None:
        """Make a call with a flat price."""
        self.make(calls.search(random.choice(WORDS)))

    @task(1)
    def health(self) -> None:
        """Make a free call."""
        self.make(calls.HEALTH)

    def question(self) -> str:
        """Return a question of one to twelve words."""
        return " ".join(random.choices(WORDS, k=random.randint(1, 12))) + "?"

    def make(self, ask: calls.Ask) -> None:
        """Make a call and reckon its price; after a refusal for want of money, top up."""
        with self.client.request(
            ask.method, ask.path, json=ask.body, name=ask.name, catch_response=True
        ) as answer:
            if answer.status_code == 200:
                self.served += 1
                self.reckoned += calls.price_of(ask, calls.counts_of(ask, answer.text))
            elif answer.status_code == 402 and answer.json()["reason"] == "exhausted":
                self.refused += 1
                self.grant()
                answer.success()


@events.init.add_listener
def finish_calls(environment: Any, **_: Any) -> None:
    """Let users end the call they are in: what they saw is then all there was."""
    environment.stop_timeout = max(environment.stop_timeout, FINISHING_SECONDS)


@events.test_stop.add_listener
def compare(environment: Any, **_: Any) -> None:
    """Compare what the users saw with the ledger; a difference fails the run."""
    faults = [fault for customer in Customer.all if (fault := difference(customer))]
    faults += verify(engine).faults
    for fault in faults:
        logger.error(fault)
    served = sum(customer.served for customer in Customer.all)
    refused = sum(customer.refused for customer in Customer.all)
    reckoned = to_usd(sum(customer.reckoned for customer in Customer.all))
    logger.info(
        f"{len(Customer.all)} customers, {served} calls served, {refused} refused with 402, "
        f"{reckoned} USD reckoned: {len(faults) or 'no'} faults"
    )
    if faults or not served:
        environment.process_exit_code = 1


@events.quit.add_listener
def close(**_: Any) -> None:
    """Let go of the node directory."""
    close_engine(engine)


def difference(customer: Customer) -> str:
    """Say how a customer's ledger differs from what it reckoned itself, or nothing."""
    settlements = Filter(kinds=frozenset({EntryKind.SETTLEMENT}))
    lines = ledger(engine, customer.id, ENTRIES_MOST, settlements)
    charged = -sum(line.entry.amount for line in lines)
    if charged == customer.reckoned:
        return ""
    return f"{customer.id}: reckoned {to_usd(customer.reckoned)}, charged {to_usd(charged)} USD"
