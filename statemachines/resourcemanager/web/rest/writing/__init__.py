"""What changes something, and what administrators ask. Everything is checked before anything is done.

submissions   POST /apps/new-application and /apps; `submission_body`: what the latter carries
changes       PUT /apps/{app}/state, /queue, /priority and /timeout
admin         POST /nodes/{node}/resource, GET /queues/{queue}/access
node_changes  hosts that may have nodes, labels of nodes, and GET /changes, which lists all changes of administrators
scheduler_conf  GET, PUT and DELETE /scheduler-conf: queues
bodies        JSON of requests: the fields of its objects, with their types
common        who asks, the deadline, and what an error of the services becomes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute

from statemachines.resourcemanager.web.rest.writing import admin, changes, node_changes, scheduler_conf, submissions

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

__all__ = ["routes"]


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    return [route for part in (submissions, changes, admin, node_changes, scheduler_conf) for route in part.routes(rm)]
