"""What waits for room, and in which order it gets some.

Asks of one attempt, one priority and one shape make a group: they fit together or not at all, and differ at most in
where they would rather be. Groups are served by the rank of their attempt, then by priority, then the older first.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from bisect import bisect_left, insort_right
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

from statemachines.resourcemanager.events.records import ContainerRequest
from statemachines.resourcemanager.scheduler.core.attempt import SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.shapes import Shape


class Ask(NamedTuple):
    """A waiting request."""

    arrival: int
    """Unique; greater is later."""
    request: ContainerRequest
    rack: str | None
    """Where it would rather be, if not on its host."""


class Patience(NamedTuple):
    """How many opportunities an ask lets pass before it takes a node that it did not prefer, and which one this is."""

    beat: int
    """Number of the opportunity: one is counted once, however many containers the node gets with it."""
    rack: int
    anywhere: int


class AskGroup:
    """The waiting asks of one attempt, priority and shape; never empty while it is in a backlog."""

    __slots__ = (
        "_anywhere",
        "_beat",
        "_picky",
        "_wishes",
        "attempt",
        "key",
        "missed",
        "priority",
        "reservations",
        "shape",
    )

    def __init__(self, attempt: SchedulerApplicationAttempt, priority: int, shape: Shape) -> None:
        self.attempt = attempt
        self.priority = priority
        self.shape = shape
        self.key: tuple[Any, ...] = (*attempt.rank, priority)  # its place among the groups of its shape
        self.reservations = 0  # nodes that are kept for it
        self.missed = 0  # opportunities that its picky asks have let pass
        self._beat = -1  # the last one of these
        # By arrival, in this order. A plain dict would step over all that left its head before, again and again.
        self._anywhere: OrderedDict[int, Ask] = OrderedDict()
        self._picky: OrderedDict[int, Ask] = OrderedDict()
        self._wishes: dict[tuple[str, str], OrderedDict[int, Ask]] = {}  # the picky ones, by level and name

    def __len__(self) -> int:
        return len(self._anywhere) + len(self._picky)

    def __iter__(self) -> Iterator[Ask]:
        """In the order of arrival."""
        return iter(sorted((*self._anywhere.values(), *self._picky.values())))

    @property
    def first(self) -> Ask:
        """The one that came first."""
        if self._anywhere and self._picky:
            return min(next(iter(self._anywhere.values())), next(iter(self._picky.values())))
        return next(iter((self._anywhere or self._picky).values()))

    @property
    def first_arrival(self) -> int:
        return self.first.arrival

    def precedes(self, other: AskGroup) -> bool:
        """Whether it is served before another one of its backlog."""
        return self.key < other.key or (self.key == other.key and self.first.arrival < other.first.arrival)

    def add(self, ask: Ask) -> None:
        if not ask.request.relax_locality or (ask.request.host is None and ask.rack is None):
            self._anywhere[ask.arrival] = ask
            return
        self._picky[ask.arrival] = ask
        for wish in _wishes(ask):
            asks = self._wishes.get(wish)
            if asks is None:
                asks = self._wishes[wish] = OrderedDict()
            asks[ask.arrival] = ask

    def remove(self, ask: Ask) -> None:
        if self._anywhere.pop(ask.arrival, None) is not None:
            return
        del self._picky[ask.arrival]
        for wish in _wishes(ask):
            asks = self._wishes[wish]
            del asks[ask.arrival]
            if not asks:
                del self._wishes[wish]

    def choose(self, node: SchedulerNode, patience: Patience | None = None) -> Ask | None:
        """The ask that takes this node, on which the shape fits: who prefers it, else the first come.

        With `patience`, those that prefer another let some opportunities pass first; None: all that there are do so.
        """
        if not self._picky:
            return next(iter(self._anywhere.values()))
        wishes = self._wishes
        near = wishes.get(("host", node.host)) or wishes.get(("rack", node.rack))
        if near is None and (patience is None or self.missed >= patience.rack):
            near = wishes.get(("rack of host", node.rack))
        if near is not None:
            return next(iter(near.values()))
        if patience is None:
            return self.first
        if self._anywhere:
            return next(iter(self._anywhere.values()))
        if self.missed >= patience.anywhere:
            return next(iter(self._picky.values()))
        if self._beat != patience.beat:
            self._beat = patience.beat
            self.missed += 1
        return None


def _wishes(ask: Ask) -> Iterator[tuple[str, str]]:
    if ask.request.host is not None:
        yield "host", ask.request.host
        if ask.rack is not None:
            yield "rack of host", ask.rack
    elif ask.rack is not None:
        yield "rack", ask.rack


def _key(group: AskGroup) -> tuple[Any, ...]:
    return group.key


class _Spot:
    """The groups that may go to the same nodes: to all of a partition, or only to one host, or one rack, of it."""

    __slots__ = ("least_memory_mb", "least_vcores_milli", "shapes")

    def __init__(self) -> None:
        self.shapes: dict[Shape, list[AskGroup]] = {}  # in the order of service; nothing in it is empty
        self.least_memory_mb = self.least_vcores_milli = 0  # that any of the shapes needs

    def add(self, shape: Shape, groups: list[AskGroup]) -> None:
        is_first = not self.shapes
        self.shapes[shape] = groups
        if is_first or shape.memory_mb < self.least_memory_mb:
            self.least_memory_mb = shape.memory_mb
        if is_first or shape.vcores_milli < self.least_vcores_milli:
            self.least_vcores_milli = shape.vcores_milli

    def remove(self, shape: Shape) -> None:
        shapes = self.shapes
        del shapes[shape]
        if not shapes:
            return
        if shape.memory_mb == self.least_memory_mb:
            self.least_memory_mb = min([other.memory_mb for other in shapes])
        if shape.vcores_milli == self.least_vcores_milli:
            self.least_vcores_milli = min([other.vcores_milli for other in shapes])


_SpotKey = tuple[str, str | None, str | None]
"""Partition, and the host or the rack outside of which the ask will not go."""


class Backlog:
    """The waiting asks of several attempts: of a queue, or of all."""

    def __init__(self) -> None:
        self._spots: dict[str, _Spot] = {}  # by partition; none is empty
        self._narrow: dict[_SpotKey, _Spot] = {}  # of those that insist on a host or a rack; none is empty

    def __bool__(self) -> bool:
        return bool(self._spots or self._narrow)

    def _by_shape(self) -> Iterator[tuple[Shape, list[AskGroup]]]:
        for spot in (*self._spots.values(), *self._narrow.values()):
            yield from spot.shapes.items()

    def shapes(self) -> list[Shape]:
        """All that wait."""
        return [shape for shape, _ in self._by_shape()]

    def groups(self) -> list[AskGroup]:
        """All that wait, in the order of service."""
        groups = [group for _, of_shape in self._by_shape() for group in of_shape]
        return sorted(groups, key=lambda group: (group.key, group.first.arrival))

    # -- coming and going ---------------------------------------------------------------------------------------------

    def add(self, attempt: SchedulerApplicationAttempt, shape: Shape, ask: Ask) -> None:
        priority = ask.request.priority
        group = attempt.groups.get((priority, shape))
        if group is not None:
            group.add(ask)
            return
        group = attempt.groups[priority, shape] = AskGroup(attempt, priority, shape)
        group.add(ask)
        self._insert(group)

    def take(self, group: AskGroup, ask: Ask, node: SchedulerNode) -> None:
        """The ask gets room on this node, and waits no longer."""
        group.remove(ask)
        if node.host == ask.request.host or node.rack == ask.rack:
            group.missed = 0
        if not group:
            del group.attempt.groups[group.priority, group.shape]
            self._withdraw(group)

    def remove_all(self, attempt: SchedulerApplicationAttempt) -> list[Ask]:
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

    def _insert(self, group: AskGroup) -> None:
        shape = group.shape
        spot = self._spot(shape)
        if spot is None:
            spot = _Spot()
            if shape.host is None and shape.rack is None:
                self._spots[shape.partition] = spot
            else:
                self._narrow[shape.partition, shape.host, shape.rack] = spot
        groups = spot.shapes.get(shape)
        if groups is None:
            spot.add(shape, [group])
        else:
            insort_right(groups, group, key=_key)

    def _withdraw(self, group: AskGroup) -> None:
        shape = group.shape
        spot = self._spot(shape)
        assert spot is not None  # the group is in it
        groups = spot.shapes[shape]
        if len(groups) > 1:
            del groups[groups.index(group, bisect_left(groups, group.key, key=_key))]
            return
        spot.remove(shape)
        if spot.shapes:
            return
        if shape.host is None and shape.rack is None:
            del self._spots[shape.partition]
        else:
            del self._narrow[shape.partition, shape.host, shape.rack]

    def _spot(self, shape: Shape) -> _Spot | None:
        if shape.host is None and shape.rack is None:
            return self._spots.get(shape.partition)
        return self._narrow.get((shape.partition, shape.host, shape.rack))

    # -- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, node: SchedulerNode, patience: Patience | None = None) -> tuple[AskGroup, Ask] | None:
        """Who gets room on this node next: the first one on whose shape it fits, and who is not waiting for another."""
        best: AskGroup | None = None
        for groups in self._fitting(node):
            for group in groups:
                if best is not None and not group.precedes(best):
                    break
                if patience is not None and group.choose(node, patience) is None:
                    continue
                best = group
                break
        if best is None:
            return None
        ask = best.choose(node, patience)
        assert ask is not None  # it has been asked before, or has no patience
        return best, ask

    def choose_to_reserve(self, node: SchedulerNode, patience: Patience) -> AskGroup | None:
        """The first group that the node could take, but has not room enough for now; one that has nodes enough not."""
        best: AskGroup | None = None
        for spot in self._spots_of(node):
            for shape, groups in spot.shapes.items():
                if shape.fits(node) or not (shape.may_use(node) and node.could_fit(shape.resource, shape.gpu_models)):
                    continue
                for group in groups:
                    if best is not None and not group.precedes(best):
                        break
                    if group.reservations < len(group) and group.choose(node, patience) is not None:
                        best = group
                        break
        return best

    def _fitting(self, node: SchedulerNode) -> list[list[AskGroup]]:
        """The groups that fit on the node, by shape."""
        memory_mb, vcores_milli = node.free_memory_mb, node.free_vcores_milli
        fitting = []
        for spot in self._spots_of(node):
            if memory_mb < spot.least_memory_mb or vcores_milli < spot.least_vcores_milli:
                continue
            for shape, groups in spot.shapes.items():
                if (
                    shape.memory_mb <= memory_mb
                    and shape.vcores_milli <= vcores_milli
                    and (shape.is_plain or shape.fits_further(node))
                ):
                    fitting.append(groups)
        return fitting

    def _spots_of(self, node: SchedulerNode) -> list[_Spot]:
        partition, narrow = node.partition, self._narrow
        spots = [self._spots.get(partition)]
        if narrow:
            spots += (narrow.get((partition, node.host, None)), narrow.get((partition, None, node.rack)))
        return [spot for spot in spots if spot is not None]
