"""One node, after YARN's RMNodeImpl.

The table holds the rows for a node that comes, reports, falls ill, recovers and leaves; reconnection, graceful
decommissioning and changes of its resources are not among them. A node that has left moves to the inactive ones, and
events for it are for nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from statemachines.factory import StateMachineFactory
from statemachines.resourcemanager.context import Entity, RMContext
from statemachines.resourcemanager.events import (
    ContainerStatus,
    RMNodeStatusEvent,
    SchedulerEvent,
    SchedulerEventType,
)
from statemachines.resourcemanager.events import RMNodeEventType as E
from statemachines.resourcemanager.workload.model import NodeSpec


class RMNodeState(Enum):
    NEW = auto()
    RUNNING = auto()
    UNHEALTHY = auto()
    DECOMMISSIONED = auto()
    LOST = auto()
    REBOOTED = auto()
    SHUTDOWN = auto()


S = RMNodeState
PORT = 45454
"""Port in a node's id where nothing else is known, as in YARN's examples."""


class RMNode(Entity):
    """A node; `entity` is its id, `host:port`."""

    machine = "RMNode"

    __slots__ = ("apps_to_clean", "containers", "spec", "to_clean", "updates")

    def __init__(self, context: RMContext, spec: NodeSpec) -> None:
        super().__init__(context, node_id(spec.host), FACTORY.make(self, listener=context.recorder))
        self.spec = spec
        self.containers: set[str] = set()  # those that the node has said to run
        self.to_clean: set[str] = set()  # containers to stop, until the answer to the next heartbeat
        self.apps_to_clean: list[str] = []  # ended applications, until the answer to the next heartbeat
        self.updates: list[tuple[tuple[str, ...], tuple[ContainerStatus, ...]]] = []  # not fetched by the scheduler

    def pull_updates(self) -> list[tuple[tuple[str, ...], tuple[ContainerStatus, ...]]]:
        """What the node has reported since the scheduler last asked: (launched, finished) of each report."""
        updates, self.updates = self.updates, []
        return updates

    def payload(self) -> dict[str, Any]:
        """What the journal says of it."""
        capacity = self.spec.capacity
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


def node_id(host: str) -> str:
    return f"{host}:{PORT}"


Hook = Callable[[RMNode, Any], Any]


def _tell_scheduler(node: RMNode, type: SchedulerEventType) -> None:
    node.context.post(SchedulerEvent(type, node.entity))


def _become_usable(node: RMNode, event: Any) -> RMNodeState:
    _tell_scheduler(node, SchedulerEventType.NODE_ADDED)
    return S.RUNNING


def _become_unusable(node: RMNode) -> None:
    node.updates.clear()
    node.containers.clear()
    _tell_scheduler(node, SchedulerEventType.NODE_REMOVED)


def _deactivate(node: RMNode, event: Any) -> None:
    """Out of the active nodes; the scheduler hears of it unless it had lost the node already."""
    if node.state is S.RUNNING:
        _become_unusable(node)
    context = node.context
    del context.nodes[node.entity]
    context.inactive_nodes[node.entity] = node


def _take_status(node: RMNode, event: RMNodeStatusEvent) -> RMNodeState:
    if not event.healthy:
        _become_unusable(node)
        return S.UNHEALTHY
    # A container that is to be cleaned up has been given up by the scheduler: its news is no news.
    launched = tuple(container for container in event.launched if container not in node.to_clean)
    finished = tuple(status for status in event.finished if status.container not in node.to_clean)
    node.to_clean.difference_update(status.container for status in event.finished)
    node.containers.update(launched)
    node.containers.difference_update(status.container for status in event.finished)
    if not node.updates:  # otherwise the scheduler has not fetched the last ones, and an event is on its way
        _tell_scheduler(node, SchedulerEventType.NODE_UPDATE)
    node.updates.append((launched, finished))
    return S.RUNNING


def _recover_health(node: RMNode, event: RMNodeStatusEvent) -> RMNodeState:
    return _become_usable(node, event) if event.healthy else S.UNHEALTHY


def _list_app_to_clean(node: RMNode, event: Any) -> None:
    node.apps_to_clean.append(event.about)


def _list_container_to_clean(node: RMNode, event: Any) -> None:
    node.to_clean.add(event.about)
    node.containers.discard(event.about)


def _forget_containers(node: RMNode, event: Any) -> None:
    node.containers.difference_update(event.about)


def _build() -> StateMachineFactory[RMNodeState, RMNode]:
    factory: StateMachineFactory[RMNodeState, RMNode] = StateMachineFactory(S.NEW, "RMNode")
    leaving = {
        E.DECOMMISSION: S.DECOMMISSIONED,
        E.EXPIRE: S.LOST,
        E.REBOOTING: S.REBOOTED,
        E.SHUTDOWN: S.SHUTDOWN,
    }
    factory = (
        factory.add_transition(S.NEW, {S.RUNNING}, E.STARTED, _become_usable)
        .add_transition(S.NEW, S.DECOMMISSIONED, E.DECOMMISSION, _deactivate)
        .add_transition(S.NEW, S.LOST, E.EXPIRE, _deactivate)
        .add_transition(S.RUNNING, {S.RUNNING, S.UNHEALTHY}, E.STATUS_UPDATE, _take_status)
        .add_transition(S.RUNNING, S.RUNNING, E.CLEANUP_APP, _list_app_to_clean)
        .add_transition(S.RUNNING, S.RUNNING, E.CLEANUP_CONTAINER, _list_container_to_clean)
        .add_transition(S.RUNNING, S.RUNNING, E.FINISHED_CONTAINERS_PULLED_BY_AM, _forget_containers)
        .add_transition(S.UNHEALTHY, {S.UNHEALTHY, S.RUNNING}, E.STATUS_UPDATE, _recover_health)
        .add_transition(S.UNHEALTHY, S.UNHEALTHY, E.CLEANUP_APP, _list_app_to_clean)
        .add_transition(S.UNHEALTHY, S.UNHEALTHY, E.CLEANUP_CONTAINER, _list_container_to_clean)
        .add_transition(S.UNHEALTHY, S.UNHEALTHY, E.FINISHED_CONTAINERS_PULLED_BY_AM, _forget_containers)
    )
    for event_type, state in leaving.items():
        factory = factory.add_transition(S.RUNNING, state, event_type, _deactivate)
        factory = factory.add_transition(S.UNHEALTHY, state, event_type, _deactivate)
    return factory.install_topology()


FACTORY = _build()
