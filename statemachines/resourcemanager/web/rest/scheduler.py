"""GET /scheduler: the queues in the shape of the CapacityScheduler, whatever the scheduler is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from statemachines.resourcemanager.scheduler.queue_info import PartitionInfo, QueueInfo, QueueUserInfo
from statemachines.resourcemanager.web.rest.answers import MOST_INT, finite, json_answer, listed, percent, to_json
from statemachines.resourcemanager.web.rest.reading import route
from statemachines.resourcemanager.web.rest.resources import amount, text

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    kept: tuple[object, bytes] = None, b""

    async def scheduler(_: Request) -> Response:
        nonlocal kept
        queues = rm.model.queues
        if kept[0] is not queues:
            by_path = {queue.path: queue for queue in queues}
            kept = queues, to_json({"scheduler": {"schedulerInfo": _root(rm, by_path, queues[0])}})
        return json_answer(kept[1])

    return [route(rm, "/scheduler", scheduler)]


def _root(rm: RMWeb, by_path: Mapping[str, QueueInfo], root: QueueInfo) -> dict[str, Any]:
    return {"type": "capacityScheduler", **_shares(root), **_children(rm, by_path, root)}


def _children(rm: RMWeb, by_path: Mapping[str, QueueInfo], queue: QueueInfo) -> dict[str, Any]:
    """A queue without children has no such key: a client that finds it asks for the children."""
    if queue.is_leaf:
        return {}
    return {"queues": {"queue": [_queue(rm, by_path, by_path[path]) for path in queue.children if path in by_path]}}


def _queue(rm: RMWeb, by_path: Mapping[str, QueueInfo], queue: QueueInfo) -> dict[str, Any]:
    partition = _default_partition(queue)
    shown = {
        **_shares(queue),
        "queuePath": queue.path,
        "absoluteCapacity": finite(partition.absolute_capacity),
        "absoluteUsedCapacity": finite(partition.absolute_used_capacity),
        "absoluteMaxCapacity": finite(partition.absolute_maximum_capacity),
        "numApplications": queue.applications,
        "usedResources": text(queue.used),
        "resourcesUsed": amount(queue.used),
        "state": queue.state,
        "numContainers": queue.containers,
        "allocatedContainers": queue.allocated_containers,
        "reservedContainers": queue.reserved_containers,
        "pendingContainers": queue.pending_containers,
        "orderingPolicyInfo": queue.ordering_policy,
        "priority": queue.priority,
        "preemptionDisabled": queue.preemption_disabled,
    }
    if queue.accessible_node_labels:
        shown["nodeLabels"] = list(queue.accessible_node_labels)
    if queue.default_node_label:
        shown["defaultNodeLabelExpression"] = queue.default_node_label
    more = _leaf(rm, queue, partition) if queue.is_leaf else _children(rm, by_path, queue)
    return shown | more


def _leaf(rm: RMWeb, queue: QueueInfo, partition: PartitionInfo) -> dict[str, Any]:
    """The number of applications that may be active is bounded by the resources of their masters alone.

    A limit that there is not is the greatest number.
    """
    most, of_user = queue.maximum_applications or MOST_INT, queue.maximum_applications_per_user or MOST_INT
    return {
        "type": "capacitySchedulerLeafQueueInfo",
        "numActiveApplications": queue.active_applications,
        "numPendingApplications": queue.pending_applications,
        "maxApplications": most,
        "maxApplicationsPerUser": of_user,
        "maxActiveApplications": most,
        "maxActiveApplicationsPerUser": of_user,
        "userLimit": int(finite(queue.user_limit_percent)),
        "userLimitFactor": finite(queue.user_limit_factor),
        "users": listed(rm, "user", [_user(each) for each in queue.users]),
        "AMResourceLimit": amount(partition.am_limit),
        "usedAMResource": amount(partition.am_used),
        "userAMResourceLimit": amount(partition.user_am_limit),
        "resourcesPending": amount(queue.pending),
        "resourcesReserved": amount(queue.reserved),
    }


def _user(user: QueueUserInfo) -> dict[str, Any]:
    return {
        "username": user.user,
        "resourcesUsed": amount(user.used),
        "numActiveApplications": user.active_applications,
        "numPendingApplications": user.pending_applications,
        "AMResourceUsed": amount(user.am_used),
        "userResourceLimit": amount(user.user_limit),
        "isActive": user.is_active,
    }


def _shares(queue: QueueInfo) -> dict[str, Any]:
    """What every queue has, the root included."""
    partition = _default_partition(queue)
    return {
        "queueName": queue.path.rpartition(".")[2],
        "capacity": finite(partition.capacity),
        "usedCapacity": finite(partition.used_capacity),
        "maxCapacity": finite(partition.maximum_capacity),
        "capacities": {"queueCapacitiesByPartition": [_partition(each) for each in _partitions(queue)]},
    }


def _partition(info: PartitionInfo) -> dict[str, Any]:
    return {
        "partitionName": info.partition,
        "capacity": finite(info.capacity),
        "usedCapacity": finite(info.used_capacity),
        "maxCapacity": finite(info.maximum_capacity),
        "absoluteCapacity": finite(info.absolute_capacity),
        "absoluteUsedCapacity": finite(info.absolute_used_capacity),
        "absoluteMaxCapacity": finite(info.absolute_maximum_capacity),
        "configuredMinResource": amount(info.guaranteed),
        "configuredMaxResource": amount(info.maximum),
    }


def _default_partition(queue: QueueInfo) -> PartitionInfo:
    return _partitions(queue)[0]


def _partitions(queue: QueueInfo) -> Sequence[PartitionInfo]:
    """The default one first. A scheduler without partitions has shares of the whole cluster."""
    if queue.partitions:
        return queue.partitions
    capacity, maximum = percent(queue.capacity), percent(queue.maximum_capacity)
    used = percent(queue.used_capacity)
    return (
        PartitionInfo("", capacity, maximum, used, capacity, maximum, percent(queue.used_capacity * queue.capacity)),
    )
