"""The frame of all pages: forms of administrators, and what a script that follows a page is sent."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount, Route

from dispatcher.ops import OpsConfig
from dispatcher.ops.shared import Ops
from dispatcher.pages.site import Form, Site, View, takes_form
from dispatcher.web import describe_write
from dispatcher.web.plain_answers import Refusal

from ..ops.client import Client

OWN = {"Origin": "http://daemon"}


def site_of(*, control: bool = True) -> Site:
    return Site(Ops(OpsConfig(control=control), "shop", asyncio.Event()), ())


def app_with_form(*, control: bool = True) -> Starlette:
    site = site_of(control=control)

    async def change(request: Request, form: Form) -> str:
        describe_write(request.scope, operation="discard", target=form["letter"][0])
        if form["letter"] == ["0"]:
            raise Refusal(409, "there is no letter 0")
        return "/letters"

    routes = [Route("/letters/discard", site.form(change), methods=["POST"])]
    return Starlette(routes=[Mount("/ops", routes=routes)])


def post(app: Any, role: str | None, headers: dict[str, str], letter: str = "7") -> httpx.Response:
    client = Client(app, role, prefix="/ops")
    return asyncio.run(client.send("POST", "/letters/discard", data={"letter": letter}, headers=headers))


def test_a_form_makes_its_change_leads_on_and_leaves_an_audit_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dispatcher.audit"):
        answer = post(app_with_form(), "admin", OWN)

    assert (answer.status_code, answer.headers["location"]) == (303, "/ops/letters")
    assert "USER=tester" in "".join(caplog.messages)
    assert "OPERATION=discard\tTARGET=7\tRESULT=SUCCESS" in "".join(caplog.messages)


@pytest.mark.parametrize(
    ("control", "role", "headers", "letter", "status", "reason"),
    [
        (False, "admin", OWN, "7", 403, "controls are switched off; set ops.control: true"),
        (True, None, OWN, "7", 403, "role admin is required"),
        (True, "user", OWN, "7", 403, "role admin is required"),
        (True, "admin", {}, "7", 403, "neither Origin nor Sec-Fetch-Site says"),
        (True, "admin", {"Origin": "http://elsewhere"}, "7", 403, "neither Origin nor Sec-Fetch-Site says"),
        (True, "admin", {"Sec-Fetch-Site": "cross-site"}, "7", 403, "neither Origin nor Sec-Fetch-Site says"),
        (True, "admin", OWN, "0", 409, "there is no letter 0"),
    ],
)
def test_a_form_that_may_not_make_its_change_is_a_page_that_says_why(
    control: bool,
    role: str | None,
    headers: dict[str, str],
    letter: str,
    status: int,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = post(app_with_form(control=control), role, headers, letter)

    assert answer.status_code == status
    assert reason in answer.text
    assert "<h1>" in answer.text
    assert "RESULT=FAILURE" in caplog.text


def test_only_posts_of_the_pages_are_forms_for_a_host() -> None:
    is_form = takes_form(app_with_form().routes)

    assert is_form("/ops/letters/discard")
    assert not is_form("/letters/discard")
    assert not is_form("/ops/letters")


def followed(page: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The first news that a follower of the page is sent."""
    monkeypatch.setattr("dispatcher.pages.site.TICK_S", 0.0)

    async def follow() -> list[dict[str, Any]]:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
        events: AsyncIterator[bytes] = site_of()._follow(Request(scope), page)
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
