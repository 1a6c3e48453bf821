"""The cluster's totals, for clients. Built on the handler thread and immutable: any thread may read them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.machines.rmcontainer import RMContainer, RMContainerState
from statemachines.resourcemanager.machines.rmnode import RMNodeState
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.scheduler.core.amounts import total_of

_WITHOUT_ROOM = frozenset({RMContainerState.NEW, RMContainerState.RESERVED})
_IN_USE = frozenset({RMNodeState.RUNNING, RMNodeState.DECOMMISSIONING})
_PENDING = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED")


@dataclass(frozen=True, slots=True)
class ClusterMetrics:
    """The cluster now; applications are counted since the start of the resource manager."""

    apps_submitted: int
    """The sum of the next five."""
    apps_pending: int
    apps_running: int
    apps_completed: int
    apps_failed: int
    apps_killed: int
    containers_allocated: int
    containers_reserved: int
    containers_pending: int
    """Pending requests."""
    total: Resource
    """The capacity of RUNNING and DECOMMISSIONING nodes."""
    allocated: Resource
    reserved: Resource
    pending: Resource
    nodes: dict[str, int]
    """Count by state, for all states but NEW."""

    @property
    def total_nodes(self) -> int:
        return sum(self.nodes.values())


def cluster_metrics(context: RMContext) -> ClusterMetrics:
    machines = context.recorder.machines.get("RMApp")
    apps = Counter(machines.entities() if machines is not None else {})
    allocated = _with_room(context)
    # A running container may have a reservation as well, for an increase on its own node.
    reserved = [
        container.reserved_resource
        for container in _live(context)
        if container.state is RMContainerState.RESERVED and container.reserved_resource is not None
    ]
    waiting = context.scheduler.waiting()
    ended = {state: apps[state] for state in ("FINISHED", "FAILED", "KILLED")}
    pending = sum(apps[state] for state in _PENDING)
    nodes = Counter(node.state.name for node in (*context.nodes.values(), *context.inactive_nodes.values()))
    return ClusterMetrics(
        apps_submitted=apps.total(),
        apps_pending=pending,
        apps_running=apps.total() - pending - sum(ended.values()),
        apps_completed=ended["FINISHED"],
        apps_failed=ended["FAILED"],
        apps_killed=ended["KILLED"],
        containers_allocated=len(allocated),
        containers_reserved=len(reserved),
        containers_pending=len(waiting),
        total=total_of(node.capacity for node in context.nodes.values() if node.state in _IN_USE),
        allocated=total_of(container.request.resource for container in allocated),
        reserved=total_of(reserved),
        pending=total_of(request.resource for _, request in waiting),
        nodes={state.name: nodes[state.name] for state in RMNodeState if state is not RMNodeState.NEW},
    )


def _live(context: RMContext) -> list[RMContainer]:
    # One atomic operation: the scheduler's thread adds to the dict at the same time.
    return list(context.containers.values())


def _with_room(context: RMContext) -> list[RMContainer]:
    return [container for container in _live(context) if container.state not in _WITHOUT_ROOM]
