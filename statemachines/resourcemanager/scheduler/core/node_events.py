"""What a scheduler does when nodes come, report, change and go.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from statemachines.resourcemanager.events.records import ContainerRequest, NMContainerStatus
from statemachines.resourcemanager.events.rmcontainer import (
    RMContainerEvent,
    RMContainerEventType,
    RMContainerRecoverEvent,
)
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.scheduler import (
    NodeAddedSchedulerEvent,
    NodeLabelsUpdateSchedulerEvent,
    NodeResourceUpdateSchedulerEvent,
    SchedulerEvent,
)
from statemachines.resourcemanager.ids import application_of, attempt_of
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.machines.rmnode import RMNode, RMNodeState
from statemachines.resourcemanager.scheduler.core.application import SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.pending_asks import SchedulingOpportunity
from statemachines.resourcemanager.scheduler.core.reservations import ReservingBooks


class NodeEvents(ReservingBooks):
    """The books, and the events that are about nodes."""

    _heartbeat = 0  # heartbeats so far

    # -- coming and going ---------------------------------------------------------------------------------------------

    def _add_node(self, event: SchedulerEvent) -> None:
        rmnode = self._context.nodes.get(event.entity)
        if rmnode is None or self._nodes.get(event.entity) is not None:
            return
        node = SchedulerNode(event.entity, rmnode.spec, rmnode.capacity)
        self._capacity_changed(node.partition, node.capacity, 1)
        if isinstance(event, NodeAddedSchedulerEvent):
            for report in event.containers:
                self._recover_container(node, report)
        self._nodes.add(node)
        self._room_came(node)

    def _room_came(self, node: SchedulerNode) -> None:
        """The node has room that no container left."""
        if not self._on_heartbeat:
            self._freed.setdefault(node.node_id, None)

    def _remove_node(self, event: SchedulerEvent) -> None:
        node = self._nodes.get(event.entity)
        if node is None:
            return
        for container_id in list(node.containers):
            live = self._live(container_id)
            assert live is not None  # what is in a node's books is in an attempt's
            self._end(*live, RMContainerEventType.KILL, f"its node {node.node_id} was lost")
        self._unreserve(node, f"its node {node.node_id} was lost")
        self._nodes.remove(node)
        self._capacity_changed(node.partition, node.capacity, -1)

    def _recover_container(self, node: SchedulerNode, report: NMContainerStatus) -> None:
        """Take back what a node brings, if it is an attempt's; else the node is to stop it."""
        container_id, context = report.container, self._context
        attempt = self._owner(container_id)
        # One that has not ended here was given up a moment ago, and its end is on its way.
        if attempt is None or container_id in context.containers:
            if report.status is None:
                context.post(RMNodeEvent(RMNodeEventType.CLEANUP_CONTAINER, node.node_id, container_id))
            return
        request = ContainerRequest(
            report.resource, report.priority, kind=report.kind, node_label=report.node_label or None
        )
        container = RMContainer(
            context, container_id, attempt.app.id, attempt.id, node.node_id, request, report.gpu_devices
        )
        container.maker = attempt_of(container_id)
        context.containers[container_id] = container
        if container_id.startswith(attempt.prefix):
            number = int(container_id.removeprefix(attempt.prefix))
            attempt.next_number = max(attempt.next_number, number + 1)
        if report.status is None:
            node.recover(container_id, report.resource, report.gpu_devices)
            attempt.live[container_id] = self._containers[container_id] = container
            self._allocated(attempt, container, node)
        context.post(RMContainerRecoverEvent(container_id, report, container.payload()))

    def _owner(self, container_id: str) -> SchedulerApplicationAttempt | None:
        """The attempt to which a container that a node brings belongs now."""
        try:
            creator = attempt_of(container_id)
        except ValueError:
            return None
        app = self._apps.get(application_of(creator))
        attempt = app.attempt if app is not None else None
        if app is None or attempt is None or self._attempts.get(attempt.id) is not attempt:
            return None
        keeps = app.submission.keep_containers_across_attempts
        if attempt.id != creator and not keeps:
            return None
        return None if attempt.is_stopped and attempt.master == container_id else attempt

    # -- reports ------------------------------------------------------------------------------------------------------

    def _update_node(self, event: SchedulerEvent) -> None:
        rmnode = self._context.nodes.get(event.entity)
        if rmnode is None:
            return
        post, node = self._context.post, self._nodes.get(event.entity)
        for launched, finished in rmnode.pull_updates():
            for container_id in launched:
                if self._live(container_id) is None or node is None:
                    post(RMNodeEvent(RMNodeEventType.CLEANUP_CONTAINER, event.entity, container_id))
                elif container_id not in node.launched:  # else it came back since, which is not known here yet
                    node.launched.add(container_id)
                    post(RMContainerEvent(RMContainerEventType.LAUNCHED, container_id))
            for status in finished:
                live = self._live(status.container)
                if live is not None:
                    self._release(*live)
                    post(RMContainerEvent(RMContainerEventType.FINISHED, status.container, status))
        if node is not None:
            self._drain_or_not(node, rmnode)
            if self._on_heartbeat and (self._waiting or node.reserved is not None):
                self._heartbeat += 1
                self._serve_heartbeat(node, self._opportunity(), self._config.containers_per_heartbeat)

    def _opportunity(self) -> SchedulingOpportunity:
        nodes, rack = len(self._nodes), self._config.node_locality_delay
        if rack < 0:
            return SchedulingOpportunity(self._heartbeat, 0, 0)
        more = self._config.rack_locality_additional_delay
        return SchedulingOpportunity(self._heartbeat, min(rack, nodes), nodes if more < 0 else min(rack + more, nodes))

    def _drain_or_not(self, node: SchedulerNode, rmnode: RMNode) -> None:
        """A node that is to leave gets nothing new, until it is to stay."""
        is_draining = rmnode.state is RMNodeState.DECOMMISSIONING
        if is_draining and not node.is_draining:
            self._unreserve(node, f"its node {node.node_id} is being emptied")
            self._nodes.close(node)
            node.is_draining = True
        elif node.is_draining and not is_draining:
            node.is_draining = False
            self._nodes.open(node)
            self._room_came(node)

    # -- changes ------------------------------------------------------------------------------------------------------

    def _update_resource(self, event: NodeResourceUpdateSchedulerEvent) -> None:
        """The node has more or less than before; what it has given stays given."""
        node = self._nodes.get(event.entity)
        if node is None:
            return
        self._unreserve(node, f"its node {node.node_id} has got another capacity")
        self._capacity_changed(node.partition, node.capacity, -1)
        self._nodes.close(node)
        node.set_capacity(event.capacity)
        self._nodes.open(node)
        self._capacity_changed(node.partition, node.capacity, 1)
        rmnode = self._context.nodes.get(event.entity)
        if rmnode is not None:
            self._drain_or_not(node, rmnode)
        self._room_came(node)

    def _update_label(self, event: NodeLabelsUpdateSchedulerEvent) -> None:
        """The node is in another partition; its containers go on."""
        node = self._nodes.get(event.entity)
        if node is None or node.partition == event.partition:
            return
        self._unreserve(node, f"its node {node.node_id} is in another partition now")
        before = node.partition
        self._capacity_changed(before, node.capacity, -1)
        self._nodes.close(node)
        node.partition = event.partition
        self._nodes.open(node)
        self._capacity_changed(node.partition, node.capacity, 1)
        self._partition_changed(node, before)
        self._room_came(node)
