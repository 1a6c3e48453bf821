"""YARN's REST API of the resource manager, at /ws/v1/cluster.

cluster, apps, attempts, nodes, scheduler   the endpoints that read
app_groups                                  waiting applications by cause, failed ones by reason: not YARN's either
app_waiting                                 why an application waits, which is not YARN's
writing/                                    the endpoints that change something
filters, ids                                what a request asks for
rest_endpoints, lists    what all endpoints have in common; long lists in pieces
resources, texts         resources, and entities as JSON, made of their fields
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import BaseRoute

from statemachines.resourcemanager.web.rest import (
    app_groups,
    app_waiting,
    apps,
    attempts,
    cluster,
    nodes,
    scheduler,
    writing,
)
from statemachines.resourcemanager.web.rest.rest_endpoints import BASE, error_body, remote_exception

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

__all__ = ["BASE", "error_body", "remote_exception", "routes"]


def routes(rm: RMWeb) -> list[BaseRoute]:
    """The routes of the whole API."""
    parts = (cluster, apps, scheduler, nodes, attempts, writing, app_waiting, app_groups)
    return [route for part in parts for route in part.routes(rm)] + list(cluster.not_offered(rm))
