"""The scheduler's nodes by id, host, rack and partition, and the search among them; after YARN's ClusterNodeTracker.

The search examines a node again only after the node has got more room. Nodes are kept in a list; a node that gets more
room moves to the end. For each NodeRequirements the search remembers an index before which no node fits: those nodes'
free amounts have only shrunk since they were examined. Each search continues where the previous one ended, so its cost
depends on how often nodes get room, not on the number of nodes.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from statemachines.resourcemanager.records.resource import MaximumAllocation
from statemachines.resourcemanager.scheduler.core.node import Free, NodeRequirements, SchedulerNode

_CHUNK = 64
_MOST_STARTS = 4096
_MOST_FAILED = 64


class NodeSearch:
    """The nodes to search. `grown` must be called for each node that gets more room before the next search."""

    def __init__(self, nodes: Iterable[SchedulerNode] = ()) -> None:
        self._order: list[SchedulerNode | None] = []  # None: the node was moved to the end, or removed
        self._index: dict[SchedulerNode, int] = {}  # in `_order`
        self._starts: dict[NodeRequirements, int] = {}  # no node before this index fits
        self._failed: dict[NodeRequirements, None] = {}  # the most recent ones without a node, the latest last
        for node in nodes:
            self.add(node)

    def __len__(self) -> int:
        return len(self._index)

    def add(self, node: SchedulerNode) -> None:
        self._index[node] = len(self._order)
        self._order.append(node)

    def remove(self, node: SchedulerNode) -> None:
        self._order[self._index.pop(node)] = None

    def grown(self, node: SchedulerNode) -> None:
        """Note that the node has more room than before."""
        order = self._order
        order[self._index[node]] = None
        self._index[node] = len(order)
        order.append(node)
        if len(order) > 2 * len(self._index) + len(self._starts) + _CHUNK:
            self._compact()

    def find(self, requirements: NodeRequirements) -> SchedulerNode | None:
        """A node that meets the requirements; the next search for them starts with it."""
        order, starts = self._order, self._starts
        start, end = starts.get(requirements, 0), len(order)
        if start == end:
            return None
        memory_mb, vcores_milli, is_plain = requirements.memory_mb, requirements.vcores_milli, requirements.is_plain
        chunk = _CHUNK
        while start < end:
            for index, node in enumerate(order[start : start + chunk], start):
                if (
                    node is not None
                    and node.free_memory_mb >= memory_mb
                    and node.free_vcores_milli >= vcores_milli
                    and (is_plain or requirements.fits_further(node))
                ):
                    if requirements in starts:  # `_remember`, without the call
                        starts[requirements] = index
                    else:
                        self._remember(requirements, index)
                    return node
            start += chunk
            if chunk == _CHUNK:  # a long search: perhaps one for smaller requirements has failed already
                start, chunk = self._skip_failed(requirements, start), 16 * _CHUNK
        self._remember(requirements, end)
        failed = self._failed
        failed.pop(requirements, None)
        failed[requirements] = None
        if len(failed) > _MOST_FAILED:
            del failed[next(iter(failed))]
        return None

    def _remember(self, requirements: NodeRequirements, start: int) -> None:
        starts = self._starts
        if len(starts) >= _MOST_STARTS and requirements not in starts:
            starts.clear()  # most are no longer in use; searches for the others start from the beginning
            self._failed.clear()
        starts[requirements] = start

    def _skip_failed(self, requirements: NodeRequirements, start: int) -> int:
        """`start`, or the greater start of a failed search for requirements that these cover."""
        starts = self._starts
        for other in self._failed:
            if starts[other] > start and requirements.covers(other):
                start = starts[other]
        return start

    def _compact(self) -> None:
        """Remove the gaps."""
        order: list[SchedulerNode | None] = []
        moved = [0] * (len(self._order) + 1)  # old index -> new index
        for index, node in enumerate(self._order):
            moved[index] = len(order)
            if node is not None:
                self._index[node] = len(order)
                order.append(node)
        moved[-1] = len(order)
        self._order = order
        self._starts = {requirements: moved[start] for requirements, start in self._starts.items()}


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
        self.version: int = 0  # grows whenever a node comes or goes, or its total or partition changes
        self.freed: dict[SchedulerNode, Free | None] = {}  # open nodes with new room not yet passed to the searches
        self._nodes: dict[str, SchedulerNode] = {}
        self._by_host: dict[str, list[SchedulerNode]] = {}
        self._partitions: dict[str, _Partition] = {}
        self._largest: MaximumAllocation | None = MaximumAllocation()  # None: look at all nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[SchedulerNode]:
        return iter(self._nodes.values())

    def get(self, node_id: str) -> SchedulerNode | None:
        return self._nodes.get(node_id)

    def largest(self) -> MaximumAllocation:
        """What the largest nodes have, of each type by itself, draining ones included; no maximum without nodes."""
        if self._largest is None:
            self._largest = MaximumAllocation()
            for node in self._nodes.values():
                self._note_largest(node)
        return self._largest

    def _note_largest(self, node: SchedulerNode) -> None:
        if self._largest is not None:
            memory_mb, vcores_milli = self._largest.memory_mb or 0, self._largest.vcores_milli or 0
            capacity = node.capacity
            self._largest = MaximumAllocation(
                max(memory_mb, capacity.memory_mb), max(vcores_milli, capacity.vcores_milli)
            )

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
        """Hide the node from searches until `open`: its partition, its capacity, or whether it drains may change."""
        self.version += 1
        if (largest := self._largest) is not None and (
            node.capacity.memory_mb == largest.memory_mb or node.capacity.vcores_milli == largest.vcores_milli
        ):
            self._largest = None  # it may be the only one of this size
        self.freed.pop(node, None)
        if self.is_searched and not node.is_draining:
            partition = self._partitions[node.partition]
            partition.remove(node)
            if not partition.racks:
                del self._partitions[node.partition]

    def open(self, node: SchedulerNode) -> None:
        self.version += 1
        self._note_largest(node)
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
