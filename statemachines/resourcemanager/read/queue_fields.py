"""The fields of queues, and of what REST has within them, each declared once, in the order of REST's objects.

The bean of a queue has each field with a key `jmx`. Some values it shows of all queues, and REST of leaves only.

Any thread may call the getters: reports are immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from statemachines.resourcemanager.read.fields import Around, Field, Given, Unit
from statemachines.resourcemanager.read.queue_tally import RUNNING_MINUTES, AppCounts, QueueTally
from statemachines.resourcemanager.records.acls import QueueACL
from statemachines.resourcemanager.records.resource import NOTHING, Resource
from statemachines.resourcemanager.scheduler.queue_info import PartitionInfo, QueueInfo, QueueUserInfo

_ACLS: Final = {"SUBMIT_APP": QueueACL.SUBMIT_APPLICATIONS, "ADMINISTER_QUEUE": QueueACL.ADMINISTER_QUEUE}
"""By YARN's name of the access."""
_EVERYONE: Final = "*"
_NOBODY: Final = " "


def partitions_of(queue: QueueInfo) -> Sequence[PartitionInfo]:
    """The default one first. A scheduler without partitions has shares of the whole cluster."""
    if queue.partitions:
        return queue.partitions
    capacity, maximum = 100 * queue.capacity, 100 * queue.maximum_capacity
    used, of_all = 100 * queue.used_capacity, 100 * (queue.used_capacity * queue.capacity)
    return (PartitionInfo("", capacity, maximum, used, capacity, maximum, of_all),)


def _acls(queue: QueueInfo, around: Around) -> Mapping[str, Any]:
    """The queue's own lists. Without one, as in Hadoop: everyone, or nobody if a list above the queue decides."""
    found = []
    for name, acl in _ACLS.items():
        own = getattr(queue, acl.value)
        if own is None:
            own = _EVERYONE if around.is_for_all(queue.path, acl) else _NOBODY
        found.append({"accessType": name, "accessControlList": own})
    return {"queueAcl": found}


def _children(queue: QueueInfo, around: Around) -> Sequence[QueueInfo] | None:
    """A queue without children has no such key: a client that finds it asks for the children."""
    return None if queue.is_leaf else [around.queues[path] for path in queue.children if path in around.queues]


def _of_leaf(get: Callable[[QueueInfo], Any]) -> Callable[[QueueInfo, Around], Any]:
    """What only queues without children have."""
    return lambda queue, _: get(queue) if queue.is_leaf else None


def _of_default(get: Callable[[PartitionInfo], Any]) -> Callable[[QueueInfo, Around], Any]:
    """Of the default partition."""
    return lambda queue, _: get(partitions_of(queue)[0])


class PartitionOf(NamedTuple):
    """A queue's share of a partition."""

    queue: QueueInfo
    info: PartitionInfo


def _of_partition(get: Callable[[PartitionInfo], Any]) -> Callable[[PartitionOf, Around], Any]:
    return lambda of, _: get(of.info)


_P = Field[PartitionOf]
_Q = Field[QueueInfo]
_U = Field[QueueUserInfo]
_most: Final = _of_leaf(lambda queue: queue.maximum_applications or 0)
_most_of_user: Final = _of_leaf(lambda queue: queue.maximum_applications_per_user or 0)
_SHARES: Final = {"capacity": "capacity", "used_capacity": "usedCapacity", "maximum_capacity": "maxCapacity"}
"""By their names in PartitionInfo, like the next."""
_ABSOLUTE_SHARES: Final = {
    "absolute_capacity": "absoluteCapacity",
    "absolute_used_capacity": "absoluteUsedCapacity",
    "absolute_maximum_capacity": "absoluteMaxCapacity",
}


def _shares_of_partition(shares: Mapping[str, str]) -> Iterator[Field[PartitionOf]]:
    for name, rest in shares.items():
        yield _P(name, Unit.NUMBER, _of_partition(attrgetter(name)), rest)


def _shares_of_default(shares: Mapping[str, str]) -> Iterator[Field[QueueInfo]]:
    for name, rest in shares.items():
        yield _Q(name, Unit.NUMBER, _of_default(attrgetter(name)), rest)


def _counted(get: Callable[[QueueTally], int]) -> Callable[[QueueInfo, Around], int]:
    """What is counted of the queue and of those below it."""
    return lambda _, around: get(around.tally)


def _running(place: int) -> Callable[[QueueInfo, Around], int]:
    return _counted(lambda tally: tally.running[place])


def _limits(place: int, key: str, get: Callable[[PartitionInfo], Resource]) -> Iterator[Field[QueueInfo]]:
    """A limit of the default partition, which beans have of memory and virtual cores only."""
    yield _Q(f"{key}_mb", Unit.MEMORY_MB, _of_default(lambda info: get(info).memory_mb), jmx=(place, f"{key}MB"))
    yield _Q(
        f"{key}_vcores",
        Unit.CORES_MILLI,
        _of_default(lambda info: get(info).vcores_milli),
        jmx=(place + 1, f"{key}VCores"),
    )


# fmt: off
PARTITION_FIELDS: Final[tuple[Field[PartitionOf], ...]] = (
    _P("partition", Unit.NAME, lambda of, _: of.info.partition, "partitionName"),
    *_shares_of_partition(_SHARES | _ABSOLUTE_SHARES),
    _P("maximum_am_percent", Unit.NUMBER, lambda of, _: of.queue.maximum_am_percent if of.queue.is_leaf else 0.0,
       "maxAMLimitPercentage"),
    _P("configured_minimum", Unit.RESOURCE, lambda *_: NOTHING, "configuredMinResource"),
    _P("configured_maximum", Unit.RESOURCE, lambda *_: NOTHING, "configuredMaxResource"),
    _P("guaranteed", Unit.RESOURCE, lambda of, _: of.info.guaranteed, "effectiveMinResource"),
    _P("maximum", Unit.RESOURCE, lambda of, _: of.info.maximum, "effectiveMaxResource"),
)
"""Capacities are configured in percent, so no minimum and maximum is configured as a resource."""
PARTITION_USE_FIELDS: Final[tuple[Field[PartitionOf], ...]] = (
    _P("partition", Unit.NAME, lambda of, _: of.info.partition, "partitionName"),
    _P("used", Unit.RESOURCE, lambda of, _: of.info.used, "used"),
    _P("reserved", Unit.RESOURCE, lambda of, _: of.info.reserved, "reserved"),
    _P("pending", Unit.RESOURCE, lambda of, _: of.info.pending, "pending"),
    _P("am_used", Unit.RESOURCE, lambda of, _: of.info.am_used if of.queue.is_leaf else None, "amUsed"),
    _P("am_limit", Unit.RESOURCE, lambda of, _: of.info.am_limit if of.queue.is_leaf else None, "amLimit"),
    _P("user_am_limit", Unit.RESOURCE, lambda of, _: of.info.user_am_limit if of.queue.is_leaf else None,
       "userAmLimit"),
)
QUEUE_USER_FIELDS: Final[tuple[Field[QueueUserInfo], ...]] = (
    _U("user", Unit.TEXT, lambda user, _: user.user, "username"),
    _U("active", Unit.COUNT, lambda user, _: user.active_applications, "numActiveApplications"),
    _U("waiting", Unit.COUNT, lambda user, _: user.pending_applications, "numPendingApplications"),
    _U("is_active", Unit.FLAG, lambda user, _: user.is_active, "isActive"),
    _U("used", Unit.RESOURCE, lambda user, _: user.used, "resourcesUsed"),
    _U("am_used", Unit.RESOURCE, lambda user, _: user.am_used, "AMResourceUsed"),
    _U("limit", Unit.RESOURCE, lambda user, _: user.user_limit, "userResourceLimit"),
)
_EVERY_QUEUE: Final[tuple[Field[QueueInfo], ...]] = (
    _Q("name", Unit.NAME, lambda queue, _: queue.path.rpartition(".")[2], "queueName"),
    _Q("path", Unit.NAME, lambda queue, _: queue.path, "queuePath"),
    *_shares_of_default(_SHARES),
    _Q("priority", Unit.COUNT, lambda queue, _: queue.priority, "queuePriority"),
    _Q("ordering_policy", Unit.NAME, lambda queue, _: queue.ordering_policy, "orderingPolicyInfo"),
    _Q("mode", Unit.NAME, lambda *_: "percentage", "mode"),
    _Q("acls", Unit.OBJECT, _acls, "queueAcls"),
)
_EVERY_QUEUES_SHARES: Final[tuple[Field[QueueInfo], ...]] = (
    _Q("shares", Unit.PARTITIONS, lambda queue, _: partitions_of(queue), "capacities"),
    _Q("maximum_allocation", Unit.MAXIMUM, lambda queue, _: queue.maximum_allocation, "maximumAllocation"),
)
_QUEUES: Final = _Q("queues", Unit.QUEUES, _children, "queues")
ROOT_QUEUE_FIELDS: Final[tuple[Field[QueueInfo], ...]] = (
    _Q("type", Unit.NAME, lambda *_: "capacityScheduler", "type"),
    *_EVERY_QUEUE,
    _Q("health", Unit.OBJECT, Given("health"), "health"),
    *_EVERY_QUEUES_SHARES,
    _QUEUES,
)
_BEAN_FIELDS: Final[tuple[Field[QueueInfo], ...]] = (
    *(_Q(f"apps_{state}", Unit.COUNT, _counted(attrgetter(f"apps.{state}")), jmx=(place, f"Apps{state.title()}"))
      for place, state in enumerate(AppCounts._fields, 1)),
    _Q("bean_allocated", Unit.LEFT, lambda queue, _: (queue.used, queue.reserved), jmx=(7, "Allocated")),
    _Q("bean_available", Unit.LEFT_OF_EACH, lambda queue, _: [(each.maximum, each.used) for each in
       partitions_of(queue)], jmx=(8, "Available")),
    _Q("bean_pending", Unit.RESOURCE, lambda queue, _: queue.pending, jmx=(9, "Pending")),
    _Q("bean_reserved", Unit.RESOURCE, lambda queue, _: queue.reserved, jmx=(10, "Reserved")),
    *_limits(11, "AMResourceLimit", lambda info: info.am_limit),
    *_limits(13, "UsedAMResource", lambda info: info.am_used),
    *_limits(15, "Guaranteed", lambda info: info.guaranteed),
    *_limits(17, "MaxCapacity", lambda info: info.maximum),
    _Q("used_share", Unit.SHARE, _of_default(lambda info: info.used_capacity / 100), jmx=(19, "UsedCapacity")),
    _Q("absolute_used_share", Unit.SHARE, _of_default(lambda info: info.absolute_used_capacity / 100),
       jmx=(20, "AbsoluteUsedCapacity")),
    _Q("allocated_ever", Unit.COUNT, _counted(lambda tally: tally.allocated), jmx=(22, "AggregateContainersAllocated")),
    _Q("released_ever", Unit.COUNT, _counted(lambda tally: tally.released), jmx=(23, "AggregateContainersReleased")),
    _Q("active_users", Unit.COUNT, _counted(lambda tally: len(tally.active_users)), jmx=(26, "ActiveUsers")),
    _Q("active_applications", Unit.COUNT, lambda queue, _: queue.active_applications, jmx=(27, "ActiveApplications")),
    *(_Q(f"running_{cut}", Unit.COUNT, _running(place), jmx=(28 + place, f"running_{cut}"))
      for place, cut in enumerate((0, *RUNNING_MINUTES))),
)
"""What only beans have of queues."""
QUEUE_FIELDS: Final[tuple[Field[QueueInfo], ...]] = (
    *_EVERY_QUEUE,
    *_shares_of_default(_ABSOLUTE_SHARES),
    _Q("applications", Unit.COUNT, lambda queue, _: queue.applications, "numApplications"),
    _Q("used_text", Unit.RESOURCE_TEXT, lambda queue, _: queue.used, "usedResources"),
    _Q("state", Unit.NAME, lambda queue, _: queue.state, "state"),
    _Q("containers", Unit.COUNT, lambda queue, _: queue.containers, "numContainers"),
    _Q("allocated", Unit.COUNT, lambda queue, _: queue.allocated_containers, "allocatedContainers",
       jmx=(21, "AllocatedContainers")),
    _Q("reserved", Unit.COUNT, lambda queue, _: queue.reserved_containers, "reservedContainers",
       jmx=(25, "ReservedContainers")),
    _Q("pending", Unit.COUNT, lambda queue, _: queue.pending_containers, "pendingContainers",
       jmx=(24, "PendingContainers")),
    _Q("preemption_disabled", Unit.FLAG, lambda queue, _: queue.preemption_disabled, "preemptionDisabled"),
    _Q("labels", Unit.NAMES, lambda queue, _: queue.accessible_node_labels or None, "nodeLabels"),
    _Q("default_label", Unit.NAME, lambda queue, _: queue.default_node_label or None, "defaultNodeLabelExpression"),
    _Q("type", Unit.NAME, _of_leaf(lambda _: "capacitySchedulerLeafQueueInfo"), "type"),
    _Q("active", Unit.COUNT, _of_leaf(lambda queue: queue.active_applications), "numActiveApplications"),
    _Q("waiting", Unit.COUNT, _of_leaf(lambda queue: queue.pending_applications), "numPendingApplications"),
    _Q("most", Unit.LIMIT, _most, "maxApplications"),
    _Q("most_of_user", Unit.LIMIT, _most_of_user, "maxApplicationsPerUser"),
    # How many may be active is bounded by the resources of their masters alone.
    _Q("most_active", Unit.LIMIT, _most, "maxActiveApplications"),
    _Q("most_active_of_user", Unit.LIMIT, _most_of_user, "maxActiveApplicationsPerUser"),
    _Q("user_limit", Unit.WHOLE, _of_leaf(lambda queue: queue.user_limit_percent), "userLimit"),
    _Q("user_limit_factor", Unit.NUMBER, _of_leaf(lambda queue: queue.user_limit_factor), "userLimitFactor"),
    _Q("am_share", Unit.NUMBER, _of_leaf(lambda queue: queue.maximum_am_percent / 100),
       "configuredMaxAMResourceLimit"),
    *_EVERY_QUEUES_SHARES,
    _Q("used", Unit.RESOURCE, lambda queue, _: queue.used, "resourcesUsed"),
    _Q("uses", Unit.PARTITION_USES, lambda queue, _: partitions_of(queue), "resources"),
    _Q("guaranteed", Unit.RESOURCE, _of_default(lambda info: info.guaranteed), "minEffectiveCapacity"),
    _Q("maximum", Unit.RESOURCE, _of_default(lambda info: info.maximum), "maxEffectiveCapacity"),
    _Q("users", Unit.USERS, _of_leaf(lambda queue: queue.users), "users"),
    _Q("am_limit", Unit.RESOURCE, _of_leaf(lambda queue: partitions_of(queue)[0].am_limit), "AMResourceLimit"),
    _Q("am_used", Unit.RESOURCE, _of_leaf(lambda queue: partitions_of(queue)[0].am_used), "usedAMResource"),
    _Q("user_am_limit", Unit.RESOURCE, _of_leaf(lambda queue: partitions_of(queue)[0].user_am_limit),
       "userAMResourceLimit"),
    _Q("pending_resources", Unit.RESOURCE, _of_leaf(lambda queue: queue.pending), "resourcesPending"),
    _Q("reserved_resources", Unit.RESOURCE, _of_leaf(lambda queue: queue.reserved), "resourcesReserved"),
    _QUEUES,
    *_BEAN_FIELDS,
)
# fmt: on
