"""What a node does on its events: the hooks of RMNode's table, named after what they do."""

from __future__ import annotations

import logging
from typing import Any

from statemachines.resourcemanager.events.records import NMContainerStatus
from statemachines.resourcemanager.events.rmnode import (
    RMNodeEvent,
    RMNodeReconnectEvent,
    RMNodeStartedEvent,
    RMNodeStatusEvent,
)
from statemachines.resourcemanager.events.scheduler import (
    NodeAddedSchedulerEvent,
    NodeResourceUpdateSchedulerEvent,
    SchedulerEvent,
    SchedulerEventType,
)
from statemachines.resourcemanager.events.services import NodesListManagerEvent, NodesListManagerEventType
from statemachines.resourcemanager.machines.node_reports import all_changes, app_on_node, take_containers, take_report
from statemachines.resourcemanager.machines.rmnode import UNKNOWN_PORT, RMNode, RMNodeState, node_id
from statemachines.resourcemanager.machines.rmnode import RMNodeState as S
from statemachines.resourcemanager.resource import Resource

log = logging.getLogger(__name__)


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
    if node.in_scheduler:  # not if it has just registered, nor if it was unhealthy before
        node.in_scheduler = False
        node.context.post(SchedulerEvent(SchedulerEventType.NODE_REMOVED, node.entity))
    _tell_lists(node, NodesListManagerEventType.NODE_UNUSABLE)


def deactivate(node: RMNode, event: Any) -> None:
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


def start(node: RMNode, event: RMNodeStartedEvent) -> RMNodeState:
    came_back = _take_from_inactive(node)
    for app_id in event.running_apps:
        app_on_node(node, app_id)
    running = [report.container for report in event.containers if report.status is None]
    if event.healthy and not came_back:
        node.containers.update(running)
        _become_usable(node, event.containers)
        return S.RUNNING
    # The containers of a node that was given up have ended for the scheduler, and an unhealthy node gets none: what
    # still runs there runs for nobody.
    node.to_clean.update(running)
    if event.healthy:
        _become_usable(node)
        return S.RUNNING
    node.health = False
    _become_unusable(node)
    return S.UNHEALTHY


def take_status(node: RMNode, event: RMNodeStatusEvent) -> RMNodeState:
    node.health = event.healthy
    if not event.healthy:
        _become_unusable(node)
        return S.UNHEALTHY
    take_report(node, event)
    return S.RUNNING


def take_status_decommissioning(node: RMNode, event: RMNodeStatusEvent) -> RMNodeState:
    # A master that has been given room here but has not been launched is in the scheduler's books alone.
    if not node.running_apps and not node.context.scheduler.has_master_container(node.entity):
        deactivate(node, event)
        return S.DECOMMISSIONED
    node.health = event.healthy
    if event.healthy:
        take_report(node, event)
    return S.DECOMMISSIONING


def take_status_unhealthy(node: RMNode, event: RMNodeStatusEvent) -> RMNodeState:
    if not event.healthy:
        return S.UNHEALTHY
    node.health = True
    node.containers.clear()  # it may have registered while unhealthy, with containers that have ended here
    _become_usable(node)
    return S.RUNNING


def reconnect(node: RMNode, event: RMNodeReconnectEvent) -> RMNodeState:
    state: RMNodeState = node.state
    if event.running_apps:
        _go_on(node, event)
    elif state is S.DECOMMISSIONING:
        deactivate(node, event)
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


def set_capacity(node: RMNode, event: RMNodeEvent[Resource]) -> None:
    log.warning(
        "%s is %s: its capacity becomes %s, for when it is used again", node.entity, node.state.name, event.about
    )
    node.capacity = event.about


def change_capacity(node: RMNode, event: RMNodeEvent[Resource]) -> None:
    node.capacity = event.about
    node.context.post(NodeResourceUpdateSchedulerEvent(node.entity, node.capacity))


def begin_decommissioning(node: RMNode, event: RMNodeEvent[int | None]) -> None:
    node.decommission_timeout_s = event.about
    node.original_capacity = node.capacity
    _tell_lists(node, NodesListManagerEventType.NODE_DECOMMISSIONING)


def change_timeout(node: RMNode, event: RMNodeEvent[int | None]) -> None:
    node.decommission_timeout_s = event.about


def recommission(node: RMNode, event: RMNodeEvent[None]) -> None:
    if node.original_capacity is not None:
        node.capacity = node.original_capacity
    node.original_capacity = node.decommission_timeout_s = None
    if node.in_scheduler:
        node.context.post(NodeResourceUpdateSchedulerEvent(node.entity, node.capacity))
        _tell_lists(node, NodesListManagerEventType.NODE_USABLE)
    else:  # it was unhealthy when its decommissioning began; YARN's scheduler would not hear of it again
        _become_usable(node)


def list_app_to_clean(node: RMNode, event: RMNodeEvent[str]) -> None:
    node.running_apps.discard(event.about)
    node.apps_to_clean.append(event.about)


def list_container_to_clean(node: RMNode, event: RMNodeEvent[str]) -> None:
    node.to_clean.add(event.about)


def list_to_forget(node: RMNode, event: RMNodeEvent[tuple[str, ...]]) -> None:
    node.to_forget.extend(event.about)


def list_to_update(node: RMNode, event: RMNodeEvent[tuple[str, Resource]]) -> None:
    container_id, size = event.about
    node.to_update[container_id] = size


def list_to_signal(node: RMNode, event: RMNodeEvent[tuple[str, str]]) -> None:
    node.to_signal.append(event.about)
