"""GET /scheduler: the queues in the shape of the CapacityScheduler, whatever the scheduler is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from dispatcher.web.plain_answers import utf8
from statemachines.resourcemanager.read.fields import NOWHERE, Around
from statemachines.resourcemanager.read.operations import Operation, SchedulerRun
from statemachines.resourcemanager.read.queue_fields import (
    PARTITION_FIELDS,
    PARTITION_USE_FIELDS,
    QUEUE_FIELDS,
    QUEUE_USER_FIELDS,
    ROOT_QUEUE_FIELDS,
    PartitionOf,
)
from statemachines.resourcemanager.scheduler.queue_info import PartitionInfo, QueueInfo, QueueUserInfo
from statemachines.resourcemanager.web.rest.resources import amount
from statemachines.resourcemanager.web.rest.rest_endpoints import json_answer, route
from statemachines.resourcemanager.web.rest.texts import object_writer
from statemachines.resourcemanager.web.visibility import may_view_all

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

_PARTITION: Final = object_writer(PARTITION_FIELDS)
_PARTITION_USE: Final = object_writer(PARTITION_USE_FIELDS)
_USER: Final = object_writer(QUEUE_USER_FIELDS)


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    kept: dict[bool, tuple[object, object, bytes]] = {}  # by whether ids of containers are shown
    no_users = "null" if rm.config.empty_as_null else '{"user":[]}'

    async def scheduler(request: Request) -> Response:
        queues, run = rm.model.queues, rm.model.run
        sees_all = may_view_all(rm.clients.acls, await rm.users.reader(request))
        found = kept.get(sees_all)
        if found is None or found[0] is not queues or found[1] is not run:
            by_path = {queue.path: queue for queue in queues}
            around = Around(queues=by_path, is_for_all=rm.clients.acls.is_for_all, health=_health(rm, run, sees_all))
            text = utf8(f'{{"scheduler":{{"schedulerInfo":{root(queues[0], around)}}}}}')
            found = kept[sees_all] = queues, run, text
        return json_answer(found[2])

    def users(found: Sequence[QueueUserInfo]) -> str:
        return _list("user", [_USER(each, NOWHERE) for each in found]) if found else no_users

    def children(found: Sequence[QueueInfo], around: Around) -> str:
        return _list("queue", [queue(each, around) for each in found])

    nested: dict[str, Callable[..., str]] = {
        "users": users,
        "queues": children,
        "partitions": partial(_partitions, "queueCapacitiesByPartition", _PARTITION),
        "partition_uses": partial(_partitions, "resourceUsagesByPartition", _PARTITION_USE),
    }
    root, queue = object_writer(ROOT_QUEUE_FIELDS, **nested), object_writer(QUEUE_FIELDS, **nested)
    return [route(rm, "/scheduler", scheduler)]


def _partitions(
    name: str, write: Callable[[PartitionOf, Around], str], queue: QueueInfo, found: Sequence[PartitionInfo]
) -> str:
    return _list(name, [write(PartitionOf(queue, each), NOWHERE) for each in found])


def _list(name: str, texts: Sequence[str]) -> str:
    return f'{{"{name}":[{",".join(texts)}]}}'


# -- health ------------------------------------------------------------------------------------------------------------


def _health(rm: RMWeb, run: SchedulerRun, sees_all: bool) -> dict[str, Any]:
    """What the scheduler has done last. A run is all that it did between two publications.

    Those who may not view all applications get no ids of containers.
    """
    last = {
        "last-allocation": run.last_allocation,
        "last-release": run.last_release,
        "last-preemption": run.last_preemption,
        "last-reservation": run.last_reservation,
    }
    done = {"releases": run.releases, "allocations": run.allocations, "reservations": run.reservations}
    return {
        "lastrun": run.at_ms,
        "operationsInfo": [_operation(rm, name, operation, sees_all) for name, operation in last.items()],
        "lastRunDetails": [
            {"operation": name, "count": of.containers, "resources": amount(of.resources)} for name, of in done.items()
        ],
    }


def _operation(rm: RMWeb, name: str, operation: Operation | None, sees_all: bool) -> dict[str, str]:
    container, node, queue = operation or (None, None, None)
    path = queue and (rm.clients.acls.path_of(queue) or queue)
    return {
        "operation": name,
        "nodeId": node or "N/A",
        "containerId": (sees_all and container) or "N/A",
        "queue": path or "N/A",
    }
