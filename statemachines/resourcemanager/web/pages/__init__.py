"""The pages, at Hadoop's own addresses.

site           what all pages share: templates, live updates, errors
listing        long lists in pages; formats: texts, times, bars and curves; access: who may see and do what
applications, application, nodes, queues, entity, dispatchers, about      the pages
changes        the forms behind buttons
timeline       the course of an application as SVG, made of `histories`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from statemachines.resourcemanager.web.pages import (
    about,
    application,
    applications,
    changes,
    dispatchers,
    entity,
    nodes,
    queues,
)
from statemachines.resourcemanager.web.pages.changes import takes_form
from statemachines.resourcemanager.web.pages.histories import Histories
from statemachines.resourcemanager.web.pages.site import Problem, Site, View, static_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statemachines.resourcemanager.web.shared import RMWeb

__all__ = ["routes", "takes_form"]


def routes(rm: RMWeb, settings: Mapping[str, Any], *, has_ops: bool) -> list[BaseRoute]:
    """The routes of all pages. `settings`: the configuration, for /cluster/about. `has_ops`: the ops API is served."""
    site = Site(rm, is_ops_enabled=has_ops)

    async def home(_: Request) -> Response:
        return RedirectResponse(applications.CLUSTER)

    async def nothing(request: Request) -> View:
        raise Problem(404, f"{request.url.path[:200]}: there is no such page")

    return [
        Route("/", home, methods=["GET"]),
        Route("/cluster/static/{name}", static_file, methods=["GET"]),
        *applications.routes(site),
        *changes.routes(site),
        *application.routes(site, Histories(rm.workers)),
        *nodes.routes(site),
        *queues.routes(site),
        *entity.routes(site),
        *dispatchers.routes(site),
        *about.routes(site, settings),
        Route("/cluster/{path:path}", site.page(nothing), methods=["GET"]),
    ]
