"""The app of the end-to-end tests on a disk whose next flush fails when it is told so."""

from __future__ import annotations

from e2e_app import app
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from finomw import FinoMiddleware
from finomw.engine import engine
from finomw.testing.files import FaultyFiles

files = FaultyFiles()
engine.Files = lambda: files  # type: ignore[assignment,misc]


async def break_disk(request: Request) -> Response:
    files.fail("flush", for_good=True)
    return Response()


async def billing(request: Request) -> Response:
    layer = app.middleware_stack
    while not isinstance(layer, FinoMiddleware):
        layer = layer.app  # type: ignore[union-attr]
    return JSONResponse(layer.health()._asdict())


app.router.routes += [Route("/break", break_disk), Route("/billing", billing)]
