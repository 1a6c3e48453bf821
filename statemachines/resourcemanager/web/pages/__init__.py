"""The pages, at Hadoop's own addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

__all__ = ["routes"]


def routes(rm: RMWeb) -> list[BaseRoute]:
    """The routes of all pages."""

    async def cluster(_: Request) -> Response:
        """Whether it is the active resource manager, as clients with several addresses ask."""
        if rm.model.is_active():
            return PlainTextResponse(f"{rm.name}: active\n")
        return PlainTextResponse(f"{rm.name}: not active\n", 503, {"Retry-After": "1"})

    return [Route("/cluster", cluster, methods=["GET"])]
