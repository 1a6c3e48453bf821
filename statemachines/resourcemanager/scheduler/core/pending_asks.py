"""What waits for room, and in which order it gets some.

Asks of one attempt, one priority and one `NodeRequirements` make a group: they fit together or not at all, and
differ at most in where they would rather be. Groups are served by the rank of their attempt, then by priority, then
the older first.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from bisect import bisect_left, insort_right
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

from statemachines.resourcemanager.events.records import ContainerRequest
from statemachines.resourcemanager.scheduler.core.application import SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.requirements import NodeRequirements


class PendingAsk(NamedTuple):
    """A waiting request."""

    arrival: int
    """Unique; greater is later."""
    request: ContainerRequest
    rack: str | None
    """Where it would rather be, if not on its host."""


class SchedulingOpportunity(NamedTuple):
    """How many opportunities an ask lets pass before it takes a node that it did not prefer, and which one this is."""

    number: int
    """Number of the opportunity: one is counted once, however many containers the node gets with it."""
    rack: int
    anywhere: int


class AppPlacementAllocator:
    """The waiting asks of one attempt, priority and requirements; never empty while it is in a backlog."""

    __slots__ = (
        "_anywhere",
        "_heartbeat",
        "_picky",
        "_wishes",
        "attempt",
        "key",
        "missed",
        "priority",
        "requirements",
        "reservations",
    )

    def __init__(self, attempt: SchedulerApplicationAttempt, priority: int, requirements: NodeRequirements) -> None:
        self.attempt = attempt
        self.priority = priority
        self.requirements = requirements
        self.key: tuple[Any, ...] = (*attempt.rank, priority)  # its place among the groups of its requirements
        self.reservations = 0  # nodes that are kept for it
        self.missed = 0  # opportunities that its picky asks have let pass
        self._heartbeat = -1  # the last one of these
        # By arrival, in this order. A plain dict would step over all that left its head before, again and again.
        self._anywhere: OrderedDict[int, PendingAsk] = OrderedDict()
        self._picky: OrderedDict[int, PendingAsk] = OrderedDict()
        self._wishes: dict[tuple[str, str], OrderedDict[int, PendingAsk]] = {}  # the picky ones, by level and name

    def __len__(self) -> int:
        return len(self._anywhere) + len(self._picky)

    def __iter__(self) -> Iterator[PendingAsk]:
        """In the order of arrival."""
        return iter(sorted((*self._anywhere.values(), *self._picky.values())))

    @property
    def first(self) -> PendingAsk:
        """The one that came first."""
        if self._anywhere and self._picky:
            return min(next(iter(self._anywhere.values())), next(iter(self._picky.values())))
        return next(iter((self._anywhere or self._picky).values()))

    @property
    def first_arrival(self) -> int:
        return self.first.arrival

    def precedes(self, other: AppPlacementAllocator) -> bool:
        """Whether it is served before another one of its backlog."""
        return self.key < other.key or (self.key == other.key and self.first.arrival < other.first.arrival)

    def add(self, ask: PendingAsk) -> None:
        if not ask.request.relax_locality or (ask.request.host is None and ask.rack is None):
            self._anywhere[ask.arrival] = ask
            return
        self._picky[ask.arrival] = ask
        for wish in _wishes(ask):
            asks = self._wishes.get(wish)
            if asks is None:
                asks = self._wishes[wish] = OrderedDict()
            asks[ask.arrival] = ask

    def remove(self, ask: PendingAsk) -> None:
        if self._anywhere.pop(ask.arrival, None) is not None:
            return
        del self._picky[ask.arrival]
        for wish in _wishes(ask):
            asks = self._wishes[wish]
            del asks[ask.arrival]
            if not asks:
                del self._wishes[wish]

    def choose(self, node: SchedulerNode, opportunity: SchedulingOpportunity | None = None) -> PendingAsk | None:
        """The ask that takes this node, on which the requirements fits: who prefers it, else the first come.

        With `opportunity`, those that prefer another let some opportunities pass first; None: all that there are do so.
        """
        if not self._picky:
            return next(iter(self._anywhere.values()))
        wishes = self._wishes
        near = wishes.get(("host", node.host)) or wishes.get(("rack", node.rack))
        if near is None and (opportunity is None or self.missed >= opportunity.rack):
            near = wishes.get(("rack of host", node.rack))
        if near is not None:
            return next(iter(near.values()))
        if opportunity is None:
            return self.first
        if self._anywhere:
            return next(iter(self._anywhere.values()))
        if self.missed >= opportunity.anywhere:
            return next(iter(self._picky.values()))
        if self._heartbeat != opportunity.number:
            self._heartbeat = opportunity.number
            self.missed += 1
        return None


def _wishes(ask: PendingAsk) -> Iterator[tuple[str, str]]:
    if ask.request.host is not None:
        yield "host", ask.request.host
        if ask.rack is not None:
            yield "rack of host", ask.rack
    elif ask.rack is not None:
        yield "rack", ask.rack


def _key(group: AppPlacementAllocator) -> tuple[Any, ...]:
    return group.key


class _NodeSetAsks:
    """The groups that may go to the same nodes: to all of a partition, or only to one host, or one rack, of it."""

    __slots__ = ("by_requirements", "least_memory_mb", "least_vcores_milli")

    def __init__(self) -> None:
        self.by_requirements: dict[
            NodeRequirements, list[AppPlacementAllocator]
        ] = {}  # in the order of service; nothing in it is empty
        self.least_memory_mb = self.least_vcores_milli = 0  # that any of the by_requirements needs

    def add(self, requirements: NodeRequirements, groups: list[AppPlacementAllocator]) -> None:
        is_first = not self.by_requirements
        self.by_requirements[requirements] = groups
        if is_first or requirements.memory_mb < self.least_memory_mb:
            self.least_memory_mb = requirements.memory_mb
        if is_first or requirements.vcores_milli < self.least_vcores_milli:
            self.least_vcores_milli = requirements.vcores_milli

    def remove(self, requirements: NodeRequirements) -> None:
        by_requirements = self.by_requirements
        del by_requirements[requirements]
        if not by_requirements:
            return
        if requirements.memory_mb == self.least_memory_mb:
            self.least_memory_mb = min([other.memory_mb for other in by_requirements])
        if requirements.vcores_milli == self.least_vcores_milli:
            self.least_vcores_milli = min([other.vcores_milli for other in by_requirements])


NodeSet = tuple[str, str | None, str | None]
"""Partition, and the host or the rack outside of which the ask will not go."""


class PendingAsks:
    """The waiting asks of several attempts: of a queue, or of all."""

    def __init__(self) -> None:
        self._by_partition: dict[str, _NodeSetAsks] = {}  # by partition; none is empty
        self._narrow: dict[NodeSet, _NodeSetAsks] = {}  # of those that insist on a host or a rack; none is empty

    def __bool__(self) -> bool:
        return bool(self._by_partition or self._narrow)

    def _by_requirements(self) -> Iterator[tuple[NodeRequirements, list[AppPlacementAllocator]]]:
        for asks_of_set in (*self._by_partition.values(), *self._narrow.values()):
            yield from asks_of_set.by_requirements.items()

    def by_requirements(self) -> list[NodeRequirements]:
        """All that wait."""
        return [requirements for requirements, _ in self._by_requirements()]

    def groups(self) -> list[AppPlacementAllocator]:
        """All that wait, in the order of service."""
        groups = [group for _, of_shape in self._by_requirements() for group in of_shape]
        return sorted(groups, key=lambda group: (group.key, group.first.arrival))

    # -- coming and going ---------------------------------------------------------------------------------------------

    def add(self, attempt: SchedulerApplicationAttempt, requirements: NodeRequirements, ask: PendingAsk) -> None:
        priority = ask.request.priority
        group = attempt.groups.get((priority, requirements))
        if group is not None:
            group.add(ask)
            return
        group = attempt.groups[priority, requirements] = AppPlacementAllocator(attempt, priority, requirements)
        group.add(ask)
        self._insert(group)

    def take(self, group: AppPlacementAllocator, ask: PendingAsk, node: SchedulerNode) -> None:
        """The ask gets room on this node, and waits no longer."""
        group.remove(ask)
        if node.host == ask.request.host or node.rack == ask.rack:
            group.missed = 0
        if not group:
            del group.attempt.groups[group.priority, group.requirements]
            self._withdraw(group)

    def remove_all(self, attempt: SchedulerApplicationAttempt) -> list[PendingAsk]:
        """Nothing of this attempt waits any longer; returns what did, in the order of arrival."""
        asks = [ask for group in attempt.groups.values() for ask in group]
        for group in attempt.groups.values():
            self._withdraw(group)
        attempt.groups.clear()
        return sorted(asks)

    def set_rank(self, attempt: SchedulerApplicationAttempt, rank: tuple[Any, ...]) -> None:
        """From now on the attempt has this place among the others."""
        if rank == attempt.rank:
            return
        for group in attempt.groups.values():
            self._withdraw(group)
        attempt.rank = rank
        for group in attempt.groups.values():
            group.key = (*rank, group.priority)
            self._insert(group)

    def _insert(self, group: AppPlacementAllocator) -> None:
        requirements = group.requirements
        asks_of_set = self._asks_of(requirements)
        if asks_of_set is None:
            asks_of_set = _NodeSetAsks()
            if requirements.host is None and requirements.rack is None:
                self._by_partition[requirements.partition] = asks_of_set
            else:
                self._narrow[requirements.partition, requirements.host, requirements.rack] = asks_of_set
        groups = asks_of_set.by_requirements.get(requirements)
        if groups is None:
            asks_of_set.add(requirements, [group])
        else:
            insort_right(groups, group, key=_key)

    def _withdraw(self, group: AppPlacementAllocator) -> None:
        requirements = group.requirements
        asks_of_set = self._asks_of(requirements)
        assert asks_of_set is not None  # the group is in it
        groups = asks_of_set.by_requirements[requirements]
        if len(groups) > 1:
            del groups[groups.index(group, bisect_left(groups, group.key, key=_key))]
            return
        asks_of_set.remove(requirements)
        if asks_of_set.by_requirements:
            return
        if requirements.host is None and requirements.rack is None:
            del self._by_partition[requirements.partition]
        else:
            del self._narrow[requirements.partition, requirements.host, requirements.rack]

    def _asks_of(self, requirements: NodeRequirements) -> _NodeSetAsks | None:
        if requirements.host is None and requirements.rack is None:
            return self._by_partition.get(requirements.partition)
        return self._narrow.get((requirements.partition, requirements.host, requirements.rack))

    # -- choosing -----------------------------------------------------------------------------------------------------

    def choose(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity | None = None
    ) -> tuple[AppPlacementAllocator, PendingAsk] | None:
        """Who gets room on this node next: the first whose requirements it meets and that does not wait for another."""
        best: AppPlacementAllocator | None = None
        for groups in self._fitting(node):
            for group in groups:
                if best is not None and not group.precedes(best):
                    break
                if opportunity is not None and group.choose(node, opportunity) is None:
                    continue
                best = group
                break
        if best is None:
            return None
        ask = best.choose(node, opportunity)
        assert ask is not None  # it has been asked before, or has no opportunity
        return best, ask

    def choose_to_reserve(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity
    ) -> AppPlacementAllocator | None:
        """The first group that the node could take, but has not room enough for now; one that has nodes enough not."""
        best: AppPlacementAllocator | None = None
        for asks_of_set in self._candidates(node):
            for requirements, groups in asks_of_set.by_requirements.items():
                if requirements.fits(node) or not (
                    requirements.may_use(node) and node.could_fit(requirements.resource, requirements.gpu_models)
                ):
                    continue
                for group in groups:
                    if best is not None and not group.precedes(best):
                        break
                    if group.reservations < len(group) and group.choose(node, opportunity) is not None:
                        best = group
                        break
        return best

    def _fitting(self, node: SchedulerNode) -> list[list[AppPlacementAllocator]]:
        """The groups that fit on the node, by requirements."""
        memory_mb, vcores_milli = node.free_memory_mb, node.free_vcores_milli
        fitting = []
        for asks_of_set in self._candidates(node):
            if memory_mb < asks_of_set.least_memory_mb or vcores_milli < asks_of_set.least_vcores_milli:
                continue
            for requirements, groups in asks_of_set.by_requirements.items():
                if (
                    requirements.memory_mb <= memory_mb
                    and requirements.vcores_milli <= vcores_milli
                    and (requirements.is_plain or requirements.fits_further(node))
                ):
                    fitting.append(groups)
        return fitting

    def _candidates(self, node: SchedulerNode) -> list[_NodeSetAsks]:
        partition, narrow = node.partition, self._narrow
        candidates = [self._by_partition.get(partition)]
        if narrow:
            candidates += (narrow.get((partition, node.host, None)), narrow.get((partition, None, node.rack)))
        return [asks_of_set for asks_of_set in candidates if asks_of_set is not None]
