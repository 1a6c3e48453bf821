"""The scheduler's books: applications, their attempts, their pending asks, their containers and reservations.

`request` allocates a container on a node that meets the requirements. If no node does, or the policy serves asks in
its own order, the ask becomes pending; once the policy has assigned it to a node, `satisfy` allocates the container.

A reservation holds a node for an ask that it could take but has not enough room for now. Without reservations a large
ask may starve while small ones take each bit of room as it is freed. They are made on heartbeats only: event-driven, a
large ask that is first in order gets a node as soon as it has enough room. A node has at most one reservation, and an
allocator has no more reservations than asks. A reserved node takes no other container. Each of its heartbeats checks
whether it has enough room now. An ask with a reservation goes on looking: if another node has room first, it gets its
container there, and the reservation is cancelled.

Threading: under the scheduler's lock. Containers' machines belong to the dispatcher's handler thread: they are created
here, and only events change their state.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from statemachines.resourcemanager.events.records import EXIT_ABORTED, ContainerRequest, ContainerStatus
from statemachines.resourcemanager.events.rmcontainer import (
    RMContainerEvent,
    RMContainerEventType,
    RMContainerReservedEvent,
    RMContainerResourceEvent,
    RMContainerStartEvent,
)
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.machines.rmapp import AppContext, RMApp
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.scheduler.core.application import (
    AppPlacementAllocator,
    PendingAsk,
    SchedulerApplication,
    SchedulerApplicationAttempt,
)
from statemachines.resourcemanager.scheduler.core.node import NodeRequirements, SchedulerNode
from statemachines.resourcemanager.scheduler.core.node_tracker import ClusterNodeTracker
from statemachines.resourcemanager.scheduler.core.policy import SchedulingPolicy

_MOST_REQUIREMENTS = 4096


class SchedulerContext(AppContext, Protocol):
    """What the scheduler needs of its resource manager. Any thread may call `post`."""

    cluster_timestamp: int
    epoch: int
    steady_ms: Callable[[], int]

    @property
    def apps(self) -> Mapping[str, RMApp]: ...


class SchedulerBooks:
    """Queues asks; reserves nodes; allocates, resizes and releases containers."""

    # All fields are guarded by the scheduler's lock.
    def __init__(self, context: SchedulerContext, nodes: ClusterNodeTracker, policy: SchedulingPolicy) -> None:
        self._context = context
        self._nodes = nodes
        self._policy = policy
        self._requirements: dict[Any, NodeRequirements] = {}  # by the arguments that made them
        self._arrivals = itertools.count()
        self.apps: dict[str, SchedulerApplication] = {}  # not ended
        self.attempts: dict[str, SchedulerApplicationAttempt] = {}  # not ended, or stopped with containers that run on
        self.containers: dict[str, RMContainer] = {}  # with room on a node, whatever the state of their machines
        self.pending_count: int = 0  # over all attempts
        self._reserved: dict[SchedulerNode, AppPlacementAllocator] = {}  # nodes with a reserved container

    # -- asks ----------------------------------------------------------------------------------------------------------

    def requirements_of(self, attempt: SchedulerApplicationAttempt, request: ContainerRequest) -> NodeRequirements:
        """The one object for all asks that require the same."""
        host = rack = None
        if not request.relax_locality:
            host = request.host
            rack = request.rack if host is None else None
        label = attempt.default_label if request.node_label is None else request.node_label
        key = (request.resource, request.gpu_models, label, host, rack, attempt.blacklist)
        requirements = self._requirements.get(key)
        if requirements is None:
            if len(self._requirements) >= _MOST_REQUIREMENTS:
                # Pending asks keep their objects; new asks with equal requirements get another one.
                self._requirements.clear()
            requirements = self._requirements[key] = NodeRequirements(*key)
        return requirements

    def request(self, attempt: SchedulerApplicationAttempt, requests: Iterable[ContainerRequest]) -> None:
        """Allocate a container for each request, or make it pending."""
        requests, on_arrival = self._policy.arrange(attempt, requests)
        last: tuple[Any, ...] | None = None
        for request in requests:
            # Most asks of a call require the same, and comparing them costs less than finding their requirements.
            resource, _, _, gpu_models, _, _, _, relax_locality, node_label = request
            asked = (resource, gpu_models, node_label)
            if asked != last or not relax_locality:
                requirements = self.requirements_of(attempt, request)
                last = asked if relax_locality else None
            self._request(attempt, request, requirements, on_arrival)

    def request_again(self, attempt: SchedulerApplicationAttempt, asks: Iterable[PendingAsk]) -> None:
        """Allocate a container for each ask that was withdrawn, or whose container was taken back, or make it pending.

        Its requirements or queue may have changed since.
        """
        for ask in asks:
            requirements = self.requirements_of(attempt, ask.request)
            self._request(attempt, ask.request, requirements, self._policy.allocates_on_arrival, ask)

    def _request(
        self,
        attempt: SchedulerApplicationAttempt,
        request: ContainerRequest,
        requirements: NodeRequirements,
        on_arrival: bool,
        withdrawn: PendingAsk | None = None,
    ) -> None:
        rack = request.rack
        if request.host is not None:
            rack = self._nodes.rack_of(request.host) or rack
        if on_arrival and self._policy.may_allocate(attempt, requirements):
            node = self._nodes.find(requirements, request.host, rack)
            if node is not None:
                self.grant(attempt, request, node)
                return
        if withdrawn is None:
            ask = PendingAsk(next(self._arrivals), request, rack, self._context.now_ms())
        else:
            ask = withdrawn._replace(rack=rack)
        key = request.priority, requirements
        allocator = attempt.pending.get(key)
        if allocator is not None:
            allocator.add(ask)
        else:
            allocator = attempt.pending[key] = AppPlacementAllocator(attempt, *key)
            allocator.add(ask)
            self._policy.pending.add(allocator)
        self._count_pending(attempt, requirements, 1)

    def withdraw(self, attempt: SchedulerApplicationAttempt) -> list[PendingAsk]:
        """Remove the attempt's pending asks; returns them in order of arrival."""
        if not attempt.pending:
            return []
        asks = sorted(ask for allocator in attempt.pending.values() for ask in allocator)
        for allocator in attempt.pending.values():
            self._policy.pending.remove(allocator)
        withdrawn = [(allocator.requirements, len(allocator)) for allocator in attempt.pending.values()]
        attempt.pending.clear()
        for requirements, count in withdrawn:
            self._count_pending(attempt, requirements, -count)
        return asks

    def rank_again(self, attempt: SchedulerApplicationAttempt) -> None:
        """Sort the attempt's asks again if the rank of its application has changed."""
        rank, pending = attempt.app.rank, self._policy.pending
        if rank == attempt.rank:
            return
        for allocator in attempt.pending.values():
            pending.remove(allocator)
        attempt.rank = rank
        for allocator in attempt.pending.values():
            allocator.key = (*rank, allocator.priority)
            pending.add(allocator)

    def _count_pending(self, attempt: SchedulerApplicationAttempt, requirements: NodeRequirements, delta: int) -> None:
        attempt.pending_count += delta
        self.pending_count += delta
        self._policy.pending_changed(attempt, requirements, delta)

    # -- containers ----------------------------------------------------------------------------------------------------

    def satisfy(
        self,
        allocator: AppPlacementAllocator,
        ask: PendingAsk,
        node: SchedulerNode,
        reserved: RMContainer | None = None,
    ) -> None:
        """Allocate a container for a pending ask; `reserved`: the container created with the node's reservation."""
        attempt = allocator.attempt
        if allocator.reservations and reserved is None:
            self._unreserve(allocator, node)
        allocator.place(ask, node)
        if not allocator:
            del attempt.pending[allocator.priority, allocator.requirements]
            self._policy.pending.remove(allocator)
        self._count_pending(attempt, allocator.requirements, -1)
        self.grant(attempt, ask.request, node, reserved).asked_ms = ask.since_ms

    def grant(
        self,
        attempt: SchedulerApplicationAttempt,
        request: ContainerRequest,
        node: SchedulerNode,
        reserved: RMContainer | None = None,
    ) -> RMContainer:
        """Allocate a container on a node that has room for it."""
        container_id = attempt.next_container_id() if reserved is None else reserved.entity
        devices = node.take(container_id, request.resource)
        if reserved is None:
            container = self.make_container(attempt, container_id, node, request, devices)
        else:
            container = reserved
            container.request, container.gpu_devices = request, devices
        attempt.live[container_id] = self.containers[container_id] = container
        attempt.new.append(container)
        if attempt.master is None and not attempt.app.submission.unmanaged_am:
            attempt.master = container_id
        self._policy.charge(attempt, node.partition, request.resource)
        self._context.post(RMContainerStartEvent(container))
        return container

    def make_container(
        self,
        attempt: SchedulerApplicationAttempt,
        container_id: str,
        node: SchedulerNode,
        request: ContainerRequest,
        devices: tuple[int, ...] = (),
    ) -> RMContainer:
        context = self._context
        container = RMContainer(context, container_id, attempt.app.id, attempt.id, node.node_id, request, devices)
        context.containers[container_id] = container
        return container

    def recover(self, attempt: SchedulerApplicationAttempt, container: RMContainer, node: SchedulerNode) -> None:
        """Add a container that the attempt already runs on a re-registered node."""
        resource = container.request.resource
        node.recover(container.entity, resource, container.gpu_devices)
        attempt.live[container.entity] = self.containers[container.entity] = container
        self._policy.charge(attempt, node.partition, resource)

    def reserved_for(self, allocator: AppPlacementAllocator) -> SchedulerNode | None:
        """A node that is reserved for these asks."""
        for container in allocator.attempt.reservations.values():
            node = self._nodes.get(container.node)
            if node is not None and self._reserved.get(node) is allocator:
                return node
        return None

    def live(self, container_id: str) -> tuple[SchedulerApplicationAttempt, RMContainer] | None:
        """The container and its attempt, if the container has room on a node."""
        container = self.containers.get(container_id)
        return (self.attempts[container.attempt], container) if container is not None else None

    def node_of(self, container: RMContainer) -> SchedulerNode:
        """The node of a live or reserved container."""
        node = self._nodes.get(container.node)
        assert node is not None  # a node's containers leave the books before the node
        return node

    def end(
        self,
        attempt: SchedulerApplicationAttempt,
        container: RMContainer,
        type: RMContainerEventType,
        why: str,
        exit_status: int = EXIT_ABORTED,
    ) -> None:
        """Release the container, and post to its machine why."""
        self.release(attempt, container)
        status = ContainerStatus(container.entity, exit_status, why)
        self._context.post(RMContainerEvent(type, container.entity, status))

    def take_back(
        self,
        attempt: SchedulerApplicationAttempt,
        container: RMContainer,
        why: str,
        exit_status: int = EXIT_ABORTED,
    ) -> PendingAsk | None:
        """Kill the container of an attempt that goes on, which its master did not want to end.

        Returns the ask to request again if the master has not pulled the container: it still waits for one. The attempt
        itself waits for the master's, and fails without it.
        """
        is_unknown = container in attempt.new and container.entity != attempt.master
        self.end(attempt, container, RMContainerEventType.KILL, why, exit_status)
        if not is_unknown:
            return None
        return PendingAsk(next(self._arrivals), container.request, container.request.rack, container.asked_ms)

    def release(self, attempt: SchedulerApplicationAttempt, container: RMContainer) -> None:
        """Take the container's room back. The caller posts its end before anyone else is given the room."""
        container_id = container.entity
        del attempt.live[container_id], self.containers[container_id]
        if attempt.new and container in attempt.new:
            attempt.new.remove(container)
        node = self._nodes.get(container.node)
        assert node is not None  # as in `node_of`, without the call
        self._nodes.note_freed(node, is_compared=self.pending_count > 0)
        node.give_back(container_id)
        resource = container.request.resource
        self._policy.discharge(attempt, node.partition, resource)
        if node.is_draining:  # its partition has only what its containers have
            self._nodes.version += 1
            self._policy.capacity_changed(node.partition, resource, -1)

    def resize(self, attempt: SchedulerApplicationAttempt, container: RMContainer, resource: Resource) -> bool:
        """Resize a container here, in its machine and on its node; False: no room, or the node is draining."""
        node = self.node_of(container)
        if node.is_draining:
            return False
        self._nodes.note_freed(node, is_compared=self.pending_count > 0)
        if not node.resize(container.entity, resource):
            return False
        policy, before = self._policy, container.request.resource
        container.request = container.request._replace(resource=resource)
        policy.discharge(attempt, node.partition, before)
        policy.charge(attempt, node.partition, resource)
        post, container_id = self._context.post, container.entity
        post(RMContainerResourceEvent(RMContainerEventType.ACQUIRE_UPDATED_CONTAINER, container_id, resource))
        post(RMNodeEvent(RMNodeEventType.UPDATE_CONTAINER, node.node_id, (container_id, resource)))
        return True

    def expire(self, container_id: str) -> None:
        """The container was not launched, or its growth not confirmed, in time: take it, or what it grew by, back."""
        live = self.live(container_id)
        if live is None:
            return
        attempt, container = live
        if container_id not in self.node_of(container).launched:
            self.end(attempt, container, RMContainerEventType.EXPIRE, "it was not started in time")
            return
        size = container.request.resource.smaller_of(container.last_confirmed)
        if size != container.request.resource:
            self.resize(attempt, container, size)

    # -- reservations --------------------------------------------------------------------------------------------------

    def reserved(self) -> list[tuple[SchedulerApplicationAttempt, SchedulerNode]]:
        """The reservations: for which attempt, and the node."""
        return [(allocator.attempt, node) for node, allocator in self._reserved.items()]

    def reserve(self, node: SchedulerNode, allocator: AppPlacementAllocator) -> None:
        attempt = allocator.attempt
        container_id = attempt.next_container_id()
        container = self.make_container(attempt, container_id, node, allocator.first.request)
        node.reserved_container = container
        self._reserved[node] = allocator
        allocator.reservations += 1
        attempt.reservations[container_id] = container
        resource = container.request.resource
        self._policy.charge(attempt, node.partition, resource)
        self._policy.reservation_changed(allocator, node.partition, resource, 1)
        self._context.post(RMContainerReservedEvent(container_id, resource, container.payload()))

    def grant_reserved(self, node: SchedulerNode, container: RMContainer) -> bool:
        """Allocate the node's reserved container if the node has room."""
        allocator = self._reserved[node]
        if not allocator.requirements.fits(node):
            return False
        ask = allocator.choose(node)
        assert ask is not None  # without a locality delay there always is one
        self._remove_reservation(node, container)
        self.satisfy(allocator, ask, node, container)
        return True

    def _unreserve(self, allocator: AppPlacementAllocator, node: SchedulerNode) -> None:
        """One of the asks gets a container on `node`: cancel a reservation that has no ask left, or is in its way."""
        if allocator.reservations < len(allocator) and not self._policy.must_unreserve(allocator):
            return
        reserved = self.reserved_for(allocator)
        assert reserved is not None  # the allocator counts its reservations
        self.cancel_reservation(reserved, f"its ask gets a container on node {node.node_id}, which has room")

    def cancel_reservation(self, node: SchedulerNode, why: str) -> None:
        """Cancel the node's reservation, if it has one."""
        container = node.reserved_container
        if container is not None:
            self._remove_reservation(node, container)
            status = ContainerStatus(container.entity, EXIT_ABORTED, why)
            self._context.post(RMContainerEvent(RMContainerEventType.KILL, container.entity, status))

    def cancel_reservations(self, attempt: SchedulerApplicationAttempt) -> None:
        """Cancel the attempt's reservations: its asks are about to be withdrawn."""
        for node in [node for node, allocator in self._reserved.items() if allocator.attempt is attempt]:
            self.cancel_reservation(node, "its ask is no longer pending")

    def _remove_reservation(self, node: SchedulerNode, container: RMContainer) -> None:
        allocator = self._reserved.pop(node)
        node.reserved_container = None
        allocator.reservations -= 1
        attempt, resource = allocator.attempt, container.request.resource
        del attempt.reservations[container.entity]
        self._policy.reservation_changed(allocator, node.partition, resource, -1)
        self._policy.discharge(attempt, node.partition, resource)
