"""Reservations: a node that is kept for an ask that it could take, and has not room enough for now.

Without them an ask for much may wait for ever, while small ones take each bit of room as it comes. On heartbeats only:
event-driven, an ask for much that comes first gets a node as soon as it has room enough.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from statemachines.resourcemanager.events.exit_status import EXIT_ABORTED
from statemachines.resourcemanager.events.records import ContainerStatus
from statemachines.resourcemanager.events.rmcontainer import (
    RMContainerEvent,
    RMContainerEventType,
    RMContainerReservedEvent,
)
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.scheduler.core.application import SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.books import SchedulerBooks
from statemachines.resourcemanager.scheduler.core.node import Reservation, SchedulerNode
from statemachines.resourcemanager.scheduler.core.pending_asks import (
    AppPlacementAllocator,
    PendingAsk,
    SchedulingOpportunity,
)


class ReservingBooks(SchedulerBooks):
    """The books, with at most one reservation per node, and not more for a group than it has asks.

    A node that is reserved gets nothing else. Each of its heartbeats looks whether there is room enough now, and
    whether the ask still waits: it may have been served elsewhere, or withdrawn.
    """

    def _serve_heartbeat(self, node: SchedulerNode, opportunity: SchedulingOpportunity, most: int) -> None:
        """Give the node's room to who has reserved it, or to those who wait; `most` containers (-1: no limit)."""
        if node.reserved is not None:
            if self._fulfil(node, node.reserved):
                most -= most > 0
            elif node.reserved is not None:
                return
        if self._offer(node, opportunity, most) == most or not self._waiting or node.is_draining:
            return
        group = self._choose_to_reserve(node, opportunity)
        if group is not None:
            self._reserve(group, node)

    def _reserve(self, group: AppPlacementAllocator, node: SchedulerNode) -> None:
        context, attempt = self._context, group.attempt
        container_id = attempt.next_container_id()
        container = RMContainer(
            context, container_id, attempt.app.id, attempt.id, node.node_id, group.first.request, gpu_devices=()
        )
        context.containers[container_id] = container
        node.reserved = attempt.reserved[node.node_id] = Reservation(group, container)
        group.reservations += 1
        self._reserved(attempt, container, node)
        context.post(
            RMContainerReservedEvent(
                container_id, node.node_id, group.requirements.resource, payload=container.payload()
            )
        )

    def _fulfil(self, node: SchedulerNode, reservation: Reservation) -> bool:
        """Give the reserved container its room, if there is enough and it is still wanted."""
        group, container = reservation
        attempt = group.attempt
        is_waiting = attempt.groups.get((group.priority, group.requirements)) is group
        if not is_waiting or group.reservations > len(group):
            self._unreserve(node, "who it was reserved for has got what it needs elsewhere")
            return False
        if not group.requirements.fits(node):
            return False
        ask = group.choose(node)
        assert ask is not None  # without opportunity somebody always takes it
        self._drop_reservation(node, reservation)
        self._backlog_of(attempt).take(group, ask, node)
        self._note_waiting(attempt, -1)
        self._place(attempt, ask.request, node, container)
        return True

    def _unreserve(self, node: SchedulerNode, why: str) -> None:
        """The node is not kept any more, if it is."""
        reservation = node.reserved
        if reservation is not None:
            self._drop_reservation(node, reservation)
            container_id = reservation.container.entity
            status = ContainerStatus(container_id, EXIT_ABORTED, why)
            self._context.post(RMContainerEvent(RMContainerEventType.KILL, container_id, status))

    def _drop_reservation(self, node: SchedulerNode, reservation: Reservation) -> None:
        group, container = reservation
        node.reserved = None
        del group.attempt.reserved[node.node_id]
        group.reservations -= 1
        self._unreserved(group.attempt, container, node)

    def _withdraw(self, attempt: SchedulerApplicationAttempt) -> list[PendingAsk]:
        for node_id in list(attempt.reserved):
            node = self._nodes.get(node_id)
            assert node is not None  # a reservation goes with its node
            self._unreserve(node, "who it was reserved for does not wait any more")
        return super()._withdraw(attempt)
