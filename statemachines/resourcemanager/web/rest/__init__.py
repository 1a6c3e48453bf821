"""YARN's REST API of the resource manager, at /ws/v1/cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import BaseRoute

from statemachines.resourcemanager.web.rest import cluster
from statemachines.resourcemanager.web.rest.answers import BASE, http_error

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

__all__ = ["BASE", "http_error", "routes"]


def routes(rm: RMWeb) -> list[BaseRoute]:
    """The routes of the whole API."""
    return [*cluster.routes(rm)]
