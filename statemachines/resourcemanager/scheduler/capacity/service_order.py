"""The members that may be served now, in the order of service.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from typing import Any

from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue
from statemachines.resourcemanager.scheduler.capacity.wait_sets import UserAsks, WaitSet
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.requirements import NodeRequirements


class ReadySet:
    """A wait_set in which somebody may be served now."""

    __slots__ = ("is_done", "nodes", "requirements", "wait_set")

    def __init__(
        self, wait_set: WaitSet, requirements: NodeRequirements | None = None, nodes: list[SchedulerNode] | None = None
    ) -> None:
        self.wait_set = wait_set
        self.requirements = requirements  # of a wait_set that waits for room
        self.nodes = nodes  # the only ones that may have it; None: any may
        self.is_done = False  # nobody in the wait_set can be served any longer

    def node(self) -> SchedulerNode | None:
        """A node with room for a wait_set that waits for it; without one the source is done."""
        assert self.nodes is not None
        assert self.requirements is not None
        for node in self.nodes:
            if self.requirements.fits(node):
                return node
        self.is_done = True
        return None


def first_leaf(leaves: Collection[LeafQueue], partition: str) -> LeafQueue:
    """The one that is served first."""
    if len(leaves) == 1:
        return next(iter(leaves))
    return min([(leaf.place(partition), leaf) for leaf in leaves])[1]


_Front = list[tuple[tuple[Any, int], int, ReadySet]]
"""The first members of one leaf in each source: the user_asks's key, the number of the entry, and the source."""
_Taken = tuple[ReadySet, UserAsks, SchedulerNode | None]


class ServiceOrder:
    """Leaves by their place, and of the one that has come to the front, the first members in each source.

    While members are served, nobody's place becomes better: what queues and applications use only grows. So a place is
    looked at again only when it has come to the front.
    """

    def __init__(self, partition: str, sources: list[ReadySet]) -> None:
        self._partition = partition
        self._sources = sources
        self._tie = 0
        self._fronts: dict[LeafQueue, _Front] = {}  # of leaves that were found to be in several sources
        self._has_moved = False  # places may not be what they were
        leaves: dict[LeafQueue, None] = {}
        for source in sources:
            for leaf in source.wait_set.leaves:
                leaves[leaf] = None
        self._leaves = [(leaf.place(partition), leaf) for leaf in leaves]  # no two leaves have the same place
        if len(self._leaves) > 1:
            heapq.heapify(self._leaves)

    def take(self) -> _Taken | None:
        """The first user_asks of all, and the node for it if it waited for room; None: there is none.

        The source has to be put back for the leaf's next user_asks.
        """
        leaves = self._leaves
        while leaves:
            noted, leaf = leaves[0]
            if self._has_moved and len(leaves) > 1:
                place = leaf.place(self._partition)
                if place != noted:
                    heapq.heapreplace(leaves, (place, leaf))
                    continue
            front = self._fronts.get(leaf)
            taken = self._first_of(leaf) if front is None else self._take_from(front, leaf)
            if taken is not None:
                return taken
            heapq.heappop(leaves)
        return None

    def put_back(self, source: ReadySet, leaf: LeafQueue) -> None:
        """Its first asks have been looked at, the leaf is the first one; there may be others of it in the set."""
        self._has_moved = True
        if source.nodes is not None and not source.is_done:
            source.node()
        front = self._fronts.get(leaf)
        if front is not None:
            self._add(front, source, source.wait_set.first(leaf))
        if not self._is_open():
            self._leaves.clear()

    def _first_of(self, leaf: LeafQueue) -> _Taken | None:
        """Of a leaf that is not known to be in several sources; if it is, it gets a front."""
        found: _Taken | None = None
        for source in self._sources:
            user_asks = None if source.is_done else source.wait_set.first(leaf)
            if user_asks is None:
                continue
            if found is not None:
                front = self._fronts[leaf] = []
                for each in self._sources:
                    self._add(front, each, each.wait_set.first(leaf))
                return self._take_from(front, leaf)
            node = None
            if source.nodes is None or (node := source.node()) is not None:
                found = source, user_asks, node
        return found

    def _take_from(self, front: _Front, leaf: LeafQueue) -> _Taken | None:
        while front:
            noted, _, source = heapq.heappop(front)
            node = None
            if source.is_done or (source.nodes is not None and (node := source.node()) is None):
                continue
            user_asks = source.wait_set.first(leaf)
            if user_asks is None:
                continue
            if front and user_asks.key > noted:
                self._add(front, source, user_asks)
                continue
            return source, user_asks, node
        return None

    def _add(self, front: _Front, source: ReadySet, user_asks: UserAsks | None) -> None:
        if user_asks is not None and not source.is_done:
            self._tie += 1
            heapq.heappush(front, (user_asks.key, self._tie, source))

    def _is_open(self) -> bool:
        """Whether there is a source in which anybody may still be served."""
        for source in self._sources:  # noqa: SIM110 - this is asked very often, and `any` costs more
            if not source.is_done and source.wait_set:
                return True
        return False
