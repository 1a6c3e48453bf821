"""How long a graceful decommissioning may take, after YARN's DecommissioningNodesWatcher. Handler thread only."""

from __future__ import annotations

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.machines.rmnode import RMNodeState
from statemachines.resourcemanager.services.liveliness import DeadlineMonitor


class DecommissioningNodesWatcher:
    """Decommissions nodes whose timeout is over. A node without applications leaves by its own report before that."""

    def __init__(self, context: RMContext) -> None:
        self._context = context
        self._began_ms: dict[str, int] = {}
        self.monitor = DeadlineMonitor("DecommissioningNodesWatcher", context.now_ms, self._expire)

    def watch(self, node_id: str, timeout_s: int | None) -> None:
        """Begin to watch, or change the timeout, which counts from the beginning. None: no timeout."""
        began_ms = self._began_ms.setdefault(node_id, self._context.now_ms())
        if timeout_s is None:
            self.monitor.unregister(node_id)
        else:
            self.monitor.register(node_id, began_ms + timeout_s * 1000)

    def unwatch(self, node_id: str) -> None:
        """The node has left, or stays; nothing if it is not watched."""
        if self._began_ms.pop(node_id, None) is not None:
            self.monitor.unregister(node_id)

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._began_ms

    def _expire(self, node_id: str) -> None:
        del self._began_ms[node_id]
        node = self._context.nodes.get(node_id)
        if node is not None and node.state is RMNodeState.DECOMMISSIONING:
            self._context.post(RMNodeEvent(RMNodeEventType.DECOMMISSION, node_id))
