"""Which hosts may have nodes, after YARN's NodesListManager, and how long a graceful decommissioning may take.

Threading: handler thread only (invariant 1).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from statemachines.factory import InvalidStateTransitionError
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.services import NodesListManagerEvent, NodesListManagerEventType
from statemachines.resourcemanager.machines.liveliness import DeadlineMonitor
from statemachines.resourcemanager.machines.rmnode import UNKNOWN_PORT, RMNode, RMNodeState
from statemachines.resourcemanager.machines.rmnode_table import FACTORY
from statemachines.resourcemanager.records.node_spec import NodeSpec
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.records.stored_state import HostDrain, HostLists, Origin

log: logging.Logger = logging.getLogger(__name__)

UNTRACKED_KEPT_MS = 60_000
"""How long an untracked node is remembered; YARN's default."""


class DecommissioningNodesWatcher:
    """YARN's class of that name: decommissions nodes at their timeout. Idle ones leave earlier by a heartbeat."""

    def __init__(self, context: RMContext) -> None:
        self._context = context
        self._began_ms: dict[str, int] = {}
        self.monitor: DeadlineMonitor = DeadlineMonitor("DecommissioningNodesWatcher", context.now_ms, self._expire)

    def watch(self, node_id: str, timeout_s: int | None, began_ms: int | None = None) -> None:
        """Begin to watch, or change the timeout, which counts from `began_ms`, or the first call. None: no timeout."""
        began_ms = self._began_ms.setdefault(node_id, self._context.now_ms() if began_ms is None else began_ms)
        if timeout_s is None:
            self.monitor.unregister(node_id)
        else:
            self.monitor.register(node_id, began_ms + timeout_s * 1000)

    def unwatch(self, node_id: str) -> None:
        """End the watch, if any: the node has left or was recommissioned."""
        if self._began_ms.pop(node_id, None) is not None:
            self.monitor.unregister(node_id)

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._began_ms

    def _expire(self, node_id: str) -> None:
        del self._began_ms[node_id]
        node = self._context.nodes.get(node_id)
        if node is not None and node.state is RMNodeState.DECOMMISSIONING:
            self._context.post(RMNodeEvent(RMNodeEventType.DECOMMISSION, node_id))


class NodesListManager:
    """The included and excluded hosts. Notes each change of a node for the masters.

    Excluded hosts may have no nodes. If any host is included, only included ones may; a host on neither list is then
    untracked: its nodes are shut down, and forgotten after a while. A listed host whose nodes have never registered is
    counted by a placeholder among the inactive nodes: an excluded one at once, an included one after the nodes' expiry
    interval.
    """

    def __init__(self, context: RMContext) -> None:
        self._context = context
        self.included: set[str] = set()
        self.excluded: set[str] = set()
        self.drains: dict[str, HostDrain] = {}  # by excluded host, if it was excluded gracefully
        self.origins: dict[str, Origin] = {}  # by excluded host: since when, and by whom
        self.included_by: Origin | None = None  # of the included hosts, once they were changed
        self.unusable: set[str] = set()  # nodes
        self.decommissioning_watcher: DecommissioningNodesWatcher = DecommissioningNodesWatcher(context)
        self._untracked = DeadlineMonitor("UntrackedNodes", context.now_ms, self._forget)
        self._awaited = DeadlineMonitor("AwaitedNodes", context.now_ms, self._lose)  # hosts

    @property
    def monitors(self) -> tuple[DeadlineMonitor, ...]:
        return (self.decommissioning_watcher.monitor, self._untracked, self._awaited)

    def is_valid_node(self, host: str) -> bool:
        """Whether the host may have nodes."""
        return host not in self.excluded and (not self.included or host in self.included)

    def may_go_on(self, node: RMNode) -> bool:
        """Whether an active node may report. A DECOMMISSIONING node may although its host is excluded."""
        if not (self.excluded or self.included):
            return True
        return self.is_valid_node(node.spec.host) or node.entity in self.decommissioning_watcher

    def is_untracked(self, host: str) -> bool:
        """Whether the host is on neither list while some hosts are included."""
        return bool(self.included) and host not in self.included and host not in self.excluded

    def handle(self, event: NodesListManagerEvent) -> None:
        node_id, type_ = event.entity, event.type
        if type_ is NodesListManagerEventType.NODE_UNUSABLE:
            self.unusable.add(node_id)
            self.decommissioning_watcher.unwatch(node_id)
            self._note_whether_untracked(node_id)
        elif type_ is NodesListManagerEventType.NODE_USABLE:
            self.unusable.discard(node_id)
            # The node of an excluded host is about to be decommissioned: without the watch it would be shut down.
            if node_id.rpartition(":")[0] not in self.excluded:
                self.decommissioning_watcher.unwatch(node_id)
        else:
            node = self._context.nodes.get(node_id)
            if node is not None:
                self.decommissioning_watcher.watch(node_id, node.decommission_timeout_s)
        self._context.node_changes.note(node_id, type_)

    # -- the lists ----------------------------------------------------------------------------------------------------

    def exclude(
        self,
        hosts: Iterable[str],
        origin: Origin | None = None,
        *,
        graceful: bool = False,
        timeout_s: int | None = None,
    ) -> None:
        """Exclude these hosts, and decommission their nodes.

        `graceful` waits until their applications have ended, at most `timeout_s` (None: no limit). For a
        DECOMMISSIONING node this changes the timeout.
        """
        new, now_ms = set(hosts), self._context.now_ms()
        self.excluded |= new
        for host in new:
            if origin is not None:
                self.origins[host] = origin
            before = self.drains.pop(host, None)
            if graceful:
                self.drains[host] = HostDrain(now_ms if before is None else before.began_ms, timeout_s)
        for node in list(self._context.nodes.values()):
            if node.spec.host in new:
                self._decommission(node, graceful, timeout_s)
        for host in sorted(new - self._known_hosts()):
            self._add_placeholder(host, RMNodeEventType.DECOMMISSION)
        self._review_inactive()

    def readmit(self, hosts: Iterable[str]) -> None:
        """Admit excluded hosts again: DECOMMISSIONING nodes stay in service, others may register."""
        readmitted = set(hosts)
        self.excluded -= readmitted
        for host in readmitted:
            self.drains.pop(host, None)
            self.origins.pop(host, None)
        watcher = self.decommissioning_watcher
        for node in self._context.nodes.values():
            # A watched node is DECOMMISSIONING, or about to be.
            if node.spec.host in readmitted and (node.entity in watcher or node.state is RMNodeState.DECOMMISSIONING):
                watcher.unwatch(node.entity)  # at once: the timeout may expire before the event is handled
                self._post(node, RMNodeEventType.RECOMMISSION)
        for node in list(self._context.inactive_nodes.values()):
            if node.spec.port == UNKNOWN_PORT and node.spec.host in readmitted:
                self._forget(node.entity)
        self._await_included()
        self._review_inactive()

    def include(self, hosts: Iterable[str], origin: Origin | None = None) -> None:
        """Admit these hosts only; with none, all that are not excluded."""
        self.included, self.included_by = set(hosts), origin
        for node in self._context.nodes.values():
            if self.is_untracked(node.spec.host):
                self._post(node, RMNodeEventType.SHUTDOWN)
        self._await_included()
        self._review_inactive()

    def to_store(self) -> HostLists:
        """Return the lists as `restore` takes them."""
        return HostLists(
            tuple(sorted(self.included)),
            tuple(sorted(self.excluded)),
            dict(self.drains),
            dict(self.origins),
            self.included_by,
        )

    def restore(self, lists: HostLists) -> None:
        """Take the lists that were stored, before any node registers."""
        self.included, self.excluded, self.drains = set(lists.included), set(lists.excluded), dict(lists.drains)
        self.origins, self.included_by = dict(lists.origins), lists.included_by
        for host in lists.excluded:
            self._add_placeholder(host, RMNodeEventType.DECOMMISSION)
        self._await_included()

    def unfinished_drain(self, node_id: str, host: str) -> HostDrain | None:
        """The graceful decommissioning of a host that was interrupted by a restart; None: none, or it is over.

        It goes on with each node's first registration, before its timeout.
        """
        drain = self.drains.get(host)
        if drain is None or node_id in self._context.inactive_nodes:
            return None
        is_over = drain.timeout_s is not None and drain.began_ms + drain.timeout_s * 1000 <= self._context.now_ms()
        return None if is_over else drain

    def resume(self, node_id: str, drain: HostDrain) -> None:
        """Go on to decommission a node that has just registered."""
        self.decommissioning_watcher.watch(node_id, drain.timeout_s, drain.began_ms)
        self._context.post(RMNodeEvent(RMNodeEventType.GRACEFUL_DECOMMISSION, node_id, drain.timeout_s))

    def _decommission(self, node: RMNode, graceful: bool, timeout_s: int | None) -> None:
        if not graceful:
            self._post(node, RMNodeEventType.DECOMMISSION)
            return
        # At once: otherwise a heartbeat that comes before the event would be refused.
        self.decommissioning_watcher.watch(node.entity, timeout_s)
        # Also if it is DECOMMISSIONING with this timeout: its RECOMMISSION may be queued.
        self._context.post(RMNodeEvent(RMNodeEventType.GRACEFUL_DECOMMISSION, node.entity, timeout_s))

    def _post(self, node: RMNode, type: RMNodeEventType) -> None:
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
            self._context.recorder.forgotten(node.machine, node.state, node.entity)


_NEW: Final = RMNodeState.NEW
_STARTED: Final = RMNodeEventType.STARTED


class NodeEventDispatcher:
    """Dispatches each RMNodeEvent to the active node, else to the inactive one.

    An inactive node takes few events. An active one that is NEW takes only its STARTED, which was posted when it was
    made: whatever else comes before that was meant for its predecessor. The others are dropped: nothing is left to
    clean up there, and a node that registers again is sent its orders again.
    """

    def __init__(self, context: RMContext) -> None:
        self._nodes = context.nodes
        self._inactive = context.inactive_nodes

    def handle(self, event: RMNodeEvent[Any]) -> None:
        node = self._nodes.get(event.entity)
        if node is not None:
            machine = node.state_machine
            if machine.current_state is not _NEW or event.type is _STARTED:
                try:  # Entity.handle inlined: each heartbeat passes here
                    machine.do_transition(event.type, event)
                except InvalidStateTransitionError:
                    return
                return
        else:
            node = self._inactive.get(event.entity)
            if node is not None and (node.state, event.type) in _TAKEN_OUT_OF_SERVICE:
                node.handle(event)
                return
        log.debug("%r is dropped: its node is gone", event)


_OUT_OF_SERVICE = frozenset({RMNodeState.DECOMMISSIONED, RMNodeState.LOST, RMNodeState.REBOOTED, RMNodeState.SHUTDOWN})
_TAKEN_OUT_OF_SERVICE = frozenset(
    (row.from_state, row.event) for row in FACTORY.transitions() if row.from_state in _OUT_OF_SERVICE
)
