"""Which hosts may have nodes, and who hears what becomes of them, after YARN's NodesListManager.

Threading: handler thread only (invariant 1).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.rmapp import RMAppNodeUpdateEvent
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.services import NodesListManagerEvent, NodesListManagerEventType
from statemachines.resourcemanager.machines.rmnode import UNKNOWN_PORT, RMNode, RMNodeState
from statemachines.resourcemanager.machines.rmnode_table import FACTORY
from statemachines.resourcemanager.machines.states import END_IS_STORED
from statemachines.resourcemanager.node_spec import NodeSpec
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.services.decommissioning_nodes_watcher import DecommissioningNodesWatcher
from statemachines.resourcemanager.services.liveliness import DeadlineMonitor

log = logging.getLogger(__name__)

UNTRACKED_KEPT_MS = 60_000
"""So long an inactive node is remembered whose host is on no list any more; YARN's default."""


class NodesListManager:
    """The hosts that are included and excluded. Handles NodesListManagerEvents: all applications hear of them.

    Excluded hosts may have no nodes. With no host included, all others may; otherwise, only those that are. A host on
    neither list is untracked then: its nodes are shut down, and forgotten after a while. A host of which no node has
    ever registered has a placeholder among the inactive nodes, so that it is counted: at once if it is excluded, and
    if it is included, when a node would have been given up for its silence.
    """

    def __init__(self, context: RMContext) -> None:
        self._context = context
        self.included: set[str] = set()
        self.excluded: set[str] = set()
        self.unusable: set[str] = set()  # nodes
        self.decommissioning_watcher = DecommissioningNodesWatcher(context)
        self._untracked = DeadlineMonitor("UntrackedNodes", context.now_ms, self._forget)
        self._awaited = DeadlineMonitor("AwaitedNodes", context.now_ms, self._lose)  # hosts

    @property
    def monitors(self) -> tuple[DeadlineMonitor, ...]:
        """All that have deadlines."""
        return (self.decommissioning_watcher.monitor, self._untracked, self._awaited)

    def is_valid_node(self, host: str) -> bool:
        """Whether the host may have nodes."""
        return host not in self.excluded and (not self.included or host in self.included)

    def may_go_on(self, node: RMNode) -> bool:
        """Whether an active node may report: one that is DECOMMISSIONING may, though its host is excluded."""
        return self.is_valid_node(node.spec.host) or node.entity in self.decommissioning_watcher

    def is_untracked(self, host: str) -> bool:
        """Whether the host is on neither list, though there is one of those that may have nodes."""
        return bool(self.included) and host not in self.included and host not in self.excluded

    def handle(self, event: NodesListManagerEvent) -> None:
        node_id, type_ = event.entity, event.type
        if type_ is NodesListManagerEventType.NODE_UNUSABLE:
            self.unusable.add(node_id)
            self.decommissioning_watcher.unwatch(node_id)
            self._note_whether_untracked(node_id)
        elif type_ is NodesListManagerEventType.NODE_USABLE:
            self.unusable.discard(node_id)
            # An excluded host's node is about to be decommissioned: unwatched, it would be told to shut down instead.
            if node_id.rpartition(":")[0] not in self.excluded:
                self.decommissioning_watcher.unwatch(node_id)
        else:
            node = self._context.nodes.get(node_id)
            if node is not None:
                self.decommissioning_watcher.watch(node_id, node.decommission_timeout_s)
        for app in self._context.apps.values():
            if app.state not in END_IS_STORED:
                app.handle(RMAppNodeUpdateEvent(app.entity, node_id, type_))

    # -- the lists ----------------------------------------------------------------------------------------------------

    def exclude(self, hosts: Iterable[str], *, graceful: bool = False, timeout_s: int | None = None) -> None:
        """These hosts may have no nodes from now on: decommission those they have.

        `graceful`: not before their applications have ended, or `timeout_s` is over (None: as long as it takes); for a
        node that is DECOMMISSIONING already, this changes the timeout.
        """
        new = set(hosts)
        self.excluded |= new
        for node in list(self._context.nodes.values()):
            if node.spec.host in new:
                self._decommission(node, graceful, timeout_s)
        for host in sorted(new - self._known_hosts()):
            self._add_placeholder(host, RMNodeEventType.DECOMMISSION)
        self._review_inactive()

    def readmit(self, hosts: Iterable[str]) -> None:
        """These hosts are no longer excluded: nodes that are DECOMMISSIONING stay, others may register again."""
        readmitted = set(hosts)
        self.excluded -= readmitted
        watcher = self.decommissioning_watcher
        for node in self._context.nodes.values():
            # One that is watched is DECOMMISSIONING, or about to be.
            if node.spec.host in readmitted and (node.entity in watcher or node.state is RMNodeState.DECOMMISSIONING):
                watcher.unwatch(node.entity)  # at once: its time may be over before the event is handled
                self._tell(node, RMNodeEventType.RECOMMISSION)
        for node in list(self._context.inactive_nodes.values()):
            if node.spec.port == UNKNOWN_PORT and node.spec.host in readmitted:
                self._forget(node.entity)
        self._await_included()
        self._review_inactive()

    def include(self, hosts: Iterable[str]) -> None:
        """Only these hosts may have nodes from now on; with none, all that are not excluded may."""
        self.included = set(hosts)
        for node in self._context.nodes.values():
            if self.is_untracked(node.spec.host):
                self._tell(node, RMNodeEventType.SHUTDOWN)
        self._await_included()
        self._review_inactive()

    def _decommission(self, node: RMNode, graceful: bool, timeout_s: int | None) -> None:
        if not graceful:
            self._tell(node, RMNodeEventType.DECOMMISSION)
        elif node.state is not RMNodeState.DECOMMISSIONING or node.decommission_timeout_s != timeout_s:
            # At once: what it reports before it is told would be refused otherwise.
            self.decommissioning_watcher.watch(node.entity, timeout_s)
            self._context.post(RMNodeEvent(RMNodeEventType.GRACEFUL_DECOMMISSION, node.entity, timeout_s))

    def _tell(self, node: RMNode, type: RMNodeEventType) -> None:
        self._context.post(RMNodeEvent(type, node.entity))

    # -- hosts without nodes, and nodes without hosts -----------------------------------------------------------------

    def _known_hosts(self) -> set[str]:
        context = self._context
        return {node.spec.host for nodes in (context.nodes, context.inactive_nodes) for node in nodes.values()}

    def _add_placeholder(self, host: str, type: RMNodeEventType) -> None:
        node = RMNode(self._context, NodeSpec(host, Resource(0, 0), port=UNKNOWN_PORT))
        self._context.inactive_nodes[node.entity] = node
        node.handle(RMNodeEvent(type, node.entity))

    def _await_included(self) -> None:
        deadline_ms = self._context.now_ms() + round(self._context.config.nm_expiry_interval_s * 1000)
        for host in sorted(self.included - self.excluded - self._known_hosts()):
            if host not in self._awaited:
                self._awaited.register(host, deadline_ms)

    def _lose(self, host: str) -> None:
        if host in self.included and host not in self._known_hosts():
            self._add_placeholder(host, RMNodeEventType.EXPIRE)

    def _review_inactive(self) -> None:
        for node_id in self._context.inactive_nodes:
            self._note_whether_untracked(node_id)

    def _note_whether_untracked(self, node_id: str) -> None:
        node = self._context.inactive_nodes.get(node_id)
        if node is None:
            return
        if not self.is_untracked(node.spec.host):
            node.untracked_since_ms = None
            self._untracked.unregister(node_id)
        elif node.untracked_since_ms is None:
            node.untracked_since_ms = self._context.now_ms()
            self._untracked.register(node_id, node.untracked_since_ms + UNTRACKED_KEPT_MS)

    def _forget(self, node_id: str) -> None:
        node = self._context.inactive_nodes.pop(node_id, None)
        if node is not None:
            self.unusable.discard(node_id)
            self._context.recorder.forgotten(node.machine, node.state)


class NodeEventDispatcher:
    """Hands each RMNodeEvent to its node: the active one, else the inactive one.

    A node that has left takes little, and a new one nothing that was meant for the one before it. The rest is for
    nobody: there is nothing left to clean up there, and a node that comes back is told anew.
    """

    def __init__(self, context: RMContext) -> None:
        self._nodes = context.nodes
        self._inactive = context.inactive_nodes

    def handle(self, event: RMNodeEvent[Any]) -> None:
        node = self._nodes.get(event.entity)
        if node is None:
            node = self._inactive.get(event.entity)
        elif node.state is not RMNodeState.NEW:
            node.handle(event)
            return
        if node is not None and (node.state, event.type) in _TAKEN_OUT_OF_SERVICE:
            node.handle(event)
        else:
            log.debug("%r is for nobody: its node is gone", event)


_OUT_OF_SERVICE = frozenset(
    {RMNodeState.NEW, RMNodeState.DECOMMISSIONED, RMNodeState.LOST, RMNodeState.REBOOTED, RMNodeState.SHUTDOWN}
)
_TAKEN_OUT_OF_SERVICE = frozenset(
    (row.from_state, row.event) for row in FACTORY.transitions() if row.from_state in _OUT_OF_SERVICE
)
