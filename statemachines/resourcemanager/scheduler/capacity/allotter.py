"""Who gets room next, among those who wait in the queues.

Whenever all is done, no claim can be served: it waits for room, and no node has any for it; or for a queue or a user,
and that one has its limit. So only what has been relieved since has to be looked at: the nodes that got room, the
queues that use less, the users whose limit has grown.

Among those who can be served, queues come first by priority and by what they use of their guarantee, level by level;
within a leaf its ordering policy decides, and within an application its priorities.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from statemachines.resourcemanager.scheduler.capacity.claims import Claims
from statemachines.resourcemanager.scheduler.capacity.limits import full_queue, is_user_full
from statemachines.resourcemanager.scheduler.capacity.line import Line, Source, first_leaf
from statemachines.resourcemanager.scheduler.capacity.lots import Claim
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, Queue
from statemachines.resourcemanager.scheduler.core.amounts import amounts_of
from statemachines.resourcemanager.scheduler.core.backlog import Ask, AskGroup, Patience
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.shapes import Shape

Find = Callable[[Shape, str | None, str | None], SchedulerNode | None]
"""A node with room for the shape: on this host if it can be, else in this rack, else anywhere."""
Place = Callable[[AskGroup, Ask, SchedulerNode], None]
"""The ask gets its container on the node, and waits no longer."""


class Allotter:
    """Serves claims, and notes what has been relieved."""

    def __init__(self, find: Find, place: Place) -> None:
        self.claims = Claims()
        self._find = find
        self._place = place
        # Queues that use less than before, by partition: those of them that claims wait for.
        self._relieved: dict[str, dict[Queue, None]] = {}

    # -- what is relieved ---------------------------------------------------------------------------------------------

    def relieve(self, leaf: LeafQueue, partition: str, user: str) -> None:
        """The user has a container less in this leaf."""
        self._relieve_queues(leaf.line, partition)
        held = self.claims.held(leaf, partition)
        if held is not None:
            for claim in held.below_limit_of(user):
                self.claims.loosen(claim)

    def relieve_users(self, leaf: LeafQueue, partition: str, *, beyond_guarantee: bool = False) -> None:
        """The limit of all users may have grown; `beyond_guarantee`: only if the queue uses its guarantee, or more."""
        held = self.claims.held(leaf, partition)
        if held is None:
            return
        share = leaf.share(partition)
        if not beyond_guarantee or share.used_share >= share.guarantee:
            for claim in held.below_limit():
                self.claims.loosen(claim)

    def relieve_partition(self, partition: str, queues: Iterable[Queue]) -> None:
        """The partition has another size: all limits there are others."""
        queues = list(queues)
        self._relieve_queues(queues, partition)
        for queue in queues:
            if isinstance(queue, LeafQueue):
                held = self.claims.held(queue, partition)
                if held is not None:
                    held.resized()
                    self.relieve_users(queue, partition)

    def _relieve_queues(self, queues: Iterable[Queue], partition: str) -> None:
        claims = self.claims
        if claims.has_for_queue(partition):
            for queue in queues:
                if claims.for_queue(queue, partition):
                    self._relieved.setdefault(partition, {})[queue] = None

    # -- event-driven -------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether there are claims that might be served, though no node got room."""
        return bool(self._relieved) or self.claims.has_loose

    def may_place(self, leaf: LeafQueue, user: str, shape: Shape) -> bool:
        """Whether a new ask, which the user has made just now, may be served before any that waits.

        All have been served that could be, and the new one changes nothing for them. False: it may, or may not.
        """
        claims, partition = self.claims, shape.partition
        if self.has_work or claims.has_no_room(shape) or claims.held(leaf, partition) is not None:
            return False
        return self._is_within_limits(leaf, user, shape)

    def _is_within_limits(self, leaf: LeafQueue, user: str, shape: Shape) -> bool:
        amounts, partition = amounts_of(shape.resource), shape.partition
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
        while partitions := [*nodes, *self._relieved, *self.claims.partitions_with_loose()]:
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
        claim = source.lot.first(first_leaf(source.lot.leaves, node.partition))
        assert claim is not None  # a lot has no leaf without claims
        return self._serve_claim(source, claim, node) and source.node() is None and not self.has_work

    def _serve_partition(self, partition: str, freed: list[SchedulerNode]) -> None:
        claims = self.claims
        sources = self._with_room(freed)
        for queue in self._relieved.pop(partition, ()):
            for lot in claims.for_queue(queue, partition):
                if queue.share(partition).has_room(lot.amounts):
                    sources.append(Source(lot))
        loose = Source(claims.loose_in(partition))
        if not (sources or loose.lot):
            return
        line = Line(partition, [*sources, loose])
        while (taken := line.take()) is not None:
            source, claim, node = taken
            is_served = self._serve_claim(source, claim, node)
            if is_served and source is not loose:
                line.put_back(loose, claim.leaf)  # users of this leaf may have got a greater limit
            line.put_back(source, claim.leaf)

    def _with_room(self, freed: Iterable[SchedulerNode]) -> list[Source]:
        """Those that waited for room, and might have it on the nodes that got some."""
        sources: dict[Shape, Source] = {}
        for node in freed:
            memory_mb, vcores_milli = node.free_memory_mb, node.free_vcores_milli
            for lots in self.claims.for_room(node):
                for shape, lot in lots.items():
                    if (
                        shape.memory_mb <= memory_mb
                        and shape.vcores_milli <= vcores_milli
                        and (shape.is_plain or shape.fits_further(node))
                    ):
                        source = sources.get(shape)
                        if source is None:
                            sources[shape] = Source(lot, shape, [node])
                        elif source.nodes is not None:
                            source.nodes.append(node)
        return list(sources.values())

    def _serve_claim(self, source: Source, claim: Claim, node: SchedulerNode | None) -> bool:
        """Serve the first of the claim, or note what it waits for. True: it was served."""
        group = claim.first()
        if node is None:
            ask = group.first
            node = self._find(claim.shape, ask.request.host, ask.rack)
            if node is None:
                self.claims.wait_for_room(claim)
                return False
        if not self._passes(source, claim):
            return False
        chosen = group.choose(node)
        assert chosen is not None  # without patience somebody always takes it
        self._place(group, chosen, node)
        return True

    def _passes(self, source: Source, claim: Claim) -> bool:
        """Whether the limits let the claim pass; if not, it waits for what holds it up."""
        partition = claim.shape.partition
        queue = full_queue(claim.leaf, partition, claim.amounts)
        if queue is not None:
            if source.lot.queue is queue:
                source.is_done = True  # nor do they let any other pass, of the same shape
            else:
                self.claims.wait_for_queue(claim, queue)
            return False
        if is_user_full(claim.leaf, claim.user, partition, claim.amounts):
            self.claims.wait_for_user(claim)
            return False
        return True

    # -- on heartbeats ------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """What was relieved waits for a node's heartbeat."""
        claims = self.claims
        for partition, queues in self._relieved.items():
            for queue in queues:
                for lot in claims.for_queue(queue, partition):
                    for claim in list(lot):
                        claims.wait_for_room(claim)
        self._relieved.clear()
        for partition in claims.partitions_with_loose():
            for claim in list(claims.loose_in(partition)):
                claims.wait_for_room(claim)

    def choose(self, node: SchedulerNode, patience: Patience | None) -> tuple[AskGroup, Ask] | None:
        """Who gets room on this node next. None: nobody who may, and wants to."""
        self.settle()
        return self._first(Line(node.partition, self._with_room((node,))), lambda group: group.choose(node, patience))

    def choose_to_reserve(self, node: SchedulerNode, patience: Patience) -> AskGroup | None:
        """For whom the node is to be kept: it could take it, but has not room enough for now."""

        def wish(group: AskGroup) -> Ask | None:
            has_enough = group.reservations >= len(group)
            return None if has_enough else group.choose(node, patience)

        if node.free_memory_mb <= 0 or node.free_vcores_milli <= 0:
            return None  # it would be long until there is room, and what is reserved counts in the limits
        self.settle()
        sources = [
            Source(lot)
            for lots in self.claims.for_room(node)
            for shape, lot in lots.items()
            if shape.may_use(node) and not shape.fits(node) and node.could_fit(shape.resource, shape.gpu_models)
        ]
        first = self._first(Line(node.partition, sources), wish)
        return first[0] if first is not None else None

    def _first(self, line: Line, wish: Callable[[AskGroup], Ask | None]) -> tuple[AskGroup, Ask] | None:
        """The first in the line that the limits let pass and that has a wish."""
        passed: list[AskGroup] = []  # that have none
        first: tuple[AskGroup, Ask] | None = None
        while first is None and (taken := line.take()) is not None:
            source, claim, _ = taken
            if self._passes(source, claim):
                group = claim.first()
                ask = wish(group)
                if ask is None:
                    self.claims.set_aside(group)
                    passed.append(group)
                else:
                    first = group, ask
            line.put_back(source, claim.leaf)
        for group in passed:
            self.claims.put_back(group)
        return first
