"""How pending asks get containers, event-driven and on heartbeats, in which order.

An ask waits for one of three things: room on a node, a queue below its maximum, or its user within the user limit. All
asks of one user of a leaf with the same requirements wait for the same: a node fits all or none, and limits allow all
or none. They form one UserAsks, which is in one WaitSet (wait_sets.py): for room or for a queue, together with all
others of the same requirements; for the user limit, with all others of the leaf, sorted by their users' usage.

So no event examines asks that it does not help. A node with new room helps the first asks of the wait sets for room
whose requirements it meets; a queue that uses less helps the wait sets for that queue; a user that uses less, or a
higher user limit, helps the leaf's users that are within the limit now. UserAsks that may be servable, but were not
checked yet, are unblocked. Once everything possible is served, nothing is unblocked: a new ask within its limits may
take the first node found, before all pending asks.

Wait sets whose asks may be served now are ready sets. They are merged in order of service: leaves level by level, by
priority and utilisation; within a leaf by its ordering policy; within an application by the priority of its asks. An
ask taken from a ready set is assigned a node, or its UserAsks moves to the wait set for what it lacks next.

A reservation counts against the limits, and an ask may be beyond them only for its own. As with YARN's
`reservations-continue-look-all-nodes`, such asks go on looking: their UserAsks keeps waiting for room, and those with a
reservation take a node that has room, in exchange for the reservation.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from statemachines.resourcemanager.scheduler.capacity.limits import full_queue, is_user_full
from statemachines.resourcemanager.scheduler.capacity.queue_applications import app_of
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, Queue
from statemachines.resourcemanager.scheduler.capacity.wait_sets import (
    QueueAsks,
    UserAsks,
    UserAsksName,
    WaitSet,
    service_key,
    user_asks_name,
)
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, amounts_of
from statemachines.resourcemanager.scheduler.core.application import (
    AppPlacementAllocator,
    PendingAsk,
    SchedulerApplicationAttempt,
    SchedulingOpportunity,
)
from statemachines.resourcemanager.scheduler.core.node import NodeRequirements, SchedulerNode
from statemachines.resourcemanager.scheduler.core.node_tracker import ClusterNodeTracker
from statemachines.resourcemanager.scheduler.core.policy import Assignment


@dataclass(slots=True, eq=False)
class ReadySet:
    """A wait set whose asks may be served now."""

    wait_set: WaitSet
    requirements: NodeRequirements | None = None  # if the asks wait for room
    nodes: list[SchedulerNode] | None = None  # the only nodes that may have room for them; None: all may
    is_done: bool = False  # none of its asks can be served in this round

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


class ContainerAllocator:
    """The capacity scheduler's order of service: assigns pending asks to nodes, and tracks which limits have grown."""

    # All fields are guarded by the scheduler's lock.
    def __init__(self, nodes: ClusterNodeTracker, *, looks_on: bool) -> None:
        """`looks_on`: asks with a reservation go on looking."""
        self.asks: QueueAsks = QueueAsks(nodes)
        self._nodes = nodes
        self.unreserved: Amounts | None = () if looks_on else None  # never changes
        self._holders: dict[UserAsksName, dict[AppPlacementAllocator, None]] = {}  # with reservations; never empty ones
        self._shrunk: dict[str, dict[Queue, None]] = {}  # queues whose usage fell and that asks wait for; by partition

    # -- limits that have grown ---------------------------------------------------------------------------------------

    def usage_shrank(self, leaf: LeafQueue, partition: str, user: str) -> None:
        self._queues_shrank(leaf.lineage, partition)
        waiting = self.asks.for_user_limit(leaf, partition)
        if waiting is not None:
            for user_asks in waiting.within_limit_of(user):
                self.asks.unblock(user_asks)

    def user_limits_grew(self, leaf: LeafQueue, partition: str, *, beyond_guarantee: bool = False) -> None:
        """The limit of all users may have grown; `beyond_guarantee`: only if the queue uses at least its guarantee."""
        waiting = self.asks.for_user_limit(leaf, partition)
        if waiting is None:
            return
        share = leaf.share(partition)
        if not beyond_guarantee or share.used_share >= share.guarantee:
            for user_asks in waiting.within_limit():
                self.asks.unblock(user_asks)

    def partition_resized(self, partition: str, queues: Iterable[Queue]) -> None:
        """The partition's size has changed, and with it all limits there."""
        queues = list(queues)
        self._queues_shrank(queues, partition)
        for queue in queues:
            if isinstance(queue, LeafQueue):
                waiting = self.asks.for_user_limit(queue, partition)
                if waiting is not None:
                    waiting.resized()
                    self.user_limits_grew(queue, partition)

    def _queues_shrank(self, queues: Iterable[Queue], partition: str) -> None:
        asks = self.asks
        if asks.has_for_queue(partition):
            for queue in queues:
                if asks.for_queue(queue, partition):
                    self._shrunk.setdefault(partition, {})[queue] = None

    # -- event-driven -------------------------------------------------------------------------------------------------

    @property
    def has_servable(self) -> bool:
        """Whether asks might be served without new room on a node."""
        return bool(self._shrunk) or self.asks.has_unblocked

    def may_allocate(self, attempt: SchedulerApplicationAttempt, requirements: NodeRequirements) -> bool:
        """True only if all servable asks have been served, and this one does not change what the others may have."""
        asks, partition, app = self.asks, requirements.partition, app_of(attempt)
        leaf, user = app.leaf, app.user
        if self.has_servable or asks.for_room(requirements) or asks.for_user_limit(leaf, partition) is not None:
            return False
        amounts = amounts_of(requirements.resource)
        if full_queue(leaf, partition, amounts) is not None:
            return False
        return not is_user_full(leaf, user, partition, amounts, newly_active=0 if leaf.users[user].asks else 1)

    def assign_containers(self, freed: Sequence[SchedulerNode]) -> Iterator[Assignment]:
        if len(freed) == 1 and not self.has_servable:
            # The usual case: one container has ended, and there is room for one.
            ready_sets = self._ready_on(freed)
            if not ready_sets:
                return
            if len(ready_sets) == 1:
                ready = ready_sets[0]
                user_asks = ready.wait_set.first(first_leaf(ready.wait_set.leaves, freed[0].partition))
                assert user_asks is not None  # every leaf of a wait set has asks
                assignment = self._assign(ready, user_asks, freed[0])
                if assignment is not None:
                    yield assignment
                    if ready.find_node() is None and not self.has_servable:
                        return
        by_partition: dict[str, list[SchedulerNode]] = {}
        for node in freed:
            by_partition.setdefault(node.partition, []).append(node)
        while partitions := [*by_partition, *self._shrunk, *self.asks.unblocked_partitions()]:
            # Serving one partition may unblock asks in another: a user limit depends on the active users of all.
            yield from self._assign_in(partitions[0], by_partition.pop(partitions[0], []))

    def _assign_in(self, partition: str, freed: list[SchedulerNode]) -> Iterator[Assignment]:
        ready_sets = self._ready_on(freed)
        for queue in self._shrunk.pop(partition, ()):
            for wait_set in self.asks.for_queue(queue, partition):
                if queue.share(partition).has_room(wait_set.amounts):
                    ready_sets.append(ReadySet(wait_set))
        unblocked = ReadySet(self.asks.unblocked_in(partition))
        if not (ready_sets or unblocked.wait_set):
            return
        order = ServiceOrder(partition, [*ready_sets, unblocked])
        while (taken := order.take()) is not None:
            ready, user_asks, node = taken
            leaf = user_asks.leaf
            assignment = self._assign(ready, user_asks, node)
            if assignment is not None:
                yield assignment
                if ready is not unblocked:
                    order.put_back(unblocked, leaf)  # the user limit of this leaf may have grown
            order.put_back(ready, leaf)

    def _ready_on(self, freed: Iterable[SchedulerNode]) -> list[ReadySet]:
        """The wait sets for room whose requirements at least one of these nodes meets."""
        ready_sets: dict[NodeRequirements, ReadySet] = {}
        for node in freed:
            memory_mb, vcores_milli = node.free_memory_mb, node.free_vcores_milli
            for wait_sets in self.asks.for_room_on(node):
                for requirements, wait_set in wait_sets.items():
                    if (
                        requirements.memory_mb <= memory_mb
                        and requirements.vcores_milli <= vcores_milli
                        and (requirements.is_plain or requirements.fits_further(node))
                    ):
                        ready = ready_sets.get(requirements)
                        if ready is None:
                            ready_sets[requirements] = ReadySet(wait_set, requirements, [node])
                        elif ready.nodes is not None:
                            ready.nodes.append(node)
        return list(ready_sets.values())

    def _assign(self, ready: ReadySet, user_asks: UserAsks, node: SchedulerNode | None) -> Assignment | None:
        """The first of the asks and its node. None: they moved to another wait set, or the ready set is done."""
        allocator = user_asks.first()
        if node is None:
            ask = allocator.first
            node = self._nodes.find(user_asks.requirements, ask.request.host, ask.rack)
            if node is None:
                self.asks.wait_for_room(user_asks)
                return None
        if not self._is_allowed(ready, user_asks):
            return None
        chosen = allocator.choose(node)
        assert chosen is not None  # without a locality delay there always is one
        return allocator, chosen, node

    def _is_allowed(self, ready: ReadySet, user_asks: UserAsks) -> bool:
        """Whether the limits allow the asks; if not, they wait for the limit that holds them up."""
        partition = user_asks.requirements.partition
        queue = full_queue(user_asks.leaf, partition, user_asks.amounts, self.unreserved)
        if queue is not None:
            if ready.wait_set.queue is queue:
                ready.is_done = True  # the queue holds up the whole set
            else:
                self.asks.wait_for_queue(user_asks, queue)
            return False
        if is_user_full(user_asks.leaf, user_asks.user, partition, user_asks.amounts):
            self.asks.wait_for_user_limit(user_asks)
            return False
        return True

    # -- on heartbeats ------------------------------------------------------------------------------------------------

    def choose(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity
    ) -> tuple[AppPlacementAllocator, PendingAsk] | None:
        self._wait_for_heartbeats()
        order = ServiceOrder(node.partition, self._ready_on((node,)))
        return self._first(order, lambda allocator: allocator.choose(node, opportunity))

    def choose_to_reserve(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity
    ) -> AppPlacementAllocator | None:
        def choose(allocator: AppPlacementAllocator) -> PendingAsk | None:
            has_enough = allocator.reservations >= len(allocator)
            return None if has_enough else allocator.choose(node, opportunity)

        if node.free_memory_mb <= 0 or node.free_vcores_milli <= 0:
            return None  # room may be far off, and a reservation counts against the limits
        self._wait_for_heartbeats()
        ready_sets = [
            ReadySet(wait_set)
            for wait_sets in self.asks.for_room_on(node)
            for requirements, wait_set in wait_sets.items()
            if requirements.could_fit(node) and not requirements.fits(node)
        ]
        first = self._first(ServiceOrder(node.partition, ready_sets), choose, to_reserve=True)
        return first[0] if first is not None else None

    def must_unreserve(self, allocator: AppPlacementAllocator) -> bool:
        return not self._is_within(self.asks.of(allocator), self.unreserved)

    def note_holder(self, allocator: AppPlacementAllocator) -> None:
        """The allocator got or lost a reservation."""
        name, holders = user_asks_name(allocator), self._holders
        if allocator.reservations:
            holders.setdefault(name, {})[allocator] = None
            return
        del holders[name][allocator]
        if not holders[name]:
            del holders[name]

    def _wait_for_heartbeats(self) -> None:
        """Move unblocked asks, and those whose queue uses less now, to the wait sets for room."""
        asks = self.asks
        for partition, queues in self._shrunk.items():
            for queue in queues:
                for wait_set in asks.for_queue(queue, partition):
                    for user_asks in list(wait_set):
                        asks.wait_for_room(user_asks)
        self._shrunk.clear()
        for partition in asks.unblocked_partitions():
            for user_asks in list(asks.unblocked_in(partition)):
                asks.wait_for_room(user_asks)

    def _first(
        self,
        order: ServiceOrder,
        choose: Callable[[AppPlacementAllocator], PendingAsk | None],
        *,
        to_reserve: bool = False,
    ) -> tuple[AppPlacementAllocator, PendingAsk] | None:
        """The first ask that the limits and `choose` accept; `to_reserve`: a reservation is to be added."""
        asks = self.asks
        skipped: list[AppPlacementAllocator] = []
        kept: list[UserAsks] = []
        first: tuple[AppPlacementAllocator, PendingAsk] | None = None
        while first is None and (taken := order.take()) is not None:
            ready, user_asks, _ = taken
            leaf = user_asks.leaf
            if self._is_within(user_asks, None if to_reserve else self.unreserved):
                allocator = user_asks.first()
                ask = choose(allocator)
                if ask is None:
                    asks.remove(allocator)  # until the search ends
                    skipped.append(allocator)
                else:
                    first = allocator, ask
            elif self._goes_on_looking(user_asks):
                first = None if to_reserve else self._first_in_exchange(user_asks, choose)
                if first is None:
                    asks.take_out(user_asks)  # until the search ends
                    kept.append(user_asks)
            else:
                self._is_allowed(ready, user_asks)  # no: they wait for the limit
            order.put_back(ready, leaf)
        for allocator in skipped:
            asks.add(allocator)
        for user_asks in kept:
            asks.wait_for_room(user_asks)
        return first

    def _is_within(self, user_asks: UserAsks, unreserved: Amounts | None) -> bool:
        """Whether the limits allow the asks; `unreserved` is `full_queue`'s."""
        leaf, partition, amounts = user_asks.leaf, user_asks.requirements.partition, user_asks.amounts
        if full_queue(leaf, partition, amounts, unreserved) is not None:
            return False
        return not is_user_full(leaf, user_asks.user, partition, amounts, unreserved=unreserved or ())

    def _goes_on_looking(self, user_asks: UserAsks) -> bool:
        """Whether asks that may not be served as they are, or not reserve a node, still wait for room on a node."""
        if self.unreserved is None:
            return False
        return user_asks.name in self._holders or self._is_within(user_asks, self.unreserved)

    def _first_in_exchange(
        self, user_asks: UserAsks, choose: Callable[[AppPlacementAllocator], PendingAsk | None]
    ) -> tuple[AppPlacementAllocator, PendingAsk] | None:
        """The first ask that `choose` accepts, and the limits in exchange for one of its reservations."""
        if self._is_within(user_asks, user_asks.amounts):
            for allocator in sorted(self._holders[user_asks.name], key=service_key):
                ask = choose(allocator)
                if ask is not None:
                    return allocator, ask
        return None
