"""The pages, at Hadoop's own addresses.

site           what all pages share: templates, live updates, errors
listing        long lists in pages; formats: texts, times, bars and curves; access: who may see and do what
applications, application, nodes, queues, entity, dispatchers, about      the pages
changes        the forms behind buttons
timeline       the course of an application, drawn from `histories`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from dispatcher.web import plain_answers
from statemachines.resourcemanager.web.pages import (
    about,
    application,
    applications,
    changes,
    dispatchers,
    entity,
    histories,
    nodes,
    queues,
    site,
)
from statemachines.resourcemanager.web.pages.changes import takes_form
from statemachines.resourcemanager.web.pages.site import style_sheet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statemachines.resourcemanager.web.shared import RMWeb

__all__ = ["routes", "style_sheet", "takes_form"]


def routes(rm: RMWeb, settings: Mapping[str, Any], *, has_ops: bool) -> list[BaseRoute]:
    """The routes of all pages. `settings`: the configuration, for /cluster/about. `has_ops`: the ops API is served."""
    shared = site.Site(rm, is_ops_enabled=has_ops)

    async def home(_: Request) -> Response:
        return RedirectResponse(applications.CLUSTER)

    async def nothing(request: Request) -> site.View:
        raise plain_answers.Refusal(404, f"{request.url.path[:200]}: there is no such page")

    return [
        Route("/", home, methods=["GET"]),
        Route("/cluster/static/{name}", site.static_file, methods=["GET"]),
        *applications.routes(shared),
        *changes.routes(shared),
        *application.routes(shared, histories.Histories(rm.workers)),
        *nodes.routes(shared),
        *queues.routes(shared),
        *entity.routes(shared),
        *dispatchers.routes(shared),
        *about.routes(shared, settings),
        Route("/cluster/{path:path}", shared.page(nothing), methods=["GET"]),
    ]
