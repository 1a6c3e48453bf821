"""The service for nodes, after YARN's ResourceTrackerService. Handler thread only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from dispatcher.service import Service
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.records import ContainerStatus, NMContainerStatus
from statemachines.resourcemanager.events.rmnode import (
    RMNodeEvent,
    RMNodeEventType,
    RMNodeReconnectEvent,
    RMNodeStartedEvent,
    RMNodeStatusEvent,
)
from statemachines.resourcemanager.machines.rmnode import RMNode, RMNodeState, node_id
from statemachines.resourcemanager.records.errors import NodeRefusedError
from statemachines.resourcemanager.records.node_spec import NodeSpec
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.services.nodes_list_manager import NodesListManager


class NodeAction(Enum):
    """What a node must do, after YARN's class of that name."""

    NORMAL = auto()
    RESYNC = auto()
    """Register again, with all running containers."""
    SHUTDOWN = auto()
    """Stop all containers, and do not register again."""


class HeartbeatResponse(NamedTuple):
    """The response to a node's heartbeat."""

    containers_to_clean: frozenset[str] = frozenset()
    """To stop, if they run."""
    apps_to_clean: Sequence[str] = ()
    """Ended applications, to remove."""
    action: NodeAction = NodeAction.NORMAL
    containers_to_signal: Sequence[tuple[str, str]] = ()
    """(container, name of the signal), in this order."""
    containers_to_update: Mapping[str, Resource] = {}
    """By container: the new size, which the node then reports."""
    containers_to_forget: Sequence[str] = ()
    """Finished containers that need not be reported again."""
    response_id: int = 0
    """To be sent with the next heartbeat."""


_NOTHING_TO_DO = HeartbeatResponse()
_RESYNC = HeartbeatResponse(action=NodeAction.RESYNC)
_SHUT_DOWN = HeartbeatResponse(action=NodeAction.SHUTDOWN)


class ResourceTrackerService(Service):
    """Nodes register, send heartbeats and unregister."""

    def __init__(self, context: RMContext, nodes_list_manager: NodesListManager) -> None:
        super().__init__()
        self._context = context
        self._nodes_list = nodes_list_manager

    def register_node(
        self,
        spec: NodeSpec,
        containers: Iterable[NMContainerStatus] = (),
        running_apps: Iterable[str] = (),
        healthy: bool = True,
        health_report: str = "",
    ) -> str:
        """Register a node, or register it again, with its containers; returns its id.

        `health_report`: why it is not healthy, in its own words.

        Raises:
            NodeRefusedError: its host may have no nodes; the node must shut down.
        """
        context, id_ = self._context, node_id(spec.host, spec.port)
        known = context.nodes.get(id_)
        reports, apps, drain = tuple(containers), tuple(running_apps), None
        if not (self._nodes_list.is_valid_node(spec.host) if known is None else self._nodes_list.may_go_on(known)):
            # As one that reconnects, a draining node without applications has nothing to wait for.
            drain = self._nodes_list.unfinished_drain(id_, spec.host) if known is None and apps else None
            if drain is None:
                raise NodeRefusedError(spec.host)
        context.nm_liveliness_monitor.register(id_)
        if known is not None:
            known.response_id, known.last_response = 0, None
            known.last_heartbeat_ms = context.now_ms()
            context.post(RMNodeReconnectEvent(id_, spec, reports, apps))
            return id_
        node = context.nodes[id_] = RMNode(context, spec)
        context.post(
            RMNodeStartedEvent(id_, reports, apps, healthy, payload=node.payload(), health_report=health_report)
        )
        if drain is not None:
            self._nodes_list.resume(id_, drain)
        return id_

    def heartbeat(
        self,
        node: str,
        launched: tuple[str, ...] = (),
        finished: tuple[ContainerStatus, ...] = (),
        healthy: bool = True,
        running: frozenset[str] | None = None,
        resized: tuple[tuple[str, Resource], ...] = (),
        response_id: int | None = None,
        health_report: str = "",
    ) -> HeartbeatResponse:
        """Take a node's report (see RMNodeStatusEvent); the response takes the node's waiting orders.

        `response_id`: of the last response; 0 after registering. The previous id means that the last response got lost:
        it is sent again, and the other arguments are ignored. Any other id belongs to a node that restarted without
        registering: it becomes REBOOTED and must register. None: responses cannot get lost. `health_report`: why the
        node is not healthy, in its own words.
        """
        context = self._context
        rmnode = context.nodes.get(node)
        if rmnode is None:
            return self._answer_inactive(node)
        if not self._nodes_list.may_go_on(rmnode):
            return _SHUT_DOWN
        context.nm_liveliness_monitor.received_ping(node)
        rmnode.last_heartbeat_ms = context.now_ms()
        if response_id is not None and response_id != rmnode.response_id:
            return self._answer_out_of_turn(rmnode, response_id)
        context.post(RMNodeStatusEvent(node, launched, finished, healthy, running, resized, health_report))
        response = _answer(rmnode)
        if response_id is not None:
            rmnode.response_id += 1
            response = rmnode.last_response = response._replace(response_id=rmnode.response_id)
        return response

    def unregister_node(self, node: str) -> None:
        """A node shuts down by itself. Ignored if the node is not active."""
        context = self._context
        if node in context.nodes:
            context.nm_liveliness_monitor.unregister(node)
            context.post(RMNodeEvent(RMNodeEventType.SHUTDOWN, node))

    def _answer_out_of_turn(self, node: RMNode, response_id: int) -> HeartbeatResponse:
        if node.last_response is not None and response_id == node.response_id - 1:
            last: HeartbeatResponse = node.last_response
            return last
        self._context.nm_liveliness_monitor.unregister(node.entity)
        self._context.post(RMNodeEvent(RMNodeEventType.REBOOTING, node.entity))
        return _RESYNC

    def _answer_inactive(self, node: str) -> HeartbeatResponse:
        gone = self._context.inactive_nodes.get(node)
        is_out = gone is not None and gone.state is RMNodeState.DECOMMISSIONED
        return _RESYNC if self._nodes_list.is_valid_node(node.rpartition(":")[0]) and not is_out else _SHUT_DOWN


def _answer(node: RMNode) -> HeartbeatResponse:
    """Take the node's waiting orders."""
    if not (node.to_clean or node.apps_to_clean or node.to_forget or node.to_signal or node.to_update):
        return _NOTHING_TO_DO
    response = HeartbeatResponse(
        frozenset(node.to_clean),
        node.apps_to_clean,
        NodeAction.NORMAL,
        node.to_signal,
        node.to_update,
        node.to_forget,
    )
    node.to_clean, node.apps_to_clean, node.to_signal, node.to_update, node.to_forget = set(), [], [], {}, []
    return response
