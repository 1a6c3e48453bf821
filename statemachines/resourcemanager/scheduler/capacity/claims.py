"""What waits in the queues, and for what: room on a node, a queue to get below its maximum, or a user below its limit.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from typing import Any, cast

from statemachines.resourcemanager.scheduler.capacity.lots import Claim, HeldUsers, Lot, group_key
from statemachines.resourcemanager.scheduler.capacity.queue_apps import QueueApplication
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, Queue
from statemachines.resourcemanager.scheduler.core.attempt import SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.backlog import AskGroup, Backlog
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.shapes import Shape

_Shaped = dict[Shape, Lot]
"""Lots of one shape each; none of them empty."""
_SpotKey = tuple[str, str | None, str | None]
"""Partition, and the host or the rack outside of which the asks will not go."""


def app_of(group: AskGroup) -> QueueApplication:
    """Attempts of the capacity scheduler are of its own kind of applications."""
    return cast(QueueApplication, group.attempt.app)


class Claims(Backlog):
    """All that waits, in all queues. A claim of which it is not known what it waits for is loose: it has to be tried.

    The asks of pending applications wait with their attempts only, until `enter`.
    """

    def __init__(self) -> None:
        super().__init__()
        # Whether no node has room for those that wait for it: then one of a shape that does waits for it too.
        self.is_settled = False
        self._claims: dict[tuple[LeafQueue, str, Shape], Claim] = {}  # none of them empty, each in a lot
        self._of: dict[AskGroup, Claim] = {}  # where each group is
        self._for_room: dict[str, _Shaped] = {}  # by partition
        self._narrow_room: dict[_SpotKey, _Shaped] = {}  # of those that insist on a host or a rack
        self._for_queue: dict[str, dict[Queue, _Shaped]] = {}  # by partition
        self._held: dict[tuple[LeafQueue, str], HeldUsers] = {}  # by leaf and partition; none of them empty
        self._loose: dict[str, Lot] = {}  # by partition; none of them empty
        self._loose_lots: dict[str, Lot] = {}  # by partition: all of them

    def __bool__(self) -> bool:
        return bool(self._claims)

    def shapes(self) -> list[Shape]:
        return list(dict.fromkeys(claim.shape for claim in self._claims.values()))

    def groups(self) -> list[AskGroup]:
        """All that wait, in the order of service as far as it can be told now."""
        return sorted(self._of, key=_service_key)

    # -- groups of asks -----------------------------------------------------------------------------------------------

    def enter(self, attempt: SchedulerApplicationAttempt) -> None:
        """The attempt's application has become active."""
        for group in attempt.groups.values():
            self._insert(group)

    def advance(self, attempt: SchedulerApplicationAttempt) -> None:
        """The attempt's groups may come earlier than before."""
        for group in attempt.groups.values():
            claim = self._of.get(group)
            if claim is not None:
                claim.groups.lessened(group)
                _note_first(claim, group)

    def set_aside(self, group: AskGroup) -> None:
        """Do as if it did not wait, until it is put back."""
        self._withdraw(group)

    def put_back(self, group: AskGroup) -> None:
        self._insert(group)

    def _insert(self, group: AskGroup) -> None:
        app = app_of(group)
        if not app.is_active:
            return
        shape = group.shape
        key = app.leaf, app.user, shape
        claim = self._claims.get(key)
        if claim is not None:  # it waits for what the others wait for
            claim.groups.add(group)
            self._of[group] = claim
            _note_first(claim, group)
            return
        claim = self._claims[key] = self._of[group] = Claim(*key)
        claim.groups.add(group)
        lot = self._room_lot(shape) if self.is_settled else None
        if lot is not None:
            lot.add(claim)
        else:
            self.loosen(claim)

    def _withdraw(self, group: AskGroup) -> None:
        claim = self._of.pop(group, None)
        if claim is None:
            return
        claim.groups.discard(group)
        if not claim.groups:
            del self._claims[claim.leaf, claim.user, claim.shape]
            self._take(claim)

    # -- where claims lie ---------------------------------------------------------------------------------------------

    def loosen(self, claim: Claim) -> None:
        """It may have got what it waited for."""
        self._take(claim)
        self.loose_in(claim.shape.partition).add(claim)

    def loose_in(self, partition: str) -> Lot:
        lot = self._loose_lots.get(partition)
        if lot is None:
            lot = self._loose_lots[partition] = Lot(self._loose, partition, is_mixed=True)
        return lot

    def partitions_with_loose(self) -> list[str]:
        return [partition for partition, lot in self._loose_lots.items() if lot] if self._loose else []

    def wait_for_room(self, claim: Claim) -> None:
        self._take(claim)
        shape = claim.shape
        lot = self._room_lot(shape)
        if lot is None:
            if shape.host is None and shape.rack is None:
                lots = self._for_room.setdefault(shape.partition, {})
            else:
                lots = self._narrow_room.setdefault((shape.partition, shape.host, shape.rack), {})
            lot = Lot(lots, shape)
        lot.add(claim)

    def wait_for_queue(self, claim: Claim, queue: Queue) -> None:
        self._take(claim)
        shape = claim.shape
        lots = self._for_queue.setdefault(shape.partition, {}).setdefault(queue, {})
        lot = lots.get(shape)
        if lot is None:
            lot = Lot(lots, shape, queue=queue, amounts=claim.amounts)
        lot.add(claim)

    def wait_for_user(self, claim: Claim) -> None:
        self._take(claim)
        key = claim.leaf, claim.shape.partition
        held = self._held.get(key)
        if held is None:
            held = HeldUsers(self._held, *key)
        held.add(claim)

    def _take(self, claim: Claim) -> None:
        if claim.lot is not None:
            claim.lot.remove(claim)

    # -- who waits for what -------------------------------------------------------------------------------------------

    @property
    def has_loose(self) -> bool:
        return bool(self._loose)

    def for_room(self, node: SchedulerNode) -> list[_Shaped]:
        """Those that no node has room for, as far as is known, and that might use this one but for a blacklist."""
        partition, narrow = node.partition, self._narrow_room
        lots = [self._for_room.get(partition)]
        if narrow:
            lots += (narrow.get((partition, node.host, None)), narrow.get((partition, None, node.rack)))
        return [of_shape for of_shape in lots if of_shape]

    def has_no_room(self, shape: Shape) -> bool:
        """Whether others of this shape wait for room."""
        return self._room_lot(shape) is not None

    def _room_lot(self, shape: Shape) -> Lot | None:
        if shape.host is None and shape.rack is None:
            lots = self._for_room.get(shape.partition)
        else:
            lots = self._narrow_room.get((shape.partition, shape.host, shape.rack))
        return lots.get(shape) if lots is not None else None

    def has_for_queue(self, partition: str) -> bool:
        """Whether any has ever waited for a queue."""
        return partition in self._for_queue

    def for_queue(self, queue: Queue, partition: str) -> list[Lot]:
        queues = self._for_queue.get(partition)
        lots = queues.get(queue) if queues is not None else None
        return list(lots.values()) if lots else []

    def held(self, leaf: LeafQueue, partition: str) -> HeldUsers | None:
        """Those that are held up by the limits of their users; None: there are none."""
        return self._held.get((leaf, partition)) if self._held else None


def _note_first(claim: Claim, group: AskGroup) -> None:
    """The group's place in the claim is another: if it is the first now, so is the claim's in its lot."""
    if claim.first() is group:
        assert claim.lot is not None
        claim.lot.add(claim)


def _service_key(group: AskGroup) -> tuple[Any, ...]:
    """The place among all groups of its partition: queues decide first, level by level."""
    return *app_of(group).leaf.place(group.shape.partition), group_key(group), group.first_arrival
