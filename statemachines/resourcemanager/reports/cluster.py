"""The cluster's totals, for clients. Built on the handler thread and immutable: any thread may read them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Self

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.machines.rmnode import RMNodeState
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.reports.entities import ENDED_STATES, waiting_apps
from statemachines.resourcemanager.scheduler.core.amounts import add, amounts_of, resource_of
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo

_IN_USE = frozenset({RMNodeState.RUNNING.name, RMNodeState.DECOMMISSIONING.name})
_NOTHING = Resource(0, 0)


@dataclass(frozen=True, slots=True)
class ClusterMetrics:
    """The cluster now; applications are counted since the start of the resource manager."""

    apps_submitted: int = 0
    """The sum of the next five."""
    apps_pending: int = 0
    apps_running: int = 0
    apps_completed: int = 0
    apps_failed: int = 0
    apps_killed: int = 0
    containers_allocated: int = 0
    containers_reserved: int = 0
    containers_pending: int = 0
    """Pending requests."""
    total: Resource = _NOTHING
    """The capacity of RUNNING nodes, and what DECOMMISSIONING ones use."""
    allocated: Resource = _NOTHING
    reserved: Resource = _NOTHING
    pending: Resource = _NOTHING
    nodes: dict[str, int] = field(default_factory=dict)
    """Count by state, for all states but NEW."""

    @property
    def total_nodes(self) -> int:
        return sum(self.nodes.values())


class NodeSums:
    """Nodes by state, and what those in use have, kept up to date node by node. One thread at a time."""

    def __init__(self) -> None:
        self.by_state: Counter[str] = Counter()
        self._total: dict[str, int] = {}

    @classmethod
    def of(cls, context: RMContext) -> Self:
        sums = cls()
        for node in (*context.nodes.values(), *context.inactive_nodes.values()):
            is_draining = node.state is RMNodeState.DECOMMISSIONING
            total = context.scheduler.node_use(node.entity).used if is_draining else node.capacity
            sums.add(node.state.name, total)
        return sums

    def add(self, state: str, total: Resource, sign: int = 1) -> None:
        """Add a node, or with `sign` -1 take back what was added. `total`: what it uses while it is DECOMMISSIONING."""
        self.by_state[state] += sign
        if state in _IN_USE:
            add(self._total, amounts_of(total), sign)

    @property
    def total(self) -> Resource:
        """Of the nodes in use."""
        return resource_of(self._total)


def cluster_metrics(
    context: RMContext,
    nodes: NodeSums | None = None,
    apps: Counter[str] | None = None,
    root: QueueInfo | None = None,
) -> ClusterMetrics:
    """Costs as much as there are nodes and users; containers and asks are summed up by the scheduler.

    The caller may have parts of it already: the sums of all nodes, without which the cost grows with them; the
    applications by state, else counted by the states of their machines; the report on the root queue.
    """
    nodes = nodes or NodeSums.of(context)
    if apps is None:
        machines = context.recorder.machines.get("RMApp")
        apps = Counter(machines.entities() if machines is not None else {})
    ended = {state: apps[state] for state in ENDED_STATES}
    pending = waiting_apps(apps)
    if root is None:
        with context.scheduler.locked() as policy:
            root = policy.queue_info("root")
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
        total=nodes.total,
        allocated=resource_of(allocated),
        reserved=root.reserved,
        pending=root.pending,
        nodes={state.name: nodes.by_state[state.name] for state in RMNodeState if state is not RMNodeState.NEW},
    )
