"""RMNode's hooks and its table, which is YARN's of RMNodeImpl."""

from __future__ import annotations

from typing import Any

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
from statemachines.resourcemanager.machines.rmnode import UNKNOWN_PORT, RMNode, log, node_id
from statemachines.resourcemanager.machines.rmnode import RMNodeState as S
from statemachines.resourcemanager.records.resource import Resource
from statemachines.table import STAY, Row, from_table

# -- steps that several hooks share -----------------------------------------------------------------------------------


def _notify_lists(node: RMNode, type: NodesListManagerEventType) -> None:
    node.context.post(NodesListManagerEvent(type, node.entity))


def _become_usable(node: RMNode, containers: tuple[NMContainerStatus, ...] = ()) -> None:
    node.in_scheduler = True
    node.context.post(NodeAddedSchedulerEvent(node.entity, containers))
    _notify_lists(node, NodesListManagerEventType.NODE_USABLE)


def _resize(node: RMNode, *, is_draining: bool) -> None:
    """Give the scheduler the node's capacity, of which only what its containers have counts while it drains."""
    node.context.post(NodeResourceUpdateSchedulerEvent(node.entity, node.capacity, is_draining))


def _drop_reports(node: RMNode) -> None:
    """Drop what the scheduler has not pulled yet: it ends all its containers on this node."""
    node.updates.clear()
    node.next_heartbeat = True
    node.containers.clear()


def _become_unusable(node: RMNode) -> None:
    _drop_reports(node)
    if node.in_scheduler:  # not if the node has just registered or was unhealthy before
        node.in_scheduler = False
        node.context.post(SchedulerEvent(SchedulerEventType.NODE_REMOVED, node.entity))
    _notify_lists(node, NodesListManagerEventType.NODE_UNUSABLE)


# -- hooks ------------------------------------------------------------------------------------------------------------


def deactivate(node: RMNode, event: Any) -> None:
    """Move the node from the active to the inactive nodes. A placeholder is inactive from the start."""
    if node.spec.port == UNKNOWN_PORT:
        return
    _become_unusable(node)
    context = node.context
    context.nm_liveliness_monitor.unregister(node.entity)
    del context.nodes[node.entity]
    context.inactive_nodes[node.entity] = node


def start(node: RMNode, event: RMNodeStartedEvent) -> S:
    """Add a node that registered to the scheduler, with the containers that it reports."""
    came_back = _take_from_inactive(node)
    for app_id in event.running_apps:
        node.app_on_node(app_id)
    running = [report.container for report in event.containers if report.status is None]
    if event.healthy and not came_back:
        node.containers.update(running)
        _become_usable(node, event.containers)
        return S.RUNNING
    # The scheduler has ended the containers of a node that was given up, and an unhealthy node gets none: what still
    # runs there is cleaned up.
    node.to_clean.update(running)
    if event.healthy:
        _become_usable(node)
        return S.RUNNING
    node.health, node.health_report = False, event.health_report
    _become_unusable(node)
    return S.UNHEALTHY


def _take_from_inactive(node: RMNode) -> bool:
    """Remove the node's old entry or its host's placeholder from the inactive nodes; returns whether it had one."""
    context = node.context
    old = context.inactive_nodes.pop(node.entity, None)
    came_back = old is not None
    if old is None:
        old = context.inactive_nodes.pop(node_id(node.spec.host, UNKNOWN_PORT), None)
    if old is not None:
        context.recorder.forgotten(old.machine, old.state, old.entity)
    return came_back


def take_status(node: RMNode, event: RMNodeStatusEvent) -> S:
    """Take a heartbeat of a RUNNING node."""
    if node.health is not event.healthy or node.health_report != event.health_report:
        node.take_health(event)
    if not event.healthy:
        _become_unusable(node)
        return S.UNHEALTHY
    node.take_report(event)
    return S.RUNNING


def take_status_decommissioning(node: RMNode, event: RMNodeStatusEvent) -> S:
    """Take a heartbeat of a DECOMMISSIONING node, which is decommissioned once its applications have ended."""
    # Only the scheduler knows of a master that has room here and has not been launched.
    if not node.running_apps and not node.context.scheduler.has_master_container(node.entity):
        deactivate(node, event)
        return S.DECOMMISSIONED
    node.take_health(event)
    if event.healthy:
        node.take_report(event)
    return S.DECOMMISSIONING


def take_status_unhealthy(node: RMNode, event: RMNodeStatusEvent) -> S:
    """Take a heartbeat of an UNHEALTHY node, which returns to the scheduler once it is healthy."""
    node.take_health(event)
    if not event.healthy:
        return S.UNHEALTHY
    node.containers.clear()  # it may have registered while unhealthy, with containers that have ended here
    _become_usable(node)
    return S.RUNNING


def reconnect(node: RMNode, event: RMNodeReconnectEvent) -> S:
    """Take a node that registers again: it kept its applications, or its node manager was restarted."""
    state: S = node.state
    if event.running_apps:
        _resume(node, event)
    elif state is S.DECOMMISSIONING:
        deactivate(node, event)
        return S.DECOMMISSIONED
    else:
        _restart(node, event)
    return state


def _restart(node: RMNode, event: RMNodeReconnectEvent) -> None:
    """The node manager was restarted and runs nothing."""
    context = node.context
    _drop_reports(node)
    node.running_apps.clear()
    context.post(SchedulerEvent(SchedulerEventType.NODE_REMOVED, node.entity))
    if event.spec.http_port == node.spec.http_port:
        node.take_spec(event.spec)
        node.capacity = node.capacity_by(event.spec)
        if node.state is S.RUNNING:
            context.post(NodeAddedSchedulerEvent(node.entity))
        return
    # Another HTTP port means another node manager on the same host and port: it is a new node.
    context.recorder.forgotten(node.machine, node.state, node.entity)
    other = context.nodes[node.entity] = RMNode(context, event.spec)
    context.post(RMNodeStartedEvent(other.entity, payload=other.payload()))


def _resume(node: RMNode, event: RMNodeReconnectEvent) -> None:
    """The node lost its connection for a while and kept its containers."""
    capacity = node.capacity_by(event.spec)
    is_changed = capacity != node.capacity
    node.take_spec(event.spec)
    node.capacity = capacity
    running = frozenset(report.container for report in event.containers if report.status is None)
    ended = tuple(report.status for report in event.containers if report.status is not None)
    node.take_containers(*node.all_changes((), ended, running))
    for app_id in event.running_apps:
        node.app_on_node(app_id)
    if is_changed and node.state is S.RUNNING:
        _resize(node, is_draining=False)


def set_capacity(node: RMNode, event: RMNodeEvent[Resource]) -> None:
    """Change the capacity of a node that the scheduler does not use."""
    log.warning("%s is %s: its new capacity %s counts once it is used again", node.entity, node.state.name, event.about)
    node.capacity = event.about


def change_capacity(node: RMNode, event: RMNodeEvent[Resource]) -> None:
    """Change the capacity of a RUNNING or DECOMMISSIONING node."""
    node.capacity = event.about
    _resize(node, is_draining=node.state is S.DECOMMISSIONING)


def begin_decommissioning(node: RMNode, event: RMNodeEvent[int | None]) -> None:
    """Begin a graceful decommissioning with the event's timeout."""
    node.decommission_timeout_s = event.about
    if node.in_scheduler:
        _resize(node, is_draining=True)
    _notify_lists(node, NodesListManagerEventType.NODE_DECOMMISSIONING)


def change_timeout(node: RMNode, event: RMNodeEvent[int | None]) -> None:
    """Change the timeout of a graceful decommissioning."""
    node.decommission_timeout_s = event.about


def recommission(node: RMNode, event: RMNodeEvent[None]) -> None:
    """Cancel a graceful decommissioning: all of the node's capacity counts again."""
    node.decommission_timeout_s = None
    if node.in_scheduler:
        _resize(node, is_draining=False)
        _notify_lists(node, NodesListManagerEventType.NODE_USABLE)
    else:  # it was unhealthy when its decommissioning began; YARN does not add it to its scheduler again
        _become_usable(node)


def list_app_to_clean(node: RMNode, event: RMNodeEvent[str]) -> None:
    """Queue an application's clean-up for the next heartbeat."""
    node.running_apps.discard(event.about)
    node.apps_to_clean.append(event.about)


def list_container_to_clean(node: RMNode, event: RMNodeEvent[str]) -> None:
    """Queue a container's clean-up for the next heartbeat."""
    node.to_clean.add(event.about)


def list_to_forget(node: RMNode, event: RMNodeEvent[tuple[str, ...]]) -> None:
    """Queue finished containers that the master has pulled: the node need not report them again."""
    node.to_forget.extend(event.about)


def list_to_update(node: RMNode, event: RMNodeEvent[tuple[str, Resource]]) -> None:
    """Queue a container's new size for the next heartbeat."""
    container_id, size = event.about
    node.to_update[container_id] = size


def list_to_signal(node: RMNode, event: RMNodeEvent[tuple[str, str]]) -> None:
    """Queue a signal to a container for the next heartbeat."""
    node.to_signal.append(event.about)


# -- the table --------------------------------------------------------------------------------------------------------

_ACTIVE = (S.RUNNING, S.DECOMMISSIONING, S.UNHEALTHY)
_GONE = (S.DECOMMISSIONED, S.LOST, S.REBOOTED, S.SHUTDOWN)
_ROWS: tuple[Row[S], ...] = (
    (S.NEW, (S.RUNNING, S.UNHEALTHY), E.STARTED, start),
    (S.RUNNING, (S.RUNNING, S.UNHEALTHY), E.STATUS_UPDATE, take_status),
    (S.DECOMMISSIONING, (S.DECOMMISSIONING, S.DECOMMISSIONED), E.STATUS_UPDATE, take_status_decommissioning),
    (S.UNHEALTHY, (S.UNHEALTHY, S.RUNNING), E.STATUS_UPDATE, take_status_unhealthy),
    (S.RUNNING, (S.RUNNING,), E.RECONNECTED, reconnect),
    (S.DECOMMISSIONING, (S.DECOMMISSIONING, S.DECOMMISSIONED), E.RECONNECTED, reconnect),
    (S.UNHEALTHY, (S.UNHEALTHY,), E.RECONNECTED, reconnect),
    ((S.NEW, *_ACTIVE), S.DECOMMISSIONED, E.DECOMMISSION, deactivate),
    ((S.NEW, *_ACTIVE), S.LOST, E.EXPIRE, deactivate),
    (_ACTIVE, S.REBOOTED, E.REBOOTING, deactivate),
    (_ACTIVE, S.SHUTDOWN, E.SHUTDOWN, deactivate),
    ((S.RUNNING, S.UNHEALTHY), S.DECOMMISSIONING, E.GRACEFUL_DECOMMISSION, begin_decommissioning),
    (S.DECOMMISSIONING, STAY, E.GRACEFUL_DECOMMISSION, change_timeout),
    (S.DECOMMISSIONING, S.RUNNING, E.RECOMMISSION, recommission),
    ((S.RUNNING, S.DECOMMISSIONING), STAY, E.RESOURCE_UPDATE, change_capacity),
    ((S.NEW, S.UNHEALTHY, *_GONE), STAY, E.RESOURCE_UPDATE, set_capacity),
    (_ACTIVE, STAY, E.CLEANUP_APP, list_app_to_clean),
    (_ACTIVE, STAY, E.CLEANUP_CONTAINER, list_container_to_clean),
    (S.RUNNING, STAY, E.UPDATE_CONTAINER, list_to_update),
    ((S.RUNNING, S.UNHEALTHY), STAY, E.SIGNAL_CONTAINER, list_to_signal),
    (set(S) - {S.REBOOTED}, STAY, E.FINISHED_CONTAINERS_PULLED_BY_AM, list_to_forget),
)
FACTORY = from_table("RMNode", S, _ROWS)
"""YARN's table."""

# An event that was on its way when a kill or an administrator changed the state, or an order for a container of a
# draining node. YARN logs each as an error.
_LATE: tuple[Row[S], ...] = (
    ((S.RUNNING, S.UNHEALTHY), STAY, E.RECOMMISSION),
    ((S.DECOMMISSIONING, S.UNHEALTHY), STAY, E.UPDATE_CONTAINER, list_to_update),
    (S.DECOMMISSIONING, STAY, E.SIGNAL_CONTAINER, list_to_signal),
)
LIVE = from_table("RMNode", S, (*_ROWS, *_LATE))
"""YARN's table with rows for late events: what the machines run on."""
