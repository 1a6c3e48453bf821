"""Who gets room next, among those who wait in the queues.

Whenever all is done, no ask can be served: it waits for room, and no node has any for it; or for a queue or a user,
and that one has its limit. So only what has been relieved since has to be looked at: the nodes that got room, the
queues that use less, the users whose limit has grown.

Among those who can be served, queues come first by priority and by what they use of their guarantee, level by level;
within a leaf its ordering policy decides, and within an application its priorities.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from statemachines.resourcemanager.scheduler.capacity.limits import full_queue, is_user_full
from statemachines.resourcemanager.scheduler.capacity.queue_asks import QueueAsks
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, Queue
from statemachines.resourcemanager.scheduler.capacity.service_order import ReadySet, ServiceOrder, first_leaf
from statemachines.resourcemanager.scheduler.capacity.wait_sets import UserAsks
from statemachines.resourcemanager.scheduler.core.amounts import amounts_of
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.pending_asks import (
    AppPlacementAllocator,
    PendingAsk,
    SchedulingOpportunity,
)
from statemachines.resourcemanager.scheduler.core.requirements import NodeRequirements

Find = Callable[[NodeRequirements, str | None, str | None], SchedulerNode | None]
"""A node with room for the requirements: on this host if it can be, else in this rack, else anywhere."""
Place = Callable[[AppPlacementAllocator, PendingAsk, SchedulerNode], None]
"""The ask gets its container on the node, and waits no longer."""


class ContainerAllocator:
    """Serves queue_asks, and notes what has been relieved."""

    def __init__(self, find: Find, place: Place) -> None:
        self.queue_asks = QueueAsks()
        self._find = find
        self._place = place
        # Queues that use less than before, by partition: those of them that queue_asks wait for.
        self._relieved: dict[str, dict[Queue, None]] = {}

    # -- what is relieved ---------------------------------------------------------------------------------------------

    def relieve(self, leaf: LeafQueue, partition: str, user: str) -> None:
        """The user has a container less in this leaf."""
        self._relieve_queues(leaf.lineage, partition)
        held = self.queue_asks.held(leaf, partition)
        if held is not None:
            for user_asks in held.below_limit_of(user):
                self.queue_asks.unblock(user_asks)

    def relieve_users(self, leaf: LeafQueue, partition: str, *, beyond_guarantee: bool = False) -> None:
        """The limit of all users may have grown; `beyond_guarantee`: only if the queue uses its guarantee, or more."""
        held = self.queue_asks.held(leaf, partition)
        if held is None:
            return
        share = leaf.share(partition)
        if not beyond_guarantee or share.used_share >= share.guarantee:
            for user_asks in held.below_limit():
                self.queue_asks.unblock(user_asks)

    def relieve_partition(self, partition: str, queues: Iterable[Queue]) -> None:
        """The partition has another size: all limits there are others."""
        queues = list(queues)
        self._relieve_queues(queues, partition)
        for queue in queues:
            if isinstance(queue, LeafQueue):
                held = self.queue_asks.held(queue, partition)
                if held is not None:
                    held.resized()
                    self.relieve_users(queue, partition)

    def _relieve_queues(self, queues: Iterable[Queue], partition: str) -> None:
        queue_asks = self.queue_asks
        if queue_asks.has_for_queue(partition):
            for queue in queues:
                if queue_asks.for_queue(queue, partition):
                    self._relieved.setdefault(partition, {})[queue] = None

    # -- event-driven -------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether there are queue_asks that might be served, though no node got room."""
        return bool(self._relieved) or self.queue_asks.has_unblocked

    def may_place(self, leaf: LeafQueue, user: str, requirements: NodeRequirements) -> bool:
        """Whether a new ask, which the user has made just now, may be served before any that waits.

        All have been served that could be, and the new one changes nothing for them. False: it may, or may not.
        """
        queue_asks, partition = self.queue_asks, requirements.partition
        if self.has_work or queue_asks.has_no_room(requirements) or queue_asks.held(leaf, partition) is not None:
            return False
        return self._is_within_limits(leaf, user, requirements)

    def _is_within_limits(self, leaf: LeafQueue, user: str, requirements: NodeRequirements) -> bool:
        amounts, partition = amounts_of(requirements.resource), requirements.partition
        if full_queue(leaf, partition, amounts) is not None:
            return False
        return not is_user_full(leaf, user, partition, amounts, newly_active=0 if leaf.users[user].asks else 1)

    def serve(self, freed: Sequence[SchedulerNode]) -> None:
        """Serve all that can be served, given that these nodes got room and some limits were relieved."""
        if len(freed) == 1 and not self.has_work and self._fill(freed[0]):
            return
        nodes: dict[str, list[SchedulerNode]] = {}
        for node in freed:
            nodes.setdefault(node.partition, []).append(node)
        while partitions := [*nodes, *self._relieved, *self.queue_asks.partitions_with_unblocked()]:
            # One that is served may bring an end to what others waited for: a user's limit counts active users in all.
            self._serve_partition(partitions[0], nodes.pop(partitions[0], []))

    def _fill(self, node: SchedulerNode) -> bool:
        """Nothing but this node has got room: give it to who comes first. False: there may be more to do.

        As most often one container has ended, and there is room for one.
        """
        sources = self._with_room((node,))
        if len(sources) != 1:
            return not sources
        source = sources[0]
        user_asks = source.wait_set.first(first_leaf(source.wait_set.leaves, node.partition))
        assert user_asks is not None  # a wait_set has no leaf without queue_asks
        return self._serve_user_asks(source, user_asks, node) and source.node() is None and not self.has_work

    def _serve_partition(self, partition: str, freed: list[SchedulerNode]) -> None:
        queue_asks = self.queue_asks
        sources = self._with_room(freed)
        for queue in self._relieved.pop(partition, ()):
            for wait_set in queue_asks.for_queue(queue, partition):
                if queue.share(partition).has_room(wait_set.amounts):
                    sources.append(ReadySet(wait_set))
        unblocked = ReadySet(queue_asks.unblocked_in(partition))
        if not (sources or unblocked.wait_set):
            return
        line = ServiceOrder(partition, [*sources, unblocked])
        while (taken := line.take()) is not None:
            source, user_asks, node = taken
            is_served = self._serve_user_asks(source, user_asks, node)
            if is_served and source is not unblocked:
                line.put_back(unblocked, user_asks.leaf)  # users of this leaf may have got a greater limit
            line.put_back(source, user_asks.leaf)

    def _with_room(self, freed: Iterable[SchedulerNode]) -> list[ReadySet]:
        """Those that waited for room, and might have it on the nodes that got some."""
        sources: dict[NodeRequirements, ReadySet] = {}
        for node in freed:
            memory_mb, vcores_milli = node.free_memory_mb, node.free_vcores_milli
            for wait_sets in self.queue_asks.for_room(node):
                for requirements, wait_set in wait_sets.items():
                    if (
                        requirements.memory_mb <= memory_mb
                        and requirements.vcores_milli <= vcores_milli
                        and (requirements.is_plain or requirements.fits_further(node))
                    ):
                        source = sources.get(requirements)
                        if source is None:
                            sources[requirements] = ReadySet(wait_set, requirements, [node])
                        elif source.nodes is not None:
                            source.nodes.append(node)
        return list(sources.values())

    def _serve_user_asks(self, source: ReadySet, user_asks: UserAsks, node: SchedulerNode | None) -> bool:
        """Serve the first of the user_asks, or note what it waits for. True: it was served."""
        group = user_asks.first()
        if node is None:
            ask = group.first
            node = self._find(user_asks.requirements, ask.request.host, ask.rack)
            if node is None:
                self.queue_asks.wait_for_room(user_asks)
                return False
        if not self._passes(source, user_asks):
            return False
        chosen = group.choose(node)
        assert chosen is not None  # without opportunity somebody always takes it
        self._place(group, chosen, node)
        return True

    def _passes(self, source: ReadySet, user_asks: UserAsks) -> bool:
        """Whether the limits let the user_asks pass; if not, it waits for what holds it up."""
        partition = user_asks.requirements.partition
        queue = full_queue(user_asks.leaf, partition, user_asks.amounts)
        if queue is not None:
            if source.wait_set.queue is queue:
                source.is_done = True  # nor do they let any other pass, of the same requirements
            else:
                self.queue_asks.wait_for_queue(user_asks, queue)
            return False
        if is_user_full(user_asks.leaf, user_asks.user, partition, user_asks.amounts):
            self.queue_asks.wait_for_user(user_asks)
            return False
        return True

    # -- on heartbeats ------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """What was relieved waits for a node's heartbeat."""
        queue_asks = self.queue_asks
        for partition, queues in self._relieved.items():
            for queue in queues:
                for wait_set in queue_asks.for_queue(queue, partition):
                    for user_asks in list(wait_set):
                        queue_asks.wait_for_room(user_asks)
        self._relieved.clear()
        for partition in queue_asks.partitions_with_unblocked():
            for user_asks in list(queue_asks.unblocked_in(partition)):
                queue_asks.wait_for_room(user_asks)

    def choose(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity | None
    ) -> tuple[AppPlacementAllocator, PendingAsk] | None:
        """Who gets room on this node next. None: nobody who may, and wants to."""
        self.settle()
        return self._first(
            ServiceOrder(node.partition, self._with_room((node,))), lambda group: group.choose(node, opportunity)
        )

    def choose_to_reserve(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity
    ) -> AppPlacementAllocator | None:
        """For whom the node is to be kept: it could take it, but has not room enough for now."""

        def wish(group: AppPlacementAllocator) -> PendingAsk | None:
            has_enough = group.reservations >= len(group)
            return None if has_enough else group.choose(node, opportunity)

        if node.free_memory_mb <= 0 or node.free_vcores_milli <= 0:
            return None  # it would be long until there is room, and what is reserved counts in the limits
        self.settle()
        sources = [
            ReadySet(wait_set)
            for wait_sets in self.queue_asks.for_room(node)
            for requirements, wait_set in wait_sets.items()
            if requirements.may_use(node)
            and not requirements.fits(node)
            and node.could_fit(requirements.resource, requirements.gpu_models)
        ]
        first = self._first(ServiceOrder(node.partition, sources), wish)
        return first[0] if first is not None else None

    def _first(
        self, line: ServiceOrder, wish: Callable[[AppPlacementAllocator], PendingAsk | None]
    ) -> tuple[AppPlacementAllocator, PendingAsk] | None:
        """The first in the line that the limits let pass and that has a wish."""
        passed: list[AppPlacementAllocator] = []  # that have none
        first: tuple[AppPlacementAllocator, PendingAsk] | None = None
        while first is None and (taken := line.take()) is not None:
            source, user_asks, _ = taken
            if self._passes(source, user_asks):
                group = user_asks.first()
                ask = wish(group)
                if ask is None:
                    self.queue_asks.set_aside(group)
                    passed.append(group)
                else:
                    first = group, ask
            line.put_back(source, user_asks.leaf)
        for group in passed:
            self.queue_asks.put_back(group)
        return first
