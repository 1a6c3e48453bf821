"""The door for administrators, after YARN's AdminService: nodes leave, come back, and change.

Threading: any thread; each call is carried out on the handler thread (invariant 1), and returns once it has been. What
it posts is handled after that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dispatcher.service import Service
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.errors import NodeNotFoundError
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.scheduler import NodeLabelsUpdateSchedulerEvent
from statemachines.resourcemanager.machines.rmnode import RMNode
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.services.nodes_list_manager import NodesListManager


class AdminService(Service):
    """For administrators: which nodes there are, and what they have."""

    def __init__(self, context: RMContext, nodes_list_manager: NodesListManager) -> None:
        super().__init__()
        self._context = context
        self._nodes = nodes_list_manager

    def refresh_nodes(
        self,
        decommission: Iterable[str] = (),
        *,
        include: Iterable[str] | None = None,
        graceful: bool = False,
        timeout_s: int | None = None,
    ) -> None:
        """Take the nodes of these hosts out of service; they may not register again before `recommission`.

        `graceful`: once their applications have ended, or after `timeout_s` (None: as configured). `include`: only
        these hosts may have nodes, or all if it is empty; None: as before.
        """
        if timeout_s is None:
            timeout_s = self._context.config.decommission_timeout_s
        leaving, included = tuple(decommission), None if include is None else tuple(include)

        def refresh() -> None:
            if included is not None:
                self._nodes.include(included)
            if leaving:
                self._nodes.exclude(leaving, graceful=graceful, timeout_s=timeout_s)

        self._context.call(refresh)

    def recommission(self, hosts: Iterable[str]) -> None:
        """Let these hosts have nodes again: those that are DECOMMISSIONING stay, others have to register."""
        returning = tuple(hosts)
        self._context.call(lambda: self._nodes.readmit(returning))

    def update_node_resource(self, node_id: str, capacity: Resource) -> None:
        """Change a node's capacity. What runs there goes on, even if it is more than that.

        Raises:
            NodeNotFoundError: no such node is active.
        """

        def update() -> None:
            self._context.post(RMNodeEvent(RMNodeEventType.RESOURCE_UPDATE, self._node(node_id).entity, capacity))

        self._context.call(update)

    def replace_labels_on_node(self, node_id: str, partition: str) -> None:
        """Move a node into a partition; empty: the default one.

        Raises:
            NodeNotFoundError: no such node is active.
        """

        def move() -> None:
            node = self._node(node_id)
            node.spec = replace(node.spec, partition=partition)  # for when it is added to the scheduler again
            self._context.post(NodeLabelsUpdateSchedulerEvent(node_id, partition))

        self._context.call(move)

    def _node(self, node_id: str) -> RMNode:
        node = self._context.nodes.get(node_id)
        if node is None:
            raise NodeNotFoundError(node_id)
        return node
