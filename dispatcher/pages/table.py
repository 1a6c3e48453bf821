"""The pages of every daemon: one line for each, in the order of the navigation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dispatcher.pages import dispatchers, entities, failures, journal, overview, process, scheduled
from dispatcher.pages.site import NavEntry, Site, View, static_file
from dispatcher.util.http_heads import takes
from dispatcher.web.plain_answers import Refusal


class TablePage(NamedTuple):
    """One module of pages. `path`: its first address, below the root of the site."""

    name: str
    title: str
    path: str
    routes: Callable[[Site], Sequence[BaseRoute]]


PAGES: Final = (
    TablePage("overview", "Overview", overview.PATH, overview.routes),
    TablePage("dispatcher", "Dispatchers", dispatchers.PATH, dispatchers.routes),
    TablePage("failures", "Failures", failures.PATH, failures.routes),
    TablePage("scheduled", "Scheduled", scheduled.PATH, scheduled.routes),
    TablePage("entities", "Entities", "/entities", entities.routes),
    TablePage("journal", "Journal", "/journal", journal.routes),
    TablePage("process", "Process", "/process", process.routes),
)

STATIC: Final = Route("/static/{name}", static_file, methods=["GET"])
"""The style sheet and the script."""
NAV: Final = tuple(NavEntry(page.name, page.title, page.path) for page in PAGES)


def routes_of(site: Site) -> list[BaseRoute]:
    """The routes of all pages, and of what they load. They are at the root of an app, or in a Mount."""
    return [STATIC, *(route for page in PAGES for route in page.routes(site))]


def nothing_at(site: Site) -> ASGIApp:
    """What answers for other paths: a page for people; for programs the error of the app around the pages."""

    async def nothing(request: Request) -> View:
        raise Refusal(404, f"{request.url.path[:200]}: there is no such page")

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if scope["type"] != "http" or not takes(request.headers.getlist("accept"), "text/html"):
            raise HTTPException(404)
        await (await site.respond(request, nothing))(scope, receive, send)

    return answer
