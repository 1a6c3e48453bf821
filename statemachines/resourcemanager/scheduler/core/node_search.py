"""The search for a node with room. It examines a node again only after the node has got more room.

Nodes are kept in a list; a node that gets more room moves to the end. For each NodeRequirements the search remembers
an index before which no node fits: those nodes' free amounts have only shrunk since they were examined. Each search
continues where the previous one ended, so its cost depends on how often nodes get room, not on the number of nodes.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.requirements import NodeRequirements

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
        order, start = self._order, self._starts.get(requirements, 0)
        end = len(order)
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
