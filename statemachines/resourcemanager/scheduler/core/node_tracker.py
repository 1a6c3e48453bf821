"""The scheduler's nodes by id, host, rack and partition, and the search among them; after YARN's ClusterNodeTracker.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Iterator

from statemachines.resourcemanager.scheduler.core.node import Free, SchedulerNode
from statemachines.resourcemanager.scheduler.core.node_search import NodeSearch
from statemachines.resourcemanager.scheduler.core.requirements import NodeRequirements


class _NodeSearches:
    """Nodes without GPUs, and nodes with: asks without GPUs use a GPU node only if no other has room."""

    def __init__(self) -> None:
        self.plain = NodeSearch()
        self.gpu = NodeSearch()

    def of(self, node: SchedulerNode) -> NodeSearch:
        return self.gpu if node.has_gpus else self.plain

    def find(self, requirements: NodeRequirements) -> SchedulerNode | None:
        if requirements.gpus:
            return self.gpu.find(requirements)
        node = self.plain.find(requirements)
        return node if node is not None or not self.gpu else self.gpu.find(requirements)


class _Partition:
    """The nodes of one partition, except draining ones."""

    def __init__(self) -> None:
        self.nodes = _NodeSearches()
        self.racks: dict[str, set[SchedulerNode]] = {}
        self._rack_nodes: dict[str, _NodeSearches] = {}  # only racks that have been searched

    def add(self, node: SchedulerNode) -> None:
        self.racks.setdefault(node.rack, set()).add(node)
        self.nodes.of(node).add(node)
        if node.rack in self._rack_nodes:
            self._rack_nodes[node.rack].of(node).add(node)

    def remove(self, node: SchedulerNode) -> None:
        rack = self.racks[node.rack]
        rack.remove(node)
        self.nodes.of(node).remove(node)
        if node.rack in self._rack_nodes:
            self._rack_nodes[node.rack].of(node).remove(node)
        if not rack:
            del self.racks[node.rack]
            self._rack_nodes.pop(node.rack, None)

    def grown(self, node: SchedulerNode) -> None:
        self.nodes.of(node).grown(node)
        if node.rack in self._rack_nodes:
            self._rack_nodes[node.rack].of(node).grown(node)

    def find_in_rack(self, requirements: NodeRequirements, rack: str) -> SchedulerNode | None:
        if rack not in self.racks:
            return None
        nodes = self._rack_nodes.get(rack)
        if nodes is None:
            nodes = self._rack_nodes[rack] = _NodeSearches()
            for node in sorted(self.racks[rack], key=lambda node: node.node_id):
                nodes.of(node).add(node)
        return nodes.find(requirements)


class ClusterNodeTracker:
    """All nodes. `find` never returns a draining one.

    `is_searched`: False for a scheduler that assigns on heartbeats. It does not use `find`, and `freed` stays empty.
    """

    # All fields are guarded by the scheduler's lock.
    def __init__(self, is_searched: bool = True) -> None:
        self.is_searched = is_searched
        self.freed: dict[SchedulerNode, Free | None] = {}  # open nodes with new room not yet passed to the searches
        self._nodes: dict[str, SchedulerNode] = {}
        self._by_host: dict[str, list[SchedulerNode]] = {}
        self._partitions: dict[str, _Partition] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[SchedulerNode]:
        return iter(self._nodes.values())

    def get(self, node_id: str) -> SchedulerNode | None:
        return self._nodes.get(node_id)

    def rack_of(self, host: str) -> str | None:
        nodes = self._by_host.get(host)
        return nodes[0].rack if nodes else None

    def add(self, node: SchedulerNode) -> None:
        self._nodes[node.node_id] = node
        self._by_host.setdefault(node.host, []).append(node)
        self.open(node)

    def remove(self, node: SchedulerNode) -> None:
        self.close(node)
        del self._nodes[node.node_id]
        on_host = self._by_host[node.host]
        on_host.remove(node)
        if not on_host:
            del self._by_host[node.host]

    def close(self, node: SchedulerNode) -> None:
        """Hide the node from searches until `open`: it drains, or its partition or capacity is about to change."""
        self.freed.pop(node, None)
        if self.is_searched and not node.is_draining:
            partition = self._partitions[node.partition]
            partition.remove(node)
            if not partition.racks:
                del self._partitions[node.partition]

    def open(self, node: SchedulerNode) -> None:
        if self.is_searched and not node.is_draining:
            self._partitions.setdefault(node.partition, _Partition()).add(node)

    # -- room ---------------------------------------------------------------------------------------------------------

    def note_freed(self, node: SchedulerNode, *, is_compared: bool = False) -> None:
        """The node gets more room. `is_compared`: call before it does; `settle_freed` compares what is free."""
        if self.is_searched and not node.is_draining and node not in self.freed:
            self.freed[node] = node.free() if is_compared else None

    def settle_freed(self) -> None:
        """All pending asks have been offered the freed nodes: pass the room that is left to the searches."""
        freed, self.freed = self.freed, {}
        for node, before in freed.items():
            # After a container has replaced one of the same size, the node needs no new search.
            if before is None or node.has_more_than(before):
                self._partitions[node.partition].grown(node)

    def find(
        self, requirements: NodeRequirements, host: str | None = None, rack: str | None = None
    ) -> SchedulerNode | None:
        """A node that meets the requirements: on `host` if possible, else in `rack`, else anywhere."""
        if self.freed:
            for node in self.freed:
                self._partitions[node.partition].grown(node)
            self.freed.clear()
        if requirements.host is not None:
            return self._find_on_host(requirements, requirements.host)
        partition = self._partitions.get(requirements.partition)
        if partition is None:
            return None
        if requirements.rack is not None:
            return partition.find_in_rack(requirements, requirements.rack)
        if host is not None and (on_host := self._find_on_host(requirements, host)) is not None:
            return on_host
        found = partition.nodes.find(requirements)
        if found is None or rack is None or found.rack == rack:
            return found
        return partition.find_in_rack(requirements, rack) or found

    def _find_on_host(self, requirements: NodeRequirements, host: str) -> SchedulerNode | None:
        for node in self._by_host.get(host, ()):
            if node.partition == requirements.partition and not node.is_draining and requirements.fits(node):
                return node
        return None
