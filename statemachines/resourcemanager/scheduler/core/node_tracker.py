"""The nodes that a scheduler has: by id, by host, by rack and by partition, and where there is room.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Iterator

from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.node_search import NodeSearch
from statemachines.resourcemanager.scheduler.core.requirements import NodeRequirements


class _NodeSearches:
    """Nodes without GPUs, and nodes with: those are kept for who needs them, as long as there are others."""

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
    """The nodes of one partition that take containers."""

    def __init__(self) -> None:
        self.rooms = _NodeSearches()
        self.racks: dict[str, set[SchedulerNode]] = {}
        self._rack_rooms: dict[str, _NodeSearches] = {}  # only of racks that somebody has looked for

    def add(self, node: SchedulerNode) -> None:
        self.racks.setdefault(node.rack, set()).add(node)
        self.rooms.of(node).add(node)
        if node.rack in self._rack_rooms:
            self._rack_rooms[node.rack].of(node).add(node)

    def remove(self, node: SchedulerNode) -> None:
        rack = self.racks[node.rack]
        rack.remove(node)
        self.rooms.of(node).remove(node)
        if node.rack in self._rack_rooms:
            self._rack_rooms[node.rack].of(node).remove(node)
        if not rack:
            del self.racks[node.rack]
            self._rack_rooms.pop(node.rack, None)

    def grown(self, node: SchedulerNode) -> None:
        self.rooms.of(node).grown(node)
        if node.rack in self._rack_rooms:
            self._rack_rooms[node.rack].of(node).grown(node)

    def find_in_rack(self, requirements: NodeRequirements, rack: str) -> SchedulerNode | None:
        if rack not in self.racks:
            return None
        rooms = self._rack_rooms.get(rack)
        if rooms is None:
            rooms = self._rack_rooms[rack] = _NodeSearches()
            for node in sorted(self.racks[rack], key=lambda node: node.node_id):
                rooms.of(node).add(node)
        return rooms.find(requirements)


class ClusterNodeTracker:
    """The nodes; those that drain are among them, and are never found.

    `tracks_room`: whether `find` is used. Who only offers nodes one by one need not pay for it.
    """

    def __init__(self, tracks_room: bool = True) -> None:
        self._tracks_room = tracks_room
        self._nodes: dict[str, SchedulerNode] = {}
        self._by_host: dict[str, list[SchedulerNode]] = {}
        self._partitions: dict[str, _Partition] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[SchedulerNode]:
        return iter(self._nodes.values())

    def get(self, node_id: str) -> SchedulerNode | None:
        return self._nodes.get(node_id)

    def on_host(self, host: str) -> list[SchedulerNode]:
        """The nodes of one host: one, or several under different ports."""
        return self._by_host.get(host, [])

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
        """The node is not to be found, until it is opened again; so must it be while its partition or GPUs change."""
        if self._tracks_room and not node.is_draining:
            partition = self._partitions[node.partition]
            partition.remove(node)
            if not partition.racks:
                del self._partitions[node.partition]

    def open(self, node: SchedulerNode) -> None:
        if self._tracks_room and not node.is_draining:
            self._partitions.setdefault(node.partition, _Partition()).add(node)

    def grown(self, node: SchedulerNode) -> None:
        """The node has more room than before."""
        if self._tracks_room and not node.is_draining:
            self._partitions[node.partition].grown(node)

    def find(
        self, requirements: NodeRequirements, host: str | None = None, rack: str | None = None
    ) -> SchedulerNode | None:
        """A node with room: on `host` if there is one, else in `rack`, else anywhere that the requirements allows."""
        if requirements.host is not None:
            return self._find_on_host(requirements, requirements.host)
        partition = self._partitions.get(requirements.partition)
        if partition is None:
            return None
        if requirements.rack is not None:
            return partition.find_in_rack(requirements, requirements.rack)
        if host is not None and (node := self._find_on_host(requirements, host)) is not None:
            return node
        node = partition.rooms.find(requirements)
        if node is None or rack is None or node.rack == rack:
            return node
        return partition.find_in_rack(requirements, rack) or node

    def _find_on_host(self, requirements: NodeRequirements, host: str) -> SchedulerNode | None:
        for node in self._by_host.get(host, ()):
            if node.partition == requirements.partition and not node.is_draining and requirements.fits(node):
                return node
        return None
