"""The service for administrators, after YARN's AdminService.

Threading: any thread may call; the work is done on the handler thread (invariant 1) before the call returns. The events
that it posts are handled later. Each method `m` has a form `m_later` that returns a Future at once; the errors of a
stopped resource manager and of a `timeout` in seconds are ClientRMService's. A `caller` is the user on whose behalf a
method is called; each raises AccessDeniedError unless that is an administrator. None is this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.scheduler import NodeLabelsUpdateSchedulerEvent
from statemachines.resourcemanager.events.services import RMStateStoreEvent, RMStateStoreEventType
from statemachines.resourcemanager.machines.rmnode import RMNode
from statemachines.resourcemanager.records.acls import Caller
from statemachines.resourcemanager.records.errors import InvalidRequestError, NodeNotFoundError
from statemachines.resourcemanager.records.resource import MOST, Resource
from statemachines.resourcemanager.services.handler_calls import (
    HandlerThreadService,
    Stored,
    later,
    on_handler_thread,
    once_stored,
)
from statemachines.resourcemanager.services.nodes_list_manager import NodesListManager

_LONGEST_LABEL = 255  # YARN's


class AdminService(HandlerThreadService):
    """Decommissions, recommissions, resizes and labels nodes."""

    def __init__(self, context: RMContext, nodes_list_manager: NodesListManager) -> None:
        super().__init__(context)
        self._context = context
        self._acls = context.acls  # immutable
        self._nodes = nodes_list_manager

    @on_handler_thread
    def refresh_nodes(
        self,
        decommission: Iterable[str] = (),
        *,
        include: Iterable[str] | None = None,
        graceful: bool = False,
        timeout_s: int | None = None,
        caller: Caller | None = None,
        timeout: float | None = None,
    ) -> Callable[[], None]:
        """Decommission the nodes of these hosts, which may not register again before `recommission`.

        `graceful` waits until their applications have ended, at most `timeout_s` (None: as configured). `include`: only
        these hosts may have nodes; empty: all hosts may; None: no change.
        """
        if timeout_s is None:
            timeout_s = self._context.config.decommission_timeout_s
        leaving, included = tuple(decommission), None if include is None else tuple(include)

        def refresh() -> None:
            self._acls.check_administrator(caller, "refreshNodes")
            if included is not None:
                self._nodes.include(included)
            if leaving:
                self._nodes.exclude(leaving, graceful=graceful, timeout_s=timeout_s)

        return refresh

    refresh_nodes_later = later(refresh_nodes)

    @on_handler_thread
    def recommission(
        self, hosts: Iterable[str], *, caller: Caller | None = None, timeout: float | None = None
    ) -> Callable[[], None]:
        """Admit these hosts again: DECOMMISSIONING nodes stay in service, others must register."""
        returning = tuple(hosts)

        def readmit() -> None:
            self._acls.check_administrator(caller, "refreshNodes")
            self._nodes.readmit(returning)

        return readmit

    recommission_later = later(recommission)

    @on_handler_thread
    def update_node_resource(
        self, node_id: str, capacity: Resource, *, caller: Caller | None = None, timeout: float | None = None
    ) -> Callable[[], None]:
        """Change a node's capacity. Its containers run on, even if they exceed it.

        Raises:
            NodeNotFoundError: no such node is active.
            InvalidRequestError: no node can have this capacity.
        """
        if not capacity.is_possible():
            raise InvalidRequestError(f"node {node_id} cannot have {capacity}: amounts must be 0 to {MOST}")

        def update() -> None:
            self._acls.check_administrator(caller, "updateNodeResource")
            self._context.post(RMNodeEvent(RMNodeEventType.RESOURCE_UPDATE, self._node(node_id).entity, capacity))

        return update

    update_node_resource_later = later(update_node_resource)

    @once_stored
    def replace_labels_on_node(
        self, node_id: str, partition: str, *, caller: Caller | None = None, timeout: float | None = None
    ) -> Callable[[], Stored[None]]:
        """Move a node into a partition; empty: the default one. Returns once that is stored.

        The label holds from now on, also when the node is lost, restarts or registers with another one, and when the
        resource manager restarts with a state store, as YARN keeps it in its node label store.

        Raises:
            NodeNotFoundError: no such node is active.
            InvalidRequestError: the label is too long, or not printable.
        """
        if len(partition) > _LONGEST_LABEL or not partition.isprintable():
            raise InvalidRequestError(
                f"{partition[:_LONGEST_LABEL]!a} cannot be a label: it must be printable, with at most "
                f"{_LONGEST_LABEL} characters"
            )

        def move() -> Stored[None]:
            self._acls.check_administrator(caller, "replaceLabelsOnNode")
            node = self._node(node_id)
            self._context.node_labels[node_id] = partition
            node.take_spec(node.spec)
            self._context.recorder.changed(node)
            self._context.post(NodeLabelsUpdateSchedulerEvent(node_id, partition))
            stored = Stored(None)
            self._context.post(
                RMStateStoreEvent(
                    RMStateStoreEventType.STORE_NODE_LABEL, node_id, partition, notify=False, on_stored=stored.confirm
                )
            )
            return stored

        return move

    replace_labels_on_node_later = later(replace_labels_on_node)

    def _node(self, node_id: str) -> RMNode:
        node = self._context.nodes.get(node_id)
        if node is None:
            raise NodeNotFoundError(node_id)
        return node
