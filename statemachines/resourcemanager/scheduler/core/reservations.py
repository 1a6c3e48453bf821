"""Reservations: a node is held for an ask that it could take but has not enough room for now.

Without reservations a large ask may starve while small ones take each bit of room as it is freed. They are made on
heartbeats only: event-driven, a large ask that is first in order gets a node as soon as it has enough room.

A node has at most one reservation, and an allocator has no more reservations than asks. A reserved node takes no other
container. Each of its heartbeats checks whether it has enough room now, and whether the ask is still pending: the ask
may have got its container on another node.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.records import EXIT_ABORTED, ContainerStatus
from statemachines.resourcemanager.events.rmcontainer import (
    RMContainerEvent,
    RMContainerEventType,
    RMContainerReservedEvent,
)
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.scheduler.core.application import AppPlacementAllocator, SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.books import SchedulerBooks
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.policy import SchedulingPolicy


class Reservations:
    """Reserves nodes, and allocates the reserved containers."""

    # All fields are guarded by the scheduler's lock.
    def __init__(self, context: RMContext, books: SchedulerBooks, policy: SchedulingPolicy) -> None:
        self._context = context
        self._books = books
        self._policy = policy
        self._reserved: dict[SchedulerNode, AppPlacementAllocator] = {}  # nodes with a reserved container

    def reserve(self, node: SchedulerNode, allocator: AppPlacementAllocator) -> None:
        attempt = allocator.attempt
        container_id = attempt.next_container_id()
        container = self._books.make_container(attempt, container_id, node, allocator.first.request)
        node.reserved_container = container
        self._reserved[node] = allocator
        allocator.reservations += 1
        resource = container.request.resource
        self._policy.charge(attempt, node.partition, resource)
        self._context.post(RMContainerReservedEvent(container_id, resource, container.payload()))

    def allocate(self, node: SchedulerNode, container: RMContainer) -> bool:
        """Allocate the node's reserved container if the node has room; cancel it if its ask is no longer pending."""
        allocator = self._reserved[node]
        is_pending = allocator.attempt.pending.get((allocator.priority, allocator.requirements)) is allocator
        if not is_pending or allocator.reservations > len(allocator):
            self.cancel(node, "its ask got a container on another node")
            return False
        if not allocator.requirements.fits(node):
            return False
        ask = allocator.choose(node)
        assert ask is not None  # without a locality delay there always is one
        self._remove(node, container)
        self._books.satisfy(allocator, ask, node, container)
        return True

    def cancel(self, node: SchedulerNode, why: str) -> None:
        """Cancel the node's reservation, if it has one."""
        container = node.reserved_container
        if container is not None:
            self._remove(node, container)
            status = ContainerStatus(container.entity, EXIT_ABORTED, why)
            self._context.post(RMContainerEvent(RMContainerEventType.KILL, container.entity, status))

    def cancel_all(self, attempt: SchedulerApplicationAttempt) -> None:
        """Cancel the attempt's reservations: its asks are about to be withdrawn."""
        for node in [node for node, allocator in self._reserved.items() if allocator.attempt is attempt]:
            self.cancel(node, "its ask is no longer pending")

    def _remove(self, node: SchedulerNode, container: RMContainer) -> None:
        allocator = self._reserved.pop(node)
        node.reserved_container = None
        allocator.reservations -= 1
        self._policy.discharge(allocator.attempt, node.partition, container.request.resource)
