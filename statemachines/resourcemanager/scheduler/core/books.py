"""What every scheduler does with containers: give them room, take it back, and tell who has to know.

The two ways of scheduling. Event-driven: an ask is placed when it is made, or when a node gets room; so no ask waits
that some node could take and its limits allow. On heartbeats: an ask waits for the heartbeat of a node with room, and a
while longer for one that it prefers.

Threading: all of this under the scheduler's lock. Containers belong to the handler thread: here they are made, and
moved by events only.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.exit_status import EXIT_ABORTED
from statemachines.resourcemanager.events.records import ContainerRequest, ContainerStatus
from statemachines.resourcemanager.events.rmcontainer import (
    RMContainerEvent,
    RMContainerEventType,
    RMContainerResourceEvent,
    RMContainerStartEvent,
)
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.scheduler.core.application import SchedulerApplication, SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.hooks import SchedulerHooks
from statemachines.resourcemanager.scheduler.core.node import Free, SchedulerNode
from statemachines.resourcemanager.scheduler.core.node_tracker import ClusterNodeTracker
from statemachines.resourcemanager.scheduler.core.pending_asks import (
    AppPlacementAllocator,
    PendingAsk,
    PendingAsks,
    SchedulingOpportunity,
)
from statemachines.resourcemanager.scheduler.core.requirements import NodeRequirements, RequirementsTable


class SchedulerBooks(SchedulerHooks, ABC):
    """The books of nodes, attempts and containers."""

    def __init__(self, context: RMContext, *, on_heartbeat: bool = False) -> None:
        self._context = context
        self._config = context.config.scheduler
        self._on_heartbeat = on_heartbeat
        self._lock = threading.RLock()  # events and direct calls may come on different threads; guards all of this
        self._nodes = ClusterNodeTracker(tracks_room=not on_heartbeat)
        self._apps: dict[str, SchedulerApplication] = {}  # that have not ended
        self._attempts: dict[str, SchedulerApplicationAttempt] = {}  # not ended, or stopped: their containers go on
        self._containers: dict[str, RMContainer] = {}  # that have room, whatever their machines have been told
        self._requirements = RequirementsTable()
        self._arrivals = itertools.count()
        self._waiting = 0  # asks
        # Nodes that got room in what is being handled, and what was free before (None: it does not matter).
        self._freed: dict[str, Free | None] = {}

    # -- what a policy must say -----------------------------------------------------------------------------------

    @abstractmethod
    def _backlog_of(self, attempt: SchedulerApplicationAttempt) -> PendingAsks:
        """Where the attempt's asks wait."""

    @abstractmethod
    def _rank_of(self, attempt: SchedulerApplicationAttempt) -> tuple[Any, ...]:
        """Its place among the attempts of its backlog: the least comes first."""

    @abstractmethod
    def _choose(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity | None
    ) -> tuple[AppPlacementAllocator, PendingAsk] | None:
        """Who gets room on this node next; it must fit there. None: nobody who may, and wants to."""

    # -- asks ---------------------------------------------------------------------------------------------------------

    def _requirements_of(self, attempt: SchedulerApplicationAttempt, request: ContainerRequest) -> NodeRequirements:
        label = request.node_label
        return self._requirements.of(request, attempt.default_label if label is None else label, attempt.blacklist)

    def _ask(self, attempt: SchedulerApplicationAttempt, request: ContainerRequest, arrival: int | None = None) -> None:
        """Place it now, if that is the way, it may be and there is room; else it waits."""
        requirements, rack = self._requirements_of(attempt, request), request.rack
        if request.host is not None:
            rack = self._nodes.rack_of(request.host) or rack
        if not self._on_heartbeat and self._may_place(attempt, requirements):
            node = self._nodes.find(requirements, request.host, rack)
            if node is not None:
                self._place(attempt, request, node)
                return
        ask = PendingAsk(next(self._arrivals) if arrival is None else arrival, request, rack)
        self._backlog_of(attempt).add(attempt, requirements, ask)
        self._note_waiting(attempt, 1)

    def _ask_for(self, attempt: SchedulerApplicationAttempt, requests: Iterable[ContainerRequest]) -> None:
        """The requests of one call."""
        for request in requests:
            self._ask(attempt, request)

    def _ask_again(self, attempt: SchedulerApplicationAttempt) -> None:
        """All that waits is asked for anew: its by_requirements, its backlog or its limits have changed."""
        for ask in self._withdraw(attempt):
            self._ask(attempt, ask.request, ask.arrival)

    def _withdraw(self, attempt: SchedulerApplicationAttempt) -> list[PendingAsk]:
        """Nothing of the attempt waits any longer; returns what did."""
        if not attempt.waiting:
            return []
        asks = self._backlog_of(attempt).remove_all(attempt)
        self._note_waiting(attempt, -len(asks))
        return asks

    def _note_waiting(self, attempt: SchedulerApplicationAttempt, count: int) -> None:
        attempt.waiting += count
        self._waiting += count
        self._waiting_changed(attempt, count)

    # -- giving room --------------------------------------------------------------------------------------------------

    def _offer(self, node: SchedulerNode, opportunity: SchedulingOpportunity | None = None, most: int = -1) -> int:
        """Give the node's room to those who wait, `most` containers at most (-1: no limit); returns how many."""
        count = 0
        while self._waiting and count != most and not node.is_draining:
            chosen = self._choose(node, opportunity)
            if chosen is None:
                break
            group, ask = chosen
            attempt = group.attempt
            self._backlog_of(attempt).take(group, ask, node)
            self._note_waiting(attempt, -1)
            self._place(attempt, ask.request, node)
            count += 1
        return count

    def _place(
        self,
        attempt: SchedulerApplicationAttempt,
        request: ContainerRequest,
        node: SchedulerNode,
        reserved: RMContainer | None = None,
    ) -> None:
        """Give the request its room; `reserved`: the container that has been made for it."""
        container_id = attempt.next_container_id() if reserved is None else reserved.entity
        devices = node.take(container_id, request.resource)
        context = self._context
        if reserved is None:
            container = RMContainer(context, container_id, attempt.app.id, attempt.id, node.node_id, request, devices)
            context.containers[container_id] = container
        else:
            container = reserved
            container.request, container.gpu_devices = request, devices
        attempt.live[container_id] = self._containers[container_id] = container
        attempt.new.append(container)
        if attempt.expects_master:
            attempt.master = container_id
        self._allocated(attempt, container, node)
        context.post(RMContainerStartEvent(container))

    # -- taking it back -----------------------------------------------------------------------------------------------

    def _live(self, container_id: str) -> tuple[SchedulerApplicationAttempt, RMContainer] | None:
        """The container and who has it, if it counts in the books."""
        container = self._containers.get(container_id)
        return (self._attempts[container.attempt], container) if container is not None else None

    def _end(
        self,
        attempt: SchedulerApplicationAttempt,
        container: RMContainer,
        type: RMContainerEventType,
        why: str,
        exit_status: int = EXIT_ABORTED,
    ) -> None:
        """Out of the books, and tell it so."""
        self._release(attempt, container)
        self._context.post(
            RMContainerEvent(type, container.entity, ContainerStatus(container.entity, exit_status, why))
        )

    def _release(self, attempt: SchedulerApplicationAttempt, container: RMContainer) -> None:
        """Take the container out of the books. What is posted after this about its room comes after its end."""
        container_id = container.entity
        del attempt.live[container_id], self._containers[container_id]
        if attempt.new and container in attempt.new:
            attempt.new.remove(container)
        node = self._nodes.get(container.node)
        assert node is not None  # a node's containers leave the books before it does
        self._note_freed(node)
        node.give_back(container_id)
        self._released(attempt, container, node)

    def _note_freed(self, node: SchedulerNode) -> None:
        """The node is about to get room."""
        if not self._on_heartbeat and node.node_id not in self._freed:
            self._freed[node.node_id] = node.free() if self._waiting else None

    def _serve_freed(self) -> None:
        """The end of whatever is handled: offer the nodes that got room, and have the search know what is left."""
        freed, self._freed = self._freed, {}
        for node_id, before in freed.items():
            node = self._nodes.get(node_id)
            if node is None:
                continue
            self._offer(node)
            # A container that takes the place of one like it leaves nothing to look for.
            if before is None or node.has_more_than(before):
                self._nodes.grown(node)

    def _resize(
        self, attempt: SchedulerApplicationAttempt, container: RMContainer, node: SchedulerNode, resource: Resource
    ) -> bool:
        """Change a container's size, and tell it and its node; False if the node has no room, or is to leave."""
        if node.is_draining:
            return False
        self._note_freed(node)
        if not node.resize(container.entity, resource):
            return False
        before = container.request.resource
        container.request = container.request._replace(resource=resource)
        self._resized(attempt, container, before, node)
        post, container_id = self._context.post, container.entity
        post(RMContainerResourceEvent(RMContainerEventType.ACQUIRE_UPDATED_CONTAINER, container_id, resource))
        post(RMNodeEvent(RMNodeEventType.UPDATE_CONTAINER, node.node_id, (container_id, resource)))
        return True
