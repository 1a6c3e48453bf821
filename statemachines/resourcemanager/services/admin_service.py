"""The service for administrators, after YARN's AdminService.

Threading: any thread may call; the work is done on the handler thread (invariant 1) before the call returns. The events
that it posts are handled later.
"""

from __future__ import annotations

from collections.abc import Iterable

from dispatcher.service import Service
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.errors import NodeNotFoundError
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.scheduler import NodeLabelsUpdateSchedulerEvent
from statemachines.resourcemanager.machines.rmnode import RMNode
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.services.nodes_list_manager import NodesListManager


class AdminService(Service):
    """Decommissions, recommissions, resizes and labels nodes."""

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
        """Decommission the nodes of these hosts, which may not register again before `recommission`.

        `graceful` waits until their applications have ended, at most `timeout_s` (None: as configured). `include`: only
        these hosts may have nodes; empty: all hosts may; None: no change.
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
        """Admit these hosts again: DECOMMISSIONING nodes stay in service, others must register."""
        returning = tuple(hosts)
        self._context.call(lambda: self._nodes.readmit(returning))

    def update_node_resource(self, node_id: str, capacity: Resource) -> None:
        """Change a node's capacity. Its containers run on, even if they exceed it. Raises NodeNotFoundError."""

        def update() -> None:
            self._context.post(RMNodeEvent(RMNodeEventType.RESOURCE_UPDATE, self._node(node_id).entity, capacity))

        self._context.call(update)

    def replace_labels_on_node(self, node_id: str, partition: str) -> None:
        """Move a node into a partition; empty: the default one. Raises NodeNotFoundError.

        The label holds from now on, also when the node is lost, restarts or registers with another one.
        """

        def move() -> None:
            node = self._node(node_id)
            self._context.node_labels[node_id] = partition
            node.take_spec(node.spec)
            self._context.post(NodeLabelsUpdateSchedulerEvent(node_id, partition))

        self._context.call(move)

    def _node(self, node_id: str) -> RMNode:
        node = self._context.nodes.get(node_id)
        if node is None:
            raise NodeNotFoundError(node_id)
        return node
