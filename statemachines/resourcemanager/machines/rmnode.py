"""One node, after YARN's RMNodeImpl: it registers, reports, falls ill, is emptied and leaves.

Nothing is sent to a node: what it is to do waits in lists until the answer to its next heartbeat takes them. A node
that has left is kept among the inactive ones; if it comes back, a new RMNode takes its place.

Threading: handler thread only (invariant 1), but for the news that waits for the scheduler, which may have a thread of
its own (`pull_updates`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from statemachines.factory import StateMachineFactory
from statemachines.resourcemanager.context import Entity, RMContext
from statemachines.resourcemanager.events.records import NMContainerStatus
from statemachines.resourcemanager.events.rmnode import (
    RMNodeEvent,
    RMNodeReconnectEvent,
    RMNodeStartedEvent,
    RMNodeStatusEvent,
)
from statemachines.resourcemanager.events.rmnode import RMNodeEventType as E
from statemachines.resourcemanager.events.scheduler import (
    NodeAddedSchedulerEvent,
    NodeResourceUpdateSchedulerEvent,
    SchedulerEvent,
    SchedulerEventType,
)
from statemachines.resourcemanager.events.services import NodesListManagerEvent, NodesListManagerEventType
from statemachines.resourcemanager.machines.node_reports import (
    Report,
    all_changes,
    app_on_node,
    take_containers,
    take_report,
)
from statemachines.resourcemanager.node_spec import NodeSpec
from statemachines.resourcemanager.resource import Resource

log = logging.getLogger(__name__)


class RMNodeState(Enum):
    NEW = auto()
    RUNNING = auto()
    UNHEALTHY = auto()
    DECOMMISSIONING = auto()
    DECOMMISSIONED = auto()
    LOST = auto()
    REBOOTED = auto()
    SHUTDOWN = auto()


S = RMNodeState
PORT = 45454
"""Port in a node's id where nothing else is known, as in YARN's examples."""
UNKNOWN_PORT = -1
"""Port of the placeholder for a host of which no node has ever registered."""


class RMNode(Entity):
    """A node; `entity` is its id, `host:port`."""

    machine = "RMNode"

    __slots__ = (
        "apps_to_clean",
        "capacity",
        "containers",
        "decommission_timeout_s",
        "health",
        "in_scheduler",
        "last_response",
        "next_heartbeat",
        "original_capacity",
        "response_id",
        "running_apps",
        "spec",
        "to_clean",
        "to_forget",
        "to_signal",
        "to_update",
        "untracked_since_ms",
        "updates",
    )

    def __init__(self, context: RMContext, spec: NodeSpec) -> None:
        super().__init__(context, node_id(spec.host, spec.port), FACTORY.make(self, listener=context.recorder))
        self.spec = spec
        self.capacity = spec.capacity  # now; may have been changed since it registered
        self.original_capacity: Resource | None = None  # while it is being emptied: what it gets back
        self.decommission_timeout_s: int | None = None  # of its emptying; None: as long as it takes
        self.health = True  # as it last said
        self.in_scheduler = False  # whether the scheduler has been told of it
        self.containers: set[str] = set()  # those that the node has said to run
        self.running_apps: set[str] = set()  # those that have had containers here, and have not ended
        self.untracked_since_ms: int | None = None  # inactive, and its host is on no list
        # Of its last heartbeat, if its heartbeats have ids:
        self.response_id = 0
        self.last_response: Any = None  # to be sent again, if it got lost
        # Until the answer to the next heartbeat:
        self.to_clean: set[str] = set()  # containers to stop
        self.apps_to_clean: list[str] = []  # applications that have ended
        self.to_signal: list[tuple[str, str]] = []  # (container, name of the signal)
        self.to_update: dict[str, Resource] = {}  # containers to give another size
        self.to_forget: list[str] = []  # containers of which all is known that is to be known
        # News for the scheduler: (launched, finished) of each report. The handler thread appends and clears, the
        # scheduler's thread takes; each is one atomic operation.
        self.updates: deque[Report] = deque()
        self.next_heartbeat = True  # nothing is on its way to the scheduler; set by its thread, cleared by the handler

    def pull_updates(self) -> list[Report]:
        """What the node has reported since the scheduler last asked. The scheduler's thread."""
        # First the flag: what is appended after the last look below then has an event of its own.
        self.next_heartbeat = True
        taken, updates = [], self.updates
        try:
            while updates:
                taken.append(updates.popleft())
        except IndexError:  # the handler thread has dropped the rest
            pass
        return taken

    def payload(self) -> dict[str, Any]:
        """What the journal says of it."""
        capacity = self.capacity
        payload: dict[str, Any] = {
            "host": self.spec.host,
            "rack": self.spec.rack,
            "memory_mb": capacity.memory_mb,
            "vcores_milli": capacity.vcores_milli,
            "gpus": capacity.gpus,
        }
        if self.spec.gpu_model is not None:
            payload["gpu_model"] = self.spec.gpu_model
        return payload


def node_id(host: str, port: int = PORT) -> str:
    return f"{host}:{port}"


Hook = Callable[[RMNode, Any], Any]


# -- steps that several hooks share -----------------------------------------------------------------------------------


def _tell_lists(node: RMNode, type: NodesListManagerEventType) -> None:
    node.context.post(NodesListManagerEvent(type, node.entity))


def _become_usable(node: RMNode, containers: tuple[NMContainerStatus, ...] = ()) -> None:
    node.in_scheduler = True
    node.context.post(NodeAddedSchedulerEvent(node.entity, containers))
    _tell_lists(node, NodesListManagerEventType.NODE_USABLE)


def _drop_news(node: RMNode) -> None:
    """The scheduler ends all that it has on this node: what the node said of it is of no use any more."""
    node.updates.clear()
    node.next_heartbeat = True
    node.containers.clear()


def _become_unusable(node: RMNode) -> None:
    _drop_news(node)
    if node.in_scheduler:  # not if it has just registered, nor if it was ill before
        node.in_scheduler = False
        node.context.post(SchedulerEvent(SchedulerEventType.NODE_REMOVED, node.entity))
    _tell_lists(node, NodesListManagerEventType.NODE_UNUSABLE)


def _deactivate(node: RMNode, event: Any) -> None:
    """Out of the active nodes. A placeholder was never one of them."""
    if node.spec.port == UNKNOWN_PORT:
        return
    _become_unusable(node)
    context = node.context
    context.nm_liveliness_monitor.unregister(node.entity)
    del context.nodes[node.entity]
    context.inactive_nodes[node.entity] = node


# -- hooks ------------------------------------------------------------------------------------------------------------


def _take_from_inactive(node: RMNode) -> bool:
    """Take its old entry, or the placeholder of its host, out of the inactive nodes; whether it was here before."""
    context = node.context
    old = context.inactive_nodes.pop(node.entity, None)
    came_back = old is not None
    if old is None:
        old = context.inactive_nodes.pop(node_id(node.spec.host, UNKNOWN_PORT), None)
    if old is not None:
        context.recorder.forgotten(old.machine, old.state)
    return came_back


def _start(node: RMNode, event: RMNodeStartedEvent) -> RMNodeState:
    came_back = _take_from_inactive(node)
    for app_id in event.running_apps:
        app_on_node(node, app_id)
    running = [report.container for report in event.containers if report.status is None]
    if event.healthy and not came_back:
        node.containers.update(running)
        _become_usable(node, event.containers)
        return S.RUNNING
    # The containers of a node that was given up have ended for the scheduler, and a node that is ill gets none: what
    # still runs there runs for nobody.
    node.to_clean.update(running)
    if event.healthy:
        _become_usable(node)
        return S.RUNNING
    node.health = False
    _become_unusable(node)
    return S.UNHEALTHY


def _take_status(node: RMNode, event: RMNodeStatusEvent) -> RMNodeState:
    node.health = event.healthy
    if not event.healthy:
        _become_unusable(node)
        return S.UNHEALTHY
    take_report(node, event)
    return S.RUNNING


def _take_status_while_emptied(node: RMNode, event: RMNodeStatusEvent) -> RMNodeState:
    # A master that has been given room here but has not been launched is in the scheduler's books alone.
    if not node.running_apps and not node.context.scheduler.has_master_container(node.entity):
        _deactivate(node, event)
        return S.DECOMMISSIONED
    node.health = event.healthy
    if event.healthy:
        take_report(node, event)
    return S.DECOMMISSIONING


def _recover_health(node: RMNode, event: RMNodeStatusEvent) -> RMNodeState:
    if not event.healthy:
        return S.UNHEALTHY
    node.health = True
    node.containers.clear()  # one that registered again while it was ill brought some that nobody counts on any more
    _become_usable(node)
    return S.RUNNING


def _reconnect(node: RMNode, event: RMNodeReconnectEvent) -> RMNodeState:
    state: RMNodeState = node.state
    if event.running_apps:
        _go_on(node, event)
    elif state is S.DECOMMISSIONING:
        _deactivate(node, event)
        return S.DECOMMISSIONED
    else:
        _begin_anew(node, event)
    return state


def _begin_anew(node: RMNode, event: RMNodeReconnectEvent) -> None:
    """Its node manager has been restarted, and has nothing."""
    context = node.context
    _drop_news(node)
    node.running_apps.clear()
    node.context.post(SchedulerEvent(SchedulerEventType.NODE_REMOVED, node.entity))
    if event.spec.http_port == node.spec.http_port:
        node.spec, node.capacity = event.spec, event.spec.capacity
        if node.state is S.RUNNING:
            context.post(NodeAddedSchedulerEvent(node.entity))
        return
    # Another node manager, on the same host and port: it is another node.
    context.recorder.forgotten(node.machine, node.state)
    other = context.nodes[node.entity] = RMNode(context, event.spec)
    context.post(RMNodeStartedEvent(other.entity, payload=other.payload()))


def _go_on(node: RMNode, event: RMNodeReconnectEvent) -> None:
    """It has lost the connection for a while, and has kept what it runs."""
    capacity = event.spec.capacity
    is_changed = capacity != node.capacity
    node.spec, node.capacity = event.spec, capacity
    if node.original_capacity is not None:
        node.original_capacity = capacity
    running = frozenset(report.container for report in event.containers if report.status is None)
    ended = tuple(report.status for report in event.containers if report.status is not None)
    take_containers(node, *all_changes(node, (), ended, running))
    for app_id in event.running_apps:
        app_on_node(node, app_id)
    if is_changed and node.state is S.RUNNING:
        node.context.post(NodeResourceUpdateSchedulerEvent(node.entity, capacity))


def _set_capacity(node: RMNode, event: RMNodeEvent[Resource]) -> None:
    log.warning(
        "%s is %s: its capacity becomes %s, for when it is used again", node.entity, node.state.name, event.about
    )
    node.capacity = event.about


def _change_capacity(node: RMNode, event: RMNodeEvent[Resource]) -> None:
    node.capacity = event.about
    node.context.post(NodeResourceUpdateSchedulerEvent(node.entity, node.capacity))


def _begin_emptying(node: RMNode, event: RMNodeEvent[int | None]) -> None:
    node.decommission_timeout_s = event.about
    node.original_capacity = node.capacity
    _tell_lists(node, NodesListManagerEventType.NODE_DECOMMISSIONING)


def _change_timeout(node: RMNode, event: RMNodeEvent[int | None]) -> None:
    node.decommission_timeout_s = event.about


def _recommission(node: RMNode, event: RMNodeEvent[None]) -> None:
    if node.original_capacity is not None:
        node.capacity = node.original_capacity
    node.original_capacity = node.decommission_timeout_s = None
    if node.in_scheduler:
        node.context.post(NodeResourceUpdateSchedulerEvent(node.entity, node.capacity))
        _tell_lists(node, NodesListManagerEventType.NODE_USABLE)
    else:  # it was ill when its emptying began; YARN's scheduler would not hear of it again
        _become_usable(node)


def _list_app_to_clean(node: RMNode, event: RMNodeEvent[str]) -> None:
    node.running_apps.discard(event.about)
    node.apps_to_clean.append(event.about)


def _list_container_to_clean(node: RMNode, event: RMNodeEvent[str]) -> None:
    node.to_clean.add(event.about)


def _list_to_forget(node: RMNode, event: RMNodeEvent[tuple[str, ...]]) -> None:
    node.to_forget.extend(event.about)


def _list_to_update(node: RMNode, event: RMNodeEvent[tuple[str, Resource]]) -> None:
    container_id, size = event.about
    node.to_update[container_id] = size


def _list_to_signal(node: RMNode, event: RMNodeEvent[tuple[str, str]]) -> None:
    node.to_signal.append(event.about)


def _build() -> StateMachineFactory[RMNodeState, RMNode]:
    factory: StateMachineFactory[RMNodeState, RMNode] = StateMachineFactory(S.NEW, "RMNode")
    return (
        factory.add_transition(S.NEW, (S.RUNNING, S.UNHEALTHY), E.STARTED, _start)
        .add_transition(S.NEW, S.NEW, E.RESOURCE_UPDATE, _set_capacity)
        .add_transition(S.NEW, S.DECOMMISSIONED, E.DECOMMISSION, _deactivate)
        .add_transition(S.NEW, S.LOST, E.EXPIRE, _deactivate)
        .add_transition(S.NEW, S.NEW, E.FINISHED_CONTAINERS_PULLED_BY_AM, _list_to_forget)
        .add_transition(S.RUNNING, (S.RUNNING, S.UNHEALTHY), E.STATUS_UPDATE, _take_status)
        .add_transition(S.RUNNING, S.DECOMMISSIONED, E.DECOMMISSION, _deactivate)
        .add_transition(S.RUNNING, S.DECOMMISSIONING, E.GRACEFUL_DECOMMISSION, _begin_emptying)
        .add_transition(S.RUNNING, S.LOST, E.EXPIRE, _deactivate)
        .add_transition(S.RUNNING, S.REBOOTED, E.REBOOTING, _deactivate)
        .add_transition(S.RUNNING, S.RUNNING, E.CLEANUP_APP, _list_app_to_clean)
        .add_transition(S.RUNNING, S.RUNNING, E.CLEANUP_CONTAINER, _list_container_to_clean)
        .add_transition(S.RUNNING, S.RUNNING, E.FINISHED_CONTAINERS_PULLED_BY_AM, _list_to_forget)
        .add_transition(S.RUNNING, (S.RUNNING,), E.RECONNECTED, _reconnect)
        .add_transition(S.RUNNING, S.RUNNING, E.RESOURCE_UPDATE, _change_capacity)
        .add_transition(S.RUNNING, S.RUNNING, E.UPDATE_CONTAINER, _list_to_update)
        .add_transition(S.RUNNING, S.RUNNING, E.SIGNAL_CONTAINER, _list_to_signal)
        .add_transition(S.RUNNING, S.SHUTDOWN, E.SHUTDOWN, _deactivate)
        .add_transition(S.REBOOTED, S.REBOOTED, E.RESOURCE_UPDATE, _set_capacity)
        .add_transition(S.DECOMMISSIONED, S.DECOMMISSIONED, E.RESOURCE_UPDATE, _set_capacity)
        .add_transition(S.DECOMMISSIONED, S.DECOMMISSIONED, E.FINISHED_CONTAINERS_PULLED_BY_AM, _list_to_forget)
        .add_transition(S.DECOMMISSIONING, S.DECOMMISSIONED, E.DECOMMISSION, _deactivate)
        .add_transition(S.DECOMMISSIONING, S.RUNNING, E.RECOMMISSION, _recommission)
        .add_transition(S.DECOMMISSIONING, S.DECOMMISSIONING, E.RESOURCE_UPDATE, _change_capacity)
        .add_transition(
            S.DECOMMISSIONING, (S.DECOMMISSIONING, S.DECOMMISSIONED), E.STATUS_UPDATE, _take_status_while_emptied
        )
        .add_transition(S.DECOMMISSIONING, S.DECOMMISSIONING, E.GRACEFUL_DECOMMISSION, _change_timeout)
        .add_transition(S.DECOMMISSIONING, S.LOST, E.EXPIRE, _deactivate)
        .add_transition(S.DECOMMISSIONING, S.REBOOTED, E.REBOOTING, _deactivate)
        .add_transition(S.DECOMMISSIONING, S.DECOMMISSIONING, E.FINISHED_CONTAINERS_PULLED_BY_AM, _list_to_forget)
        .add_transition(S.DECOMMISSIONING, S.DECOMMISSIONING, E.CLEANUP_APP, _list_app_to_clean)
        .add_transition(S.DECOMMISSIONING, S.SHUTDOWN, E.SHUTDOWN, _deactivate)
        .add_transition(S.DECOMMISSIONING, S.DECOMMISSIONING, E.CLEANUP_CONTAINER, _list_container_to_clean)
        .add_transition(S.DECOMMISSIONING, (S.DECOMMISSIONING, S.DECOMMISSIONED), E.RECONNECTED, _reconnect)
        .add_transition(S.LOST, S.LOST, E.RESOURCE_UPDATE, _set_capacity)
        .add_transition(S.LOST, S.LOST, E.FINISHED_CONTAINERS_PULLED_BY_AM, _list_to_forget)
        .add_transition(S.UNHEALTHY, (S.UNHEALTHY, S.RUNNING), E.STATUS_UPDATE, _recover_health)
        .add_transition(S.UNHEALTHY, S.DECOMMISSIONED, E.DECOMMISSION, _deactivate)
        .add_transition(S.UNHEALTHY, S.DECOMMISSIONING, E.GRACEFUL_DECOMMISSION, _begin_emptying)
        .add_transition(S.UNHEALTHY, S.LOST, E.EXPIRE, _deactivate)
        .add_transition(S.UNHEALTHY, S.REBOOTED, E.REBOOTING, _deactivate)
        .add_transition(S.UNHEALTHY, (S.UNHEALTHY,), E.RECONNECTED, _reconnect)
        .add_transition(S.UNHEALTHY, S.UNHEALTHY, E.CLEANUP_APP, _list_app_to_clean)
        .add_transition(S.UNHEALTHY, S.UNHEALTHY, E.CLEANUP_CONTAINER, _list_container_to_clean)
        .add_transition(S.UNHEALTHY, S.UNHEALTHY, E.RESOURCE_UPDATE, _set_capacity)
        .add_transition(S.UNHEALTHY, S.UNHEALTHY, E.FINISHED_CONTAINERS_PULLED_BY_AM, _list_to_forget)
        .add_transition(S.UNHEALTHY, S.UNHEALTHY, E.SIGNAL_CONTAINER, _list_to_signal)
        .add_transition(S.UNHEALTHY, S.SHUTDOWN, E.SHUTDOWN, _deactivate)
        .add_transition(S.SHUTDOWN, S.SHUTDOWN, E.RESOURCE_UPDATE, _set_capacity)
        .add_transition(S.SHUTDOWN, S.SHUTDOWN, E.FINISHED_CONTAINERS_PULLED_BY_AM, _list_to_forget)
        .install_topology()
    )


FACTORY = _build()
