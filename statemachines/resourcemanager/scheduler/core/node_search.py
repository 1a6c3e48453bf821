"""Which node has room: a search that looks at a node again only if it has got more room since.

Nodes stand in a line, and who gets more room goes to its end. Each `NodeRequirements` remembers how far down the
line it has been: whatever stands before that place does not fit, as its room has only become less. So each search goes
on where its last one ended, and what it costs depends on how often nodes get room, not on how many nodes there are.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.requirements import NodeRequirements

_CHUNK = 64
_MOST_PLACES = 4096
_MOST_FAILED = 64


class NodeSearch:
    """Nodes in the line. Every node whose room has become more must be named by `grown` before the next search."""

    def __init__(self, nodes: Iterable[SchedulerNode] = ()) -> None:
        self._line: list[SchedulerNode | None] = []  # None: who stood here has moved, or gone
        self._index: dict[SchedulerNode, int] = {}  # of each node, in the line
        self._places: dict[NodeRequirements, int] = {}  # of each requirements: nothing before this index fits
        self._failed: dict[
            NodeRequirements, None
        ] = {}  # the last ones that came to the end of the line, the latest last
        for node in nodes:
            self.add(node)

    def __len__(self) -> int:
        return len(self._index)

    def add(self, node: SchedulerNode) -> None:
        self._index[node] = len(self._line)
        self._line.append(node)

    def remove(self, node: SchedulerNode) -> None:
        self._line[self._index.pop(node)] = None

    def grown(self, node: SchedulerNode) -> None:
        """The node has more room than before."""
        line = self._line
        line[self._index[node]] = None
        self._index[node] = len(line)
        line.append(node)
        if len(line) > 2 * len(self._index) + len(self._places) + _CHUNK:
            self._close_ranks()

    def find(self, requirements: NodeRequirements) -> SchedulerNode | None:
        """A node on which the requirements fits; the next time the search begins with it."""
        line, place = self._line, self._places.get(requirements, 0)
        end = len(line)
        if place == end:
            return None
        memory_mb, vcores_milli, is_plain = requirements.memory_mb, requirements.vcores_milli, requirements.is_plain
        chunk = _CHUNK
        while place < end:
            for index, node in enumerate(line[place : place + chunk], place):
                if (
                    node is not None
                    and node.free_memory_mb >= memory_mb
                    and node.free_vcores_milli >= vcores_milli
                    and (is_plain or requirements.fits_further(node))
                ):
                    self._remember(requirements, index)
                    return node
            place += chunk
            if chunk == _CHUNK:  # it takes long: perhaps others have looked for less than this, in vain
                place, chunk = self._furthest(requirements, place), 16 * _CHUNK
        self._remember(requirements, end)
        failed = self._failed
        failed.pop(requirements, None)
        failed[requirements] = None
        if len(failed) > _MOST_FAILED:
            del failed[next(iter(failed))]
        return None

    def _remember(self, requirements: NodeRequirements, place: int) -> None:
        places = self._places
        if len(places) >= _MOST_PLACES and requirements not in places:
            places.clear()  # by_requirements come and go; those still asked for look once more
            self._failed.clear()
        places[requirements] = place

    def _furthest(self, requirements: NodeRequirements, place: int) -> int:
        """`place`, or that of a requirements that needs no more than this one."""
        places = self._places
        for other in self._failed:
            if places[other] > place and requirements.needs_all_of(other):
                place = places[other]
        return place

    def _close_ranks(self) -> None:
        """Take the gaps out of the line."""
        line: list[SchedulerNode | None] = []
        moved = [0] * (len(self._line) + 1)  # where each index is now
        for index, node in enumerate(self._line):
            moved[index] = len(line)
            if node is not None:
                self._index[node] = len(line)
                line.append(node)
        moved[-1] = len(line)
        self._line = line
        self._places = {requirements: moved[place] for requirements, place in self._places.items()}
