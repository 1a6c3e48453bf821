"""The pages, at Hadoop's own addresses.

site           the frame of every daemon's pages (dispatcher.pages), with what is the resource manager's own
listing        long lists in pages; access: who may see and do what
applications, application, nodes, queues      the pages
changes        the forms behind buttons
timeline       the course of an application, drawn from `histories`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from dispatcher.pages import process, table
from dispatcher.web import plain_answers
from statemachines.resourcemanager.web.pages import (
    application,
    applications,
    changes,
    histories,
    nodes,
    queues,
    site,
)

if TYPE_CHECKING:
    from dispatcher.ops.shared import Ops
    from statemachines.resourcemanager.web.shared import RMWeb

__all__ = ["routes"]

_ABOUT: Final = f"{site.ROOT}/about"
"""Hadoop's address of the page of the process."""


def routes(rm: RMWeb, ops: Ops, api: str) -> list[BaseRoute]:
    """The routes of all pages. `api`: where the ops API is."""
    shared = site.ClusterSite(rm, ops, api)

    async def home(_: Request) -> Response:
        return RedirectResponse(applications.CLUSTER)

    async def nothing(request: Request) -> site.View:
        raise plain_answers.Refusal(404, f"{request.url.path[:200]}: there is no such page")

    async def switched_off(_: Request) -> site.View:
        raise plain_answers.Refusal(404, "the ops API is switched off: ops.enabled is false")

    of_daemons = table.routes_of(shared)
    if not ops.config.enabled:
        off = shared.page(switched_off)
        of_daemons = [
            table.STATIC,
            *(route for page in table.PAGES if page.name in site.ALWAYS for route in page.routes(shared)),
            *(Route(page.path, off, methods=["GET"]) for page in table.PAGES if page.name not in site.ALWAYS),
        ]
    return [
        Route("/", home, methods=["GET"]),
        *applications.routes(shared),
        *changes.routes(shared),
        *application.routes(shared, histories.Histories(rm.workers)),
        *nodes.routes(shared),
        *queues.routes(shared),
        Route(_ABOUT, shared.page(lambda request: process.process_view(shared, request)), methods=["GET"]),
        Mount(site.ROOT, routes=[*of_daemons, Route("/{path:path}", shared.page(nothing), methods=["GET"])]),
    ]
