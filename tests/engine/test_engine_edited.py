"""A YAML that was edited between crash and restart: records are complete, replay never reads it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import nodes
import pytest
from processes import Child, Pipe

from finomw.billing import Billing
from finomw.engine import customers, grants
from finomw.engine.directory import create
from finomw.engine.verify import verify
from finomw.errors import FinomwError, HoldRefused

YAML = """\
data: ./node
buffer_usd: "0.50"
plans:
  default:
    quotas: {free: {meters: [pages], units: 10, per: month}}
    prices: {job: {pages: {tiered: [{up_to: 20, usd: "0.01"}, {usd: "0.005"}]}}}
routes:
  - {name: job, match: POST /job, meter: {pages: .n}, hold: {pages: 100}}
"""


def price_raised(text: str) -> str:
    return text.replace('usd: "0.01"', 'usd: "9"').replace('usd: "0.005"', 'usd: "7"')


def buffer_removed(text: str) -> str:
    return text.replace('"0.50"', '"0"')


def quota_removed(text: str) -> str:
    return text.replace("    quotas: {free: {meters: [pages], units: 10, per: month}}\n", "")


def plan_renamed(text: str) -> str:
    return text.replace("default:", "other:")


def works(pipe: Pipe, config: Path) -> None:
    """Settle some jobs and leave one open, until somebody kills this process."""
    with Billing(config) as billing:
        for pages in (4, 9, 17, 25):
            held = billing.hold("alice", "job", {"pages": 30}, timedelta(hours=1))
            billing.settle(held.hold, {"pages": pages})
        left = billing.hold("alice", "job", {"pages": 30}, timedelta(hours=1))
        pipe.send((left.hold, nodes.dump(billing._engine)))
        pipe.recv()


@pytest.mark.parametrize(
    "edit", [price_raised, buffer_removed, quota_removed, plan_renamed, lambda text: text]
)
@pytest.mark.parametrize("rebuilt", [True, False])
def test_what_was_charged_stays_as_it_was_charged(
    tmp_path: Path, edit: Callable[[str], str], rebuilt: bool
) -> None:
    config, path = tmp_path / "fino.yaml", tmp_path / "node"
    config.write_text(YAML)
    create(path, nodes.SEGMENT, nodes.STATE)
    engine = nodes.open_node(path)
    customers.add_customer(engine, nodes.ALICE, nodes.PLAN)
    grants.grant(engine, nodes.ALICE, 2_000_000, "test", "1")
    engine.close()
    child = Child(works, config)
    left, before = child.receive()
    child.kill()
    config.write_text(edit(YAML))
    if rebuilt:
        (path / "control").unlink()
    again = nodes.open_node(path)
    assert nodes.dump(again) == before
    assert verify(again).faults == ()
    again.close()
    with Billing(config) as billing:
        if edit is plan_renamed:
            with pytest.raises(FinomwError, match="default"):
                billing.hold("alice", "job", {"pages": 1}, timedelta(hours=1))
        elif edit is price_raised:
            with pytest.raises(HoldRefused, match="exhausted"):
                billing.hold("alice", "job", {"pages": 30}, timedelta(hours=1))
        else:
            held = billing.hold("alice", "job", {"pages": 1}, timedelta(hours=1))
            billing.settle(held.hold, {"pages": 1})
        billing.release(left)
    last = nodes.open_node(path)
    assert customers.get_account(last, nodes.ALICE).held == 0
    assert verify(last).faults == ()
    last.close()
