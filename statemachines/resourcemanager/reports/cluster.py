"""The cluster's totals, for clients. Built on the handler thread and immutable: any thread may read them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.machines.rmnode import RMNodeState
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.scheduler.core.amounts import add, amounts_of, resource_of, total_of

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
    """Costs as much as there are nodes, users and queues; containers and asks are summed up by the scheduler."""
    machines = context.recorder.machines.get("RMApp")
    apps = Counter(machines.entities() if machines is not None else {})
    ended = {state: apps[state] for state in ("FINISHED", "FAILED", "KILLED")}
    pending = sum(apps[state] for state in _PENDING)
    nodes = Counter(node.state.name for node in (*context.nodes.values(), *context.inactive_nodes.values()))
    root = context.scheduler.queue_info("root")
    assert root is not None  # every scheduler has it
    allocated = dict(amounts_of(root.used))
    add(allocated, amounts_of(root.reserved), -1)
    return ClusterMetrics(
        apps_submitted=apps.total(),
        apps_pending=pending,
        apps_running=apps.total() - pending - sum(ended.values()),
        apps_completed=ended["FINISHED"],
        apps_failed=ended["FAILED"],
        apps_killed=ended["KILLED"],
        containers_allocated=root.allocated_containers,
        containers_reserved=root.reserved_containers,
        containers_pending=root.pending_containers,
        total=total_of(node.capacity for node in context.nodes.values() if node.state in _IN_USE),
        allocated=resource_of(allocated),
        reserved=root.reserved,
        pending=root.pending,
        nodes={state.name: nodes[state.name] for state in RMNodeState if state is not RMNodeState.NEW},
    )
