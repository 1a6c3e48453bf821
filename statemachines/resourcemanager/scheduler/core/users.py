"""What one user has in a queue: applications, containers, reservations, masters and pending asks.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, add, amounts_of, resource_of
from statemachines.resourcemanager.scheduler.core.node import NodeRequirements
from statemachines.resourcemanager.scheduler.queue_info import QueueUserInfo

ByPartition = dict[str, dict[str, int]]
"""Amounts by partition and resource type."""


@dataclass(slots=True)
class User:
    """One user of a queue with applications, while it has any there."""

    applications: int = 0
    active_applications: int = 0  # those that may have their master; the others are pending
    asks: int = 0  # pending ones of active applications; with any, the user is active
    containers: int = 0  # with the reserved ones
    used: ByPartition = field(default_factory=dict)  # with what is reserved
    masters: ByPartition = field(default_factory=dict)  # of active applications
    reserved_containers: int = 0
    reserved: ByPartition = field(default_factory=dict)
    pending: dict[NodeRequirements, int] = field(default_factory=dict)  # count of asks, of pending applications too

    def charge(self, partition: str, amounts: Amounts, sign: int) -> None:
        """Add a container or reservation (`sign` 1) or remove one (-1)."""
        self.containers += sign
        used = self.used.get(partition)
        add(used if used is not None else self.used.setdefault(partition, {}), amounts, sign)

    def charge_master(self, partition: str, amounts: Amounts, sign: int) -> None:
        """An application became active (`sign` 1) or is no longer active (-1)."""
        self.active_applications += sign
        _add(self.masters, partition, amounts, sign)

    def charge_reservation(self, partition: str, amounts: Amounts, sign: int) -> None:
        self.reserved_containers += sign
        _add(self.reserved, partition, amounts, sign)

    def add_pending(self, requirements: NodeRequirements, count: int) -> None:
        pending = self.pending.get(requirements, 0) + count
        if pending:
            self.pending[requirements] = pending
        else:
            del self.pending[requirements]

    @property
    def pending_containers(self) -> int:
        return sum(self.pending.values())


def _add(to: ByPartition, partition: str, amounts: Amounts, sign: int) -> None:
    of_partition = to.get(partition)
    if of_partition is None:
        of_partition = to[partition] = {}
    add(of_partition, amounts, sign)


def user_info(name: str, user: User, limit: Resource, am_limit: Resource) -> QueueUserInfo:
    """`limit`, `am_limit`: the user's, for all its containers and for its masters."""
    return QueueUserInfo(
        user=name,
        used=resource_of(sum_of([user.used])),
        reserved=resource_of(sum_of([user.reserved])),
        pending=resource_of(pending_amounts([user])),
        am_used=resource_of(sum_of([user.masters])),
        user_limit=limit,
        am_limit=am_limit,
        active_applications=user.active_applications,
        pending_applications=user.applications - user.active_applications,
        allocated_containers=user.containers - user.reserved_containers,
        reserved_containers=user.reserved_containers,
        pending_containers=user.pending_containers,
        is_active=user.asks > 0,
    )


def pending_amounts(users: Iterable[User], partition: str | None = None) -> dict[str, int]:
    """The sum of the users' pending asks; `partition` None: in all partitions."""
    amounts: dict[str, int] = {}
    for user in users:
        for requirements, count in user.pending.items():
            if partition is None or requirements.partition == partition:
                add(amounts, amounts_of(requirements.resource), count)
    return amounts


def sum_of(by_partition: Iterable[ByPartition], partition: str | None = None) -> dict[str, int]:
    """The sum over these; `partition` None: in all partitions."""
    amounts: dict[str, int] = {}
    for one in by_partition:
        if partition is not None:
            add(amounts, one.get(partition, {}).items())
            continue
        for of_partition in one.values():
            add(amounts, of_partition.items())
    return amounts
