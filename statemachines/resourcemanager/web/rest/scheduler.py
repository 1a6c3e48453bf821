"""GET /scheduler: the queues in the shape of the CapacityScheduler, whatever the scheduler is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from statemachines.resourcemanager.read.operations import Operation, SchedulerRun
from statemachines.resourcemanager.records.acls import QueueACL
from statemachines.resourcemanager.records.resource import NOTHING
from statemachines.resourcemanager.scheduler.queue_info import PartitionInfo, QueueInfo, QueueUserInfo
from statemachines.resourcemanager.web.rest.resources import amount, at_most, json_of, text
from statemachines.resourcemanager.web.rest.rest_endpoints import (
    MOST_INT,
    finite,
    json_answer,
    percent,
    route,
    with_texts,
)

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

_ACLS: Final = {"SUBMIT_APP": QueueACL.SUBMIT_APPLICATIONS, "ADMINISTER_QUEUE": QueueACL.ADMINISTER_QUEUE}
"""By YARN's name of the access."""
_EVERYONE: Final = "*"
_NOBODY: Final = " "


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    kept: tuple[object, object, bytes] = None, None, b""

    async def scheduler(_: Request) -> Response:
        nonlocal kept
        queues, run = rm.model.queues, rm.model.run
        if kept[0] is not queues or kept[1] is not run:
            by_path = {queue.path: queue for queue in queues}
            kept = queues, run, b'{"scheduler":{"schedulerInfo":%s}}' % _root(rm, by_path, queues[0])
        return json_answer(kept[2])

    return [route(rm, "/scheduler", scheduler)]


# -- queues ------------------------------------------------------------------------------------------------------------


def _root(rm: RMWeb, by_path: Mapping[str, QueueInfo], root: QueueInfo) -> bytes:
    fields = {"type": "capacityScheduler", **_every(rm, root), "health": _health(rm, rm.model.run)}
    return with_texts(fields, {**_texts(root), **_children(rm, by_path, root)})


def _children(rm: RMWeb, by_path: Mapping[str, QueueInfo], queue: QueueInfo) -> dict[str, bytes]:
    """A queue without children has no such key: a client that finds it asks for the children."""
    if queue.is_leaf:
        return {}
    found = [_queue(rm, by_path, by_path[path]) for path in queue.children if path in by_path]
    return {"queues": b'{"queue":[%s]}' % b",".join(found)}


def _queue(rm: RMWeb, by_path: Mapping[str, QueueInfo], queue: QueueInfo) -> bytes:
    partition = _default_partition(queue)
    fields = {
        **_every(rm, queue),
        "absoluteCapacity": finite(partition.absolute_capacity),
        "absoluteUsedCapacity": finite(partition.absolute_used_capacity),
        "absoluteMaxCapacity": finite(partition.absolute_maximum_capacity),
        "numApplications": queue.applications,
        "usedResources": text(queue.used),
        "state": queue.state,
        "numContainers": queue.containers,
        "allocatedContainers": queue.allocated_containers,
        "reservedContainers": queue.reserved_containers,
        "pendingContainers": queue.pending_containers,
        "preemptionDisabled": queue.preemption_disabled,
    }
    if queue.accessible_node_labels:
        fields["nodeLabels"] = list(queue.accessible_node_labels)
    if queue.default_node_label:
        fields["defaultNodeLabelExpression"] = queue.default_node_label
    usages = [_usage(queue, each) for each in partitions_of(queue)]
    texts = {
        **_texts(queue),
        "resourcesUsed": json_of(queue.used),
        "resources": b'{"resourceUsagesByPartition":[%s]}' % b",".join(usages),
        "minEffectiveCapacity": json_of(partition.guaranteed),
        "maxEffectiveCapacity": json_of(partition.maximum),
    }
    if queue.is_leaf:
        fields |= _leaf(queue)
        texts |= _leaf_texts(rm, queue, partition)
    return with_texts(fields, {**texts, **_children(rm, by_path, queue)})


def _leaf(queue: QueueInfo) -> dict[str, Any]:
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
        "configuredMaxAMResourceLimit": finite(queue.maximum_am_percent) / 100,
    }


def _leaf_texts(rm: RMWeb, queue: QueueInfo, partition: PartitionInfo) -> dict[str, bytes]:
    users = b'{"user":[%s]}' % b",".join([_user(each) for each in queue.users])
    return {
        "users": users if queue.users or not rm.config.empty_as_null else b"null",
        "AMResourceLimit": json_of(partition.am_limit),
        "usedAMResource": json_of(partition.am_used),
        "userAMResourceLimit": json_of(partition.user_am_limit),
        "resourcesPending": json_of(queue.pending),
        "resourcesReserved": json_of(queue.reserved),
    }


def _user(user: QueueUserInfo) -> bytes:
    fields = {
        "username": user.user,
        "numActiveApplications": user.active_applications,
        "numPendingApplications": user.pending_applications,
        "isActive": user.is_active,
    }
    texts = {
        "resourcesUsed": json_of(user.used),
        "AMResourceUsed": json_of(user.am_used),
        "userResourceLimit": json_of(user.user_limit),
    }
    return with_texts(fields, texts)


def _every(rm: RMWeb, queue: QueueInfo) -> dict[str, Any]:
    """What every queue has, the root included."""
    partition = _default_partition(queue)
    return {
        "queueName": queue.path.rpartition(".")[2],
        "queuePath": queue.path,
        "capacity": finite(partition.capacity),
        "usedCapacity": finite(partition.used_capacity),
        "maxCapacity": finite(partition.maximum_capacity),
        "queuePriority": queue.priority,
        "orderingPolicyInfo": queue.ordering_policy,
        "mode": "percentage",
        "queueAcls": {"queueAcl": [_acl(rm, queue, name, acl) for name, acl in _ACLS.items()]},
    }


def _texts(queue: QueueInfo) -> dict[str, bytes]:
    """More of what every queue has."""
    partitions = b",".join([_partition(queue, each) for each in partitions_of(queue)])
    return {
        "capacities": b'{"queueCapacitiesByPartition":[%s]}' % partitions,
        "maximumAllocation": json_of(at_most(queue.maximum_allocation)),
    }


def _acl(rm: RMWeb, queue: QueueInfo, name: str, acl: QueueACL) -> dict[str, str]:
    """The queue's own list. Without one, as in Hadoop: everyone, or nobody if a list above the queue decides."""
    own = getattr(queue, acl.value)
    if own is None:
        own = _EVERYONE if rm.clients.acls.is_for_all(queue.path, acl) else _NOBODY
    return {"accessType": name, "accessControlList": own}


# -- partitions --------------------------------------------------------------------------------------------------------


def _partition(queue: QueueInfo, info: PartitionInfo) -> bytes:
    """Capacities are configured in percent, so no minimum and maximum is configured as a resource."""
    fields = {
        "partitionName": info.partition,
        "capacity": finite(info.capacity),
        "usedCapacity": finite(info.used_capacity),
        "maxCapacity": finite(info.maximum_capacity),
        "absoluteCapacity": finite(info.absolute_capacity),
        "absoluteUsedCapacity": finite(info.absolute_used_capacity),
        "absoluteMaxCapacity": finite(info.absolute_maximum_capacity),
        "maxAMLimitPercentage": finite(queue.maximum_am_percent) if queue.is_leaf else 0.0,
    }
    texts = {
        "configuredMinResource": json_of(NOTHING),
        "configuredMaxResource": json_of(NOTHING),
        "effectiveMinResource": json_of(info.guaranteed),
        "effectiveMaxResource": json_of(info.maximum),
    }
    return with_texts(fields, texts)


def _usage(queue: QueueInfo, info: PartitionInfo) -> bytes:
    parts = {"used": info.used, "reserved": info.reserved, "pending": info.pending}
    if queue.is_leaf:
        parts |= {"amUsed": info.am_used, "amLimit": info.am_limit, "userAmLimit": info.user_am_limit}
    return with_texts({"partitionName": info.partition}, {name: json_of(part) for name, part in parts.items()})


def _default_partition(queue: QueueInfo) -> PartitionInfo:
    return partitions_of(queue)[0]


def partitions_of(queue: QueueInfo) -> Sequence[PartitionInfo]:
    """The default one first. A scheduler without partitions has shares of the whole cluster."""
    if queue.partitions:
        return queue.partitions
    capacity, maximum = percent(queue.capacity), percent(queue.maximum_capacity)
    used = percent(queue.used_capacity)
    return (
        PartitionInfo("", capacity, maximum, used, capacity, maximum, percent(queue.used_capacity * queue.capacity)),
    )


# -- health ------------------------------------------------------------------------------------------------------------


def _health(rm: RMWeb, run: SchedulerRun) -> dict[str, Any]:
    """What the scheduler has done last. A run is all that it did between two publications."""
    last = {
        "last-allocation": run.last_allocation,
        "last-release": run.last_release,
        "last-preemption": run.last_preemption,
        "last-reservation": run.last_reservation,
    }
    done = {"releases": run.releases, "allocations": run.allocations, "reservations": run.reservations}
    return {
        "lastrun": run.at_ms,
        "operationsInfo": [_operation(rm, name, operation) for name, operation in last.items()],
        "lastRunDetails": [
            {"operation": name, "count": of.containers, "resources": amount(of.resources)} for name, of in done.items()
        ],
    }


def _operation(rm: RMWeb, name: str, operation: Operation | None) -> dict[str, str]:
    container, node, queue = operation or (None, None, None)
    path = queue and (rm.clients.acls.path_of(queue) or queue)
    return {
        "operation": name,
        "nodeId": node or "N/A",
        "containerId": container or "N/A",
        "queue": path or "N/A",
    }
