"""The UserAsks of several wait sets in the order of service; see container_allocator.py.

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
    """A wait set in which asks may be served now."""

    __slots__ = ("is_done", "nodes", "requirements", "wait_set")

    def __init__(
        self,
        wait_set: WaitSet,
        requirements: NodeRequirements | None = None,
        nodes: list[SchedulerNode] | None = None,
    ) -> None:
        self.wait_set = wait_set
        self.requirements = requirements  # of asks that wait for room
        self.nodes = nodes  # the only ones that may have room for them; None: any may
        self.is_done = False  # no ask in the set can be served any longer

    def find_node(self) -> SchedulerNode | None:
        """A node with room for asks that wait for it; if there is none, the set is done."""
        assert self.nodes is not None
        assert self.requirements is not None
        for node in self.nodes:
            if self.requirements.fits(node):
                return node
        self.is_done = True
        return None


def first_leaf(leaves: Collection[LeafQueue], partition: str) -> LeafQueue:
    """The leaf that is served first."""
    if len(leaves) == 1:
        return next(iter(leaves))
    return min([(leaf.place(partition), leaf) for leaf in leaves])[1]


_Heads = list[tuple[tuple[Any, int], int, ReadySet]]
"""A heap of the ready sets of one leaf: the key of the first UserAsks, the number of the entry, and the set."""
_Taken = tuple[ReadySet, UserAsks, SchedulerNode | None]


class ServiceOrder:
    """A heap of leaves by their places; for the first leaf, a heap of its ready sets if there are several.

    While asks are served, no place becomes better: what queues and applications use only grows. So a place is compared
    again only when it has come to the front.
    """

    def __init__(self, partition: str, ready_sets: list[ReadySet]) -> None:
        self._partition = partition
        self._ready_sets = ready_sets
        self._entries = 0  # so far: ready sets are not compared
        self._heads: dict[LeafQueue, _Heads] = {}  # of leaves that were found to be in several sets
        self._has_moved = False  # places may not be what they were
        leaves: dict[LeafQueue, None] = {}
        for ready in ready_sets:
            for leaf in ready.wait_set.leaves:
                leaves[leaf] = None
        self._leaves = [(leaf.place(partition), leaf) for leaf in leaves]  # no two leaves have the same place
        if len(self._leaves) > 1:
            heapq.heapify(self._leaves)

    def take(self) -> _Taken | None:
        """The first of all, and the node for it if it waited for room; None: there is none left.

        The ready set has to be put back for the leaf's next asks.
        """
        leaves = self._leaves
        while leaves:
            noted, leaf = leaves[0]
            if self._has_moved and len(leaves) > 1:
                place = leaf.place(self._partition)
                if place != noted:
                    heapq.heapreplace(leaves, (place, leaf))
                    continue
            heads = self._heads.get(leaf)
            taken = self._first_of(leaf) if heads is None else self._take_from(heads, leaf)
            if taken is not None:
                return taken
            heapq.heappop(leaves)
        return None

    def put_back(self, ready: ReadySet, leaf: LeafQueue) -> None:
        """The set's first asks of the leaf have been looked at; the leaf is the first one, and may have others."""
        self._has_moved = True
        if ready.nodes is not None and not ready.is_done:
            ready.find_node()
        heads = self._heads.get(leaf)
        if heads is not None:
            self._push(heads, ready, leaf)
        if not self._is_open():
            self._leaves.clear()

    def _first_of(self, leaf: LeafQueue) -> _Taken | None:
        """Of a leaf that is not known to be in several sets; if it is, it gets a heap."""
        found: _Taken | None = None
        for ready in self._ready_sets:
            user_asks = None if ready.is_done else ready.wait_set.first(leaf)
            if user_asks is None:
                continue
            if found is not None:
                heads = self._heads[leaf] = []
                for each in self._ready_sets:
                    self._push(heads, each, leaf)
                return self._take_from(heads, leaf)
            node = None
            if ready.nodes is None or (node := ready.find_node()) is not None:
                found = ready, user_asks, node
        return found

    def _take_from(self, heads: _Heads, leaf: LeafQueue) -> _Taken | None:
        while heads:
            noted, _, ready = heapq.heappop(heads)
            node = None
            if ready.is_done or (ready.nodes is not None and (node := ready.find_node()) is None):
                continue
            user_asks = ready.wait_set.first(leaf)
            if user_asks is None:
                continue
            if heads and user_asks.key > noted:
                self._push(heads, ready, leaf)
                continue
            return ready, user_asks, node
        return None

    def _push(self, heads: _Heads, ready: ReadySet, leaf: LeafQueue) -> None:
        user_asks = ready.wait_set.first(leaf)
        if user_asks is not None and not ready.is_done:
            self._entries += 1
            heapq.heappush(heads, (user_asks.key, self._entries, ready))

    def _is_open(self) -> bool:
        """Whether there is a set in which asks may still be served."""
        for ready in self._ready_sets:  # noqa: SIM110 - this is asked very often, and `any` costs more
            if not ready.is_done and ready.wait_set:
                return True
        return False
