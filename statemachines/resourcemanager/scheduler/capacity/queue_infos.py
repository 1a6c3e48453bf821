"""The capacity scheduler's report on one queue. It costs as much as the queue has users and partitions.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from statemachines.resourcemanager.records.config import PartitionCapacityConfig, QueueConfig
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.scheduler.capacity.limits import (
    master_limit,
    user_limit_amounts,
    user_master_limit,
)
from statemachines.resourcemanager.scheduler.capacity.queues import (
    DEFAULT_PARTITION,
    LeafQueue,
    ParentQueue,
    Queue,
    Share,
)
from statemachines.resourcemanager.scheduler.core.amounts import resource_of, share_of
from statemachines.resourcemanager.scheduler.core.users import User, pending_amounts, sum_of, user_info
from statemachines.resourcemanager.scheduler.queue_info import PartitionInfo, QueueInfo, QueueUserInfo

PRIORITY_UTILIZATION = "priority-utilization"
"""The ordering policy of a parent's children."""


def queue_info(queue: Queue) -> QueueInfo:
    """Shares cover the default partition, resources all partitions."""
    share, config = queue.share(DEFAULT_PARTITION), queue.config
    users = list(_users_of(queue))
    leaf = queue if isinstance(queue, LeafQueue) else None
    return QueueInfo(
        path=queue.path,
        state="RUNNING" if queue.is_running else "STOPPED",
        capacity=share.guarantee,
        maximum_capacity=float(share.maximum),
        used_capacity=_used_share(share) / share.guarantee if share.guarantee else 0.0,
        used=resource_of(sum_of([{name: of.used for name, of in queue.shares.items()}])),
        applications=queue.applications,
        pending_applications=queue.pending,
        containers=queue.containers,
        children=tuple(child.path for child in queue.children) if isinstance(queue, ParentQueue) else (),
        priority=config.priority,
        accessible_node_labels=tuple(config.accessible_node_labels),
        default_node_label=config.default_node_label,
        partitions=tuple(_partition_info(queue, name, of, users) for name, of in queue.shares.items()),
        users=_user_infos(leaf) if leaf is not None else (),
        reserved=resource_of(sum_of(user.reserved for user in users)),
        pending=resource_of(pending_amounts(users)),
        reserved_containers=sum(user.reserved_containers for user in users),
        pending_containers=sum(user.pending_containers for user in users),
        maximum_applications=queue.maximum_applications,
        maximum_applications_per_user=leaf.maximum_applications_per_user if leaf is not None else None,
        user_limit_percent=config.minimum_user_limit_percent,
        user_limit_factor=config.user_limit_factor,
        ordering_policy=config.ordering_policy if leaf is not None else PRIORITY_UTILIZATION,
        acl_submit_applications=config.acl_submit_applications,
        acl_administer_queue=config.acl_administer_queue,
        preemption_disabled=queue.disables_preemption,
        maximum_allocation=queue.maximum_allocation,
        maximum_am_percent=float(100 * leaf.am_share) if leaf is not None else 100.0,
    )


def _users_of(queue: Queue) -> Iterator[User]:
    if isinstance(queue, LeafQueue):
        yield from queue.users.values()
    elif isinstance(queue, ParentQueue):
        for child in queue.children:
            yield from _users_of(child)


def _partition_info(queue: Queue, partition: str, share: Share, users: list[User]) -> PartitionInfo:
    config: QueueConfig | PartitionCapacityConfig | None = queue.config
    if partition:
        config = queue.config.accessible_node_labels.get(partition)
    if queue.parent is None:
        capacity = maximum_capacity = 100.0
    else:
        capacity = config.capacity if config is not None else 0.0
        maximum_capacity = config.maximum_capacity if config is not None else 0.0
    info = PartitionInfo(
        partition=partition,
        capacity=capacity,
        maximum_capacity=maximum_capacity,
        used_capacity=100 * _used_share(share) / share.guarantee if share.guarantee else 0.0,
        absolute_capacity=100 * share.guarantee,
        absolute_maximum_capacity=float(100 * share.maximum),
        absolute_used_capacity=100 * _used_share(share),
        guaranteed=_guaranteed(share),
        maximum=resource_of(share.limit),
        used=resource_of(share.used),
        reserved=resource_of(sum_of((user.reserved for user in users), partition)),
        pending=resource_of(pending_amounts(users, partition)),
    )
    if not isinstance(queue, LeafQueue):
        return info
    return info._replace(
        am_limit=resource_of(master_limit(queue, partition)),
        am_used=resource_of(queue.masters_used.get(partition, {})),
        user_am_limit=resource_of(user_master_limit(queue, partition)),
    )


def _user_infos(leaf: LeafQueue) -> tuple[QueueUserInfo, ...]:
    limit = resource_of(user_limit_amounts(leaf, DEFAULT_PARTITION))
    am_limit = resource_of(user_master_limit(leaf, DEFAULT_PARTITION))
    return tuple(user_info(name, user, limit, am_limit) for name, user in leaf.users.items())


def _used_share(share: Share) -> float:
    """Finite, even while containers hold a type that has left with its nodes."""
    return share_of(share.used.items(), share.total)


def _guaranteed(share: Share) -> Resource:
    capacity = share.capacity
    return resource_of({type_: n * capacity.numerator // capacity.denominator for type_, n in share.total.items()})


def guaranteed_amounts(leaf: LeafQueue) -> Mapping[str, float]:
    """The leaf's guarantee over all partitions, by type."""
    amounts: dict[str, float] = {}
    for share in leaf.shares.values():
        for type_, amount in share.total.items():
            amounts[type_] = amounts.get(type_, 0.0) + share.guarantee * amount
    return amounts
