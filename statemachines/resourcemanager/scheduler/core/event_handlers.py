"""How the scheduler handles its events: nodes, applications and attempts that are added, report, change or are removed.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from statemachines.resourcemanager.events.records import ContainerRequest, NMContainerStatus
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent, RMAppAttemptEventType
from statemachines.resourcemanager.events.rmcontainer import (
    RMContainerEvent,
    RMContainerEventType,
    RMContainerRecoverEvent,
)
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.scheduler import (
    AppAddedSchedulerEvent,
    AppAttemptAddedSchedulerEvent,
    AppAttemptRemovedSchedulerEvent,
    NodeAddedSchedulerEvent,
    NodeLabelsUpdateSchedulerEvent,
    NodeResourceUpdateSchedulerEvent,
    SchedulerEvent,
)
from statemachines.resourcemanager.records.ids import application_of, attempt_of
from statemachines.resourcemanager.scheduler.core.application import (
    PendingAsk,
    SchedulerApplicationAttempt,
    SchedulingOpportunity,
)
from statemachines.resourcemanager.scheduler.core.books import SchedulerBooks, SchedulerContext
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.node_tracker import ClusterNodeTracker
from statemachines.resourcemanager.scheduler.core.policy import SchedulingPolicy
from statemachines.resourcemanager.scheduler.core.preemption import ContainerPreemption

# Bound once: to look a member up in its class takes as long as a call.
_LAUNCHED: Final = RMContainerEventType.LAUNCHED
_FINISHED: Final = RMContainerEventType.FINISHED


class EventHandlers:
    # All fields are guarded by the scheduler's lock.
    def __init__(
        self,
        context: SchedulerContext,
        nodes: ClusterNodeTracker,
        books: SchedulerBooks,
        policy: SchedulingPolicy,
        *,
        on_heartbeat: bool,
    ) -> None:
        self._context = context
        self._config = context.config.scheduler
        self._nodes = nodes
        self._books = books
        self._policy = policy
        self._on_heartbeat = on_heartbeat
        self.preemption: ContainerPreemption = ContainerPreemption(
            self._config.preemption, context.steady_ms, books, policy
        )
        self._heartbeats = 0  # so far
        self._applications = 0  # so far; numbers them
        self.by_type: dict[str, Callable[[Any], None]] = {
            "NODE_ADDED": self._add_node,
            "NODE_REMOVED": self._remove_node,
            "NODE_UPDATE": self._update_node,
            "NODE_RESOURCE_UPDATE": self._update_resource,
            "NODE_LABELS_UPDATE": self._update_label,
            "APP_ADDED": self._add_app,
            "APP_REMOVED": self._remove_app,
            "APP_ATTEMPT_ADDED": self._add_attempt,
            "APP_ATTEMPT_REMOVED": self._remove_attempt,
            "CONTAINER_EXPIRED": lambda event: books.expire(event.entity),
            "EDIT_SCHEDULE": lambda event: self.preemption.run_round(),
        }
        """By the name of the event's type."""

    # -- nodes added and removed ---------------------------------------------------------------------------------------

    def _add_node(self, event: NodeAddedSchedulerEvent) -> None:
        rmnode = self._context.nodes.get(event.entity)
        if rmnode is None or self._nodes.get(event.entity) is not None:
            return
        node = SchedulerNode(event.entity, rmnode.spec, rmnode.capacity)
        self._policy.capacity_changed(node.partition, node.capacity, 1)
        for report in event.containers:
            self._recover_container(node, report)
        self._nodes.add(node)
        self._nodes.note_freed(node)

    def _remove_node(self, event: SchedulerEvent) -> None:
        node = self._nodes.get(event.entity)
        if node is None:
            return
        books, why = self._books, f"its node {node.node_id} was lost"
        asks: list[tuple[SchedulerApplicationAttempt, PendingAsk]] = []
        for container_id in list(node.containers):
            live = books.live(container_id)
            assert live is not None  # every container on a node belongs to an attempt
            ask = books.take_back(*live, why)
            if ask is not None:
                asks.append((live[0], ask))
        books.cancel_reservation(node, why)
        self._nodes.remove(node)
        self._policy.capacity_changed(node.partition, node.total, -1)
        for attempt, ask in asks:  # now that none can get its container here
            books.request_again(attempt, [ask])

    def _recover_container(self, node: SchedulerNode, report: NMContainerStatus) -> None:
        """Recover a container that a node reports when it registers; without an owner, the node is to stop it."""
        container_id, context = report.container, self._context
        attempt = self._owner(container_id)
        # A container still in the context was released a moment ago, and its end is posted already.
        if attempt is None or container_id in context.containers:
            if report.status is None:
                context.post(RMNodeEvent(RMNodeEventType.CLEANUP_CONTAINER, node.node_id, container_id))
            return
        request = ContainerRequest(
            report.resource, report.priority, kind=report.kind, node_label=report.node_label or None
        )
        container = self._books.make_container(attempt, container_id, node, request, report.gpu_devices)
        container.maker = attempt_of(container_id)
        if container_id.startswith(attempt.prefix):
            number = int(container_id.removeprefix(attempt.prefix))
            attempt.next_number = max(attempt.next_number, number + 1)
        if report.status is None:
            self._books.recover(attempt, container, node)
        end = report.status.payload() if report.status is not None else None
        context.post(RMContainerRecoverEvent(container_id, report, {**container.payload(), **(end or {})}))

    def _owner(self, container_id: str) -> SchedulerApplicationAttempt | None:
        """The attempt that owns a reported container now."""
        try:
            creator = attempt_of(container_id)
        except ValueError:
            return None
        app = self._books.apps.get(application_of(creator))
        attempt = app.attempt if app is not None else None
        if app is None or attempt is None or self._books.attempts.get(attempt.id) is not attempt:
            return None
        keeps = app.submission.keep_containers_across_attempts
        if attempt.id != creator and not keeps:
            return None
        return None if attempt.is_stopped and attempt.master == container_id else attempt

    # -- reports of nodes ----------------------------------------------------------------------------------------------

    def _update_node(self, event: SchedulerEvent) -> None:
        """Handle the node's report on its containers; on heartbeats, assign containers to the node."""
        rmnode = self._context.nodes.get(event.entity)
        if rmnode is None:
            return
        post, books, node = self._context.post, self._books, self._nodes.get(event.entity)
        containers = books.containers
        for launched, finished in rmnode.pull_updates():
            for container_id in launched:
                if container_id not in containers or node is None:
                    post(RMNodeEvent(RMNodeEventType.CLEANUP_CONTAINER, event.entity, container_id))
                elif container_id not in node.launched:  # else recovered when its node registered again
                    node.launched.add(container_id)
                    post(RMContainerEvent(_LAUNCHED, container_id))
            for status in finished:
                container = containers.get(status.container)
                if container is not None:
                    books.release(books.attempts[container.attempt], container)
                    post(RMContainerEvent(_FINISHED, status.container, status, status.payload()))
        if node is not None and self._on_heartbeat and (books.pending_count or node.reserved_container is not None):
            self._heartbeats += 1
            self._assign_containers(node)

    def _assign_containers(self, node: SchedulerNode) -> None:
        """Allocate the node's reserved container, then pending asks; reserve the node for an ask that is too large."""
        books, policy, most = self._books, self._policy, self._config.containers_per_heartbeat
        reserved = node.reserved_container
        if reserved is not None:
            if not books.grant_reserved(node, reserved):
                return
            if most is not None:
                most -= 1
        opportunity, count = self.opportunity(), 0
        while count != most and books.pending_count and not node.is_draining:
            chosen = policy.choose(node, opportunity)
            if chosen is None:
                break
            books.satisfy(*chosen, node)
            count += 1
        if count != most and books.pending_count and not node.is_draining:
            allocator = policy.choose_to_reserve(node, opportunity)
            if allocator is not None:
                books.reserve(node, allocator)

    def opportunity(self) -> SchedulingOpportunity:
        """The present heartbeat, and the locality delays as they are now."""
        nodes, delay = len(self._nodes), self._config.node_locality_delay
        if delay is None:
            return SchedulingOpportunity(self._heartbeats, 0, 0)
        more = self._config.rack_locality_additional_delay
        off_switch_delay = nodes if more is None else min(delay + more, nodes)
        return SchedulingOpportunity(self._heartbeats, min(delay, nodes), off_switch_delay)

    # -- changes of nodes ----------------------------------------------------------------------------------------------

    def _update_resource(self, event: NodeResourceUpdateSchedulerEvent) -> None:
        """Change the node's capacity, drain it, or admit it again; its containers keep what they have."""
        node = self._nodes.get(event.entity)
        if node is None:
            return
        why = f"the capacity of its node {node.node_id} changed"
        if event.is_draining:
            why = f"its node {node.node_id} is being decommissioned"
        self._books.cancel_reservation(node, why)
        self._policy.capacity_changed(node.partition, node.total, -1)
        self._nodes.close(node)
        node.set_capacity(event.capacity)
        node.is_draining = event.is_draining
        self._nodes.open(node)
        self._policy.capacity_changed(node.partition, node.total, 1)
        self._nodes.note_freed(node)

    def _update_label(self, event: NodeLabelsUpdateSchedulerEvent) -> None:
        """Move the node to another partition; its containers keep running and are charged there."""
        node = self._nodes.get(event.entity)
        if node is None or node.partition == event.partition:
            return
        self._books.cancel_reservation(node, f"its node {node.node_id} moved to another partition")
        policy, before = self._policy, node.partition
        policy.capacity_changed(before, node.total, -1)
        self._nodes.close(node)
        node.partition = event.partition
        self._nodes.open(node)
        policy.capacity_changed(node.partition, node.total, 1)
        for container_id in node.containers:
            live = self._books.live(container_id)
            assert live is not None  # as above
            attempt, container = live
            policy.discharge(attempt, before, container.request.resource)
            policy.charge(attempt, node.partition, container.request.resource)
        self._nodes.note_freed(node)

    # -- applications and attempts -------------------------------------------------------------------------------------

    def _add_app(self, event: AppAddedSchedulerEvent) -> None:
        app_id, is_recovering = event.entity, event.is_recovering
        rmapp = self._context.apps.get(app_id)
        if rmapp is None:
            return  # killed before this event arrived, and already forgotten
        app = self._policy.application_type(app_id, rmapp.submission, self._applications)
        refusal = self._policy.add_app(app, is_recovering)
        if refusal is not None:
            # A recovered application may have an attempt by now: too late to reject it.
            type = RMAppEventType.KILL if is_recovering else RMAppEventType.APP_REJECTED
            self._context.post(RMAppEvent(type, app_id, refusal))
            return
        self._applications += 1
        self._books.apps[app_id] = app
        if not is_recovering:
            self._context.post(RMAppEvent(RMAppEventType.APP_ACCEPTED, app_id))

    def _remove_app(self, event: SchedulerEvent) -> None:
        books = self._books
        app = books.apps.get(event.entity)
        if app is None:
            return
        attempt = app.attempt
        if attempt is not None and attempt.is_stopped and attempt.id in books.attempts:
            self._kill_containers(attempt, "its application ended")
            del books.attempts[attempt.id]
        del books.apps[event.entity]
        self._policy.remove_app(app)
        app.attempt = None  # breaks the reference cycle

    def _add_attempt(self, event: AppAttemptAddedSchedulerEvent) -> None:
        books, attempt_id = self._books, event.entity
        app = books.apps.get(application_of(attempt_id))
        if app is None:
            return  # the recovered application was refused
        attempt = SchedulerApplicationAttempt(attempt_id, app, self._context.epoch, self._policy.default_label(app))
        before, app.attempt = app.attempt, attempt
        if before is not None and before.is_stopped and before.id in books.attempts:
            if not event.transfer_state:
                self._kill_containers(before, "its attempt ended")
            del books.attempts[before.id]
            for container in before.live.values():
                container.attempt = attempt_id
            attempt.live, before.live = before.live, {}
            attempt.blacklist = before.blacklist
        if event.is_recovering:
            attempt.master = self._context.attempts[attempt_id].master_container
        books.attempts[attempt_id] = attempt
        self._policy.add_attempt(attempt)
        if not event.is_recovering:
            self._context.post(RMAppAttemptEvent(RMAppAttemptEventType.ATTEMPT_ADDED, attempt_id))

    def _remove_attempt(self, event: AppAttemptRemovedSchedulerEvent) -> None:
        attempt = self._books.attempts.get(event.entity)
        if attempt is None or attempt.is_stopped:
            return
        self._books.cancel_reservations(attempt)
        self._books.withdraw(attempt)
        self._kill_containers(attempt, "its attempt ended", but_running=event.keep_containers)
        if event.keep_containers:
            attempt.is_stopped = True
        else:
            del self._books.attempts[attempt.id]
        self._policy.remove_attempt(attempt)

    def _kill_containers(self, attempt: SchedulerApplicationAttempt, why: str, *, but_running: bool = False) -> None:
        """Kill the attempt's containers; `but_running`: except running ones other than the master's."""
        for container in list(attempt.live.values()):
            is_kept = but_running and container.entity != attempt.master
            if not (is_kept and container.entity in self._books.node_of(container).launched):
                self._books.end(attempt, container, RMContainerEventType.KILL, why)
