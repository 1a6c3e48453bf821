"""The frame of all pages: what a script that follows a page is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request

from dispatcher.ops import OpsConfig
from dispatcher.ops.shared import Ops
from dispatcher.pages.site import Site, View
from dispatcher.web.plain_answers import Refusal


def followed(page: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The first news that a follower of the page is sent."""
    monkeypatch.setattr("dispatcher.pages.site.TICK_S", 0.0)
    site = Site(Ops(OpsConfig(), "shop", asyncio.Event()), ())

    async def follow() -> list[dict[str, Any]]:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
        events: AsyncIterator[bytes] = site._follow(Request(scope), page)
        found = []
        async for event in events:
            found.append(json.loads(event.decode().partition("data: ")[2]))
            if len(found) == count:
                break
        return found

    return asyncio.run(follow())


def test_a_page_that_cannot_be_made_now_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where too many clients asked at once, each was told that the daemon no longer had what its page showed."""
    outcomes = iter([Refusal(429, "8 such requests are in flight"), None, Refusal(404, "no dispatcher 'central'")])

    async def page(_: Request) -> View:
        refusal = next(outcomes)
        if refusal is not None:
            raise refusal
        return View("problem.html", "A page", {"text": "a text"}, is_clocked=True)

    first, second = followed(page, 2, monkeypatch)

    assert "part-notice" in first["parts"]
    assert second["gone"] is True
