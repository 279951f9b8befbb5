"""Every operation of a node's life fails once in turn; and those of a call, seen by its client."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from proving import HERE, run_script

sys.path.insert(0, str(HERE.parent / "asgi"))

from asgi_shop import (
    TOKEN,
    Server,
    Shop,
    answer,
    http_scope,
    run,
    script,
    serve,
    used,
)
from faults import ERRORS
from system_calls import SystemCalls

from finomw.engine.engine import close_engine

pytestmark = pytest.mark.no_cover

SEED = 6


@pytest.mark.timeout(600)
def test_whichever_operation_fails_the_node_is_as_before_or_as_after(
    figures: Callable[[str], None],
) -> None:
    told = run_script("faults.py", "--count", 0, "--seed", SEED)
    assert told["lives with faults"] == told["operations of a life"]
    figures(f"injected faults (seed {SEED}): {told}")


@pytest.mark.parametrize(
    "kind", ["open", "fsync", "fdatasync", "posix_fallocate", "mmap", "lmdb.open"]
)
def test_a_client_gets_a_503_and_never_a_500(
    tmp_path: Path, kind: str, figures: Callable[[str], None]
) -> None:
    """The node is opened by the call itself, so that all of that can fail too."""
    statuses: list[int] = []
    for at in count(1):
        calls = SystemCalls()
        (tmp_path / str(at)).mkdir()
        shop = Shop(tmp_path / str(at))
        close_engine(shop.engine)
        with calls.installed():
            calls.fail(kind, at, for_good=bool(at % 2), error=ERRORS[at % len(ERRORS)])
            statuses.append(status_of_a_call(shop))
        shop.reopen()
        charged = [ended.charged for ended in shop.calls()]
        assert shop.open_holds() == 0
        if statuses[-1] == 200:
            assert charged == [7 * TOKEN]
        else:
            assert statuses[-1] == 503
            # What a failed flush was to write may be on the disk all the same.
            assert charged in ([], [0]) or (kind, charged) == ("fdatasync", [7 * TOKEN])
        close_engine(shop.engine)
        if calls.counts[kind] < at:
            break
    assert 503 in statuses
    assert statuses[-1] == 200
    figures(
        f"faults of {kind} in a call that opens its node: {at - 1}, {statuses.count(503)} x 503"
    )


def status_of_a_call(shop: Shop) -> int:
    """Make a call of the shop's customer while only the middleware has the node open."""

    async def main() -> int:
        app = shop.middleware(script(*answer(used(7))))
        server = await serve(app, http_scope(token=shop.token), Server(None))
        return server.status

    status = run(main())
    shop._middlewares.pop().close()
    return status
