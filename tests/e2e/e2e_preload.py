"""The app of the end-to-end tests, called once where it is loaded: before gunicorn forks."""

from __future__ import annotations

import asyncio
import os

import httpx
from e2e_app import app

__all__ = ["app"]


async def warm_up() -> None:
    transport = httpx.ASGITransport(app)
    headers = {"Authorization": os.environ["WARM_UP"]}
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        assert (await client.post("/flat", headers=headers)).status_code == 200


asyncio.run(warm_up())
