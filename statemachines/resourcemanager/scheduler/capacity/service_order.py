"""The UserAsks of several wait sets in order of service: see container_allocator.py.

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
    """A wait set whose asks may be served now."""

    __slots__ = ("is_done", "nodes", "requirements", "wait_set")

    def __init__(
        self, wait_set: WaitSet, requirements: NodeRequirements | None = None, nodes: list[SchedulerNode] | None = None
    ) -> None:
        self.wait_set = wait_set
        self.requirements = requirements  # if the asks wait for room
        self.nodes = nodes  # the only nodes that may have room for them; None: all may
        self.is_done = False  # none of its asks can be served in this round

    def find_node(self) -> SchedulerNode | None:
        """A node with room for asks that wait for room; without one, the set is done."""
        assert self.nodes is not None
        assert self.requirements is not None
        for node in self.nodes:
            if self.requirements.fits(node):
                return node
        self.is_done = True
        return None


def first_leaf(leaves: Collection[LeafQueue], partition: str) -> LeafQueue:
    if len(leaves) == 1:
        return next(iter(leaves))
    return min([(leaf.place(partition), leaf) for leaf in leaves])[1]


_Heads = list[tuple[tuple[Any, int], int, ReadySet]]
"""A heap of one leaf's ready sets: the key of the first UserAsks, the entry's number as a tie-breaker, and the set."""
_Taken = tuple[ReadySet, UserAsks, SchedulerNode | None]


class ServiceOrder:
    """A heap of leaves by place, and for a leaf in several ready sets, a heap of these sets.

    While asks are served usage only grows, so no place improves: each is compared again only at the front.
    """

    def __init__(self, partition: str, ready_sets: list[ReadySet]) -> None:
        self._partition = partition
        self._ready_sets = ready_sets
        self._entries = 0  # so far; numbers entries, so that ready sets are never compared
        self._heads: dict[LeafQueue, _Heads] = {}  # only for leaves found in several sets
        self._has_moved = False  # noted places may be out of date
        leaves: dict[LeafQueue, None] = {}
        for ready in ready_sets:
            for leaf in ready.wait_set.leaves:
                leaves[leaf] = None
        self._leaves = [(leaf.place(partition), leaf) for leaf in leaves]  # places are unique
        if len(self._leaves) > 1:
            heapq.heapify(self._leaves)

    def take(self) -> _Taken | None:
        """The first UserAsks, with its node if it waited for room, or None.

        The caller puts the ready set back for the leaf's next asks.
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
        """The leaf's first UserAsks; builds the leaf's heap if it turns out to be in several sets."""
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
        """Whether any set still has servable asks."""
        for ready in self._ready_sets:  # noqa: SIM110 - a hot path, and `any` costs more
            if not ready.is_done and ready.wait_set:
                return True
        return False
