"""The door for nodes: register, heartbeat, unregister. Handler thread only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from dispatcher.service import Service
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.errors import NodeRefusedError
from statemachines.resourcemanager.events.records import ContainerStatus, NMContainerStatus
from statemachines.resourcemanager.events.rmnode import (
    RMNodeEvent,
    RMNodeEventType,
    RMNodeReconnectEvent,
    RMNodeStartedEvent,
    RMNodeStatusEvent,
)
from statemachines.resourcemanager.machines.rmnode import RMNode, RMNodeState, node_id
from statemachines.resourcemanager.node_spec import NodeSpec
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.services.nodes_list_manager import NodesListManager


class NodeAction(Enum):
    """What a node is to do with itself."""

    NORMAL = auto()
    RESYNC = auto()
    """It is not known (any more): register again, with what it runs."""
    SHUTDOWN = auto()
    """It is not wanted: stop what it runs, and do not come back."""


class HeartbeatResponse(NamedTuple):
    """What a node is to do."""

    containers_to_clean: frozenset[str] = frozenset()
    """Stop these, if they run."""
    apps_to_clean: Sequence[str] = ()
    """These have ended: nothing of them is needed any more."""
    action: NodeAction = NodeAction.NORMAL
    containers_to_signal: Sequence[tuple[str, str]] = ()
    """(container, name of the signal), in this order."""
    containers_to_update: Mapping[str, Resource] = {}
    """Give these that size, and report it."""
    containers_to_forget: Sequence[str] = ()
    """All that is to be known of these is known."""
    response_id: int = 0
    """To be sent with the next heartbeat."""


_NOTHING_TO_DO = HeartbeatResponse()
_RESYNC = HeartbeatResponse(action=NodeAction.RESYNC)
_SHUT_DOWN = HeartbeatResponse(action=NodeAction.SHUTDOWN)


class ResourceTrackerService(Service):
    """For nodes: register, heartbeat, unregister."""

    def __init__(self, context: RMContext, nodes_list_manager: NodesListManager | None = None) -> None:
        """Without a NodesListManager all hosts may have nodes."""
        super().__init__()
        self._context = context
        self._nodes_list = nodes_list_manager or NodesListManager(context)

    def register_node(
        self,
        spec: NodeSpec,
        containers: Iterable[NMContainerStatus] = (),
        running_apps: Iterable[str] = (),
        healthy: bool = True,
    ) -> str:
        """A node begins, or comes back, with what it has; returns its id.

        Raises:
            NodeRefusedError: its host may have no nodes; the node is to shut down.
        """
        context, id_ = self._context, node_id(spec.host, spec.port)
        known = context.nodes.get(id_)
        if not (self._nodes_list.is_valid_node(spec.host) if known is None else self._nodes_list.may_go_on(known)):
            raise NodeRefusedError(spec.host)
        reports, apps = tuple(containers), tuple(running_apps)
        context.nm_liveliness_monitor.register(id_)
        if known is not None:
            known.response_id, known.last_response = 0, None
            context.post(RMNodeReconnectEvent(id_, spec, reports, apps))
            return id_
        node = context.nodes[id_] = RMNode(context, spec)
        context.post(RMNodeStartedEvent(id_, reports, apps, healthy, payload=node.payload()))
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
    ) -> HeartbeatResponse:
        """A node's report, as RMNodeStatusEvent says it; the answer takes what has waited for it.

        `response_id`: that of the last answer, 0 after registering. The one before it means that the last answer got
        lost, and it is given again, without looking at the rest. Any other is that of a node that has begun anew
        without registering: it counts as REBOOTED, and is to register. None: answers cannot get lost.
        """
        context = self._context
        rmnode = context.nodes.get(node)
        if rmnode is None:
            return self._answer_inactive(node)
        if not self._nodes_list.may_go_on(rmnode):
            return _SHUT_DOWN
        context.nm_liveliness_monitor.received_ping(node)
        if response_id is not None and response_id != rmnode.response_id:
            return self._answer_out_of_turn(rmnode, response_id)
        context.post(RMNodeStatusEvent(node, launched, finished, healthy, running, resized))
        response = _answer(rmnode)
        if response_id is not None:
            rmnode.response_id += 1
            response = rmnode.last_response = response._replace(response_id=rmnode.response_id)
        return response

    def unregister_node(self, node: str) -> None:
        """A node shuts down by itself; nothing if it is not known."""
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
    """What waits for the node, which has it with this."""
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
