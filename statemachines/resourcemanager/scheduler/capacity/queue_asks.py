"""What waits in the queues, and for what: room on a node, a queue to get below its maximum, or a user below its limit.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from typing import Any, cast

from statemachines.resourcemanager.scheduler.capacity.queue_applications import QueueApplication
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, Queue
from statemachines.resourcemanager.scheduler.capacity.wait_sets import UserAsks, UserLimitWaitSet, WaitSet, group_key
from statemachines.resourcemanager.scheduler.core.application import SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.pending_asks import AppPlacementAllocator, PendingAsks
from statemachines.resourcemanager.scheduler.core.requirements import NodeRequirements

_ByRequirements = dict[NodeRequirements, WaitSet]
"""WaitSets of one requirements each; none of them empty."""
NodeSet = tuple[str, str | None, str | None]
"""Partition, and the host or the rack outside of which the asks will not go."""


def app_of(group: AppPlacementAllocator) -> QueueApplication:
    """Attempts of the capacity scheduler are of its own kind of applications."""
    return cast(QueueApplication, group.attempt.app)


class QueueAsks(PendingAsks):
    """All that waits, in all queues. Asks are unblocked where it is not known what they wait for.

    The asks of pending applications wait with their attempts only, until `enter`.
    """

    def __init__(self) -> None:
        super().__init__()
        # Whether no node has room for those that wait for it: then one of a requirements that does waits for it too.
        self.is_settled = False
        self._user_asks: dict[
            tuple[LeafQueue, str, NodeRequirements], UserAsks
        ] = {}  # none of them empty, each in a wait_set
        self._of: dict[AppPlacementAllocator, UserAsks] = {}  # where each group is
        self._for_room: dict[str, _ByRequirements] = {}  # by partition
        self._narrow_room: dict[NodeSet, _ByRequirements] = {}  # of those that insist on a host or a rack
        self._for_queue: dict[str, dict[Queue, _ByRequirements]] = {}  # by partition
        self._held: dict[tuple[LeafQueue, str], UserLimitWaitSet] = {}  # by leaf and partition; none of them empty
        self._unblocked: dict[str, WaitSet] = {}  # by partition; none of them empty
        self._unblocked_sets: dict[str, WaitSet] = {}  # by partition: all of them

    def __bool__(self) -> bool:
        return bool(self._user_asks)

    def by_requirements(self) -> list[NodeRequirements]:
        return list(dict.fromkeys(user_asks.requirements for user_asks in self._user_asks.values()))

    def groups(self) -> list[AppPlacementAllocator]:
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
            user_asks = self._of.get(group)
            if user_asks is not None:
                user_asks.groups.lessened(group)
                _note_first(user_asks, group)

    def set_aside(self, group: AppPlacementAllocator) -> None:
        """Do as if it did not wait, until it is put back."""
        self._withdraw(group)

    def put_back(self, group: AppPlacementAllocator) -> None:
        self._insert(group)

    def _insert(self, group: AppPlacementAllocator) -> None:
        app = app_of(group)
        if not app.is_active:
            return
        requirements = group.requirements
        key = app.leaf, app.user, requirements
        user_asks = self._user_asks.get(key)
        if user_asks is not None:  # it waits for what the others wait for
            user_asks.groups.add(group)
            self._of[group] = user_asks
            _note_first(user_asks, group)
            return
        user_asks = self._user_asks[key] = self._of[group] = UserAsks(*key)
        user_asks.groups.add(group)
        wait_set = self._room_wait_set(requirements) if self.is_settled else None
        if wait_set is not None:
            wait_set.add(user_asks)
        else:
            self.unblock(user_asks)

    def _withdraw(self, group: AppPlacementAllocator) -> None:
        user_asks = self._of.pop(group, None)
        if user_asks is None:
            return
        user_asks.groups.discard(group)
        if not user_asks.groups:
            del self._user_asks[user_asks.leaf, user_asks.user, user_asks.requirements]
            self._take(user_asks)

    # -- what they wait for --------------------------------------------------------------------------------------

    def unblock(self, user_asks: UserAsks) -> None:
        """It may have got what it waited for."""
        self._take(user_asks)
        self.unblocked_in(user_asks.requirements.partition).add(user_asks)

    def unblocked_in(self, partition: str) -> WaitSet:
        wait_set = self._unblocked_sets.get(partition)
        if wait_set is None:
            wait_set = self._unblocked_sets[partition] = WaitSet(self._unblocked, partition, is_mixed=True)
        return wait_set

    def partitions_with_unblocked(self) -> list[str]:
        return (
            [partition for partition, wait_set in self._unblocked_sets.items() if wait_set] if self._unblocked else []
        )

    def wait_for_room(self, user_asks: UserAsks) -> None:
        self._take(user_asks)
        requirements = user_asks.requirements
        wait_set = self._room_wait_set(requirements)
        if wait_set is None:
            if requirements.host is None and requirements.rack is None:
                wait_sets = self._for_room.setdefault(requirements.partition, {})
            else:
                wait_sets = self._narrow_room.setdefault(
                    (requirements.partition, requirements.host, requirements.rack), {}
                )
            wait_set = WaitSet(wait_sets, requirements)
        wait_set.add(user_asks)

    def wait_for_queue(self, user_asks: UserAsks, queue: Queue) -> None:
        self._take(user_asks)
        requirements = user_asks.requirements
        wait_sets = self._for_queue.setdefault(requirements.partition, {}).setdefault(queue, {})
        wait_set = wait_sets.get(requirements)
        if wait_set is None:
            wait_set = WaitSet(wait_sets, requirements, queue=queue, amounts=user_asks.amounts)
        wait_set.add(user_asks)

    def wait_for_user(self, user_asks: UserAsks) -> None:
        self._take(user_asks)
        key = user_asks.leaf, user_asks.requirements.partition
        held = self._held.get(key)
        if held is None:
            held = UserLimitWaitSet(self._held, *key)
        held.add(user_asks)

    def _take(self, user_asks: UserAsks) -> None:
        if user_asks.wait_set is not None:
            user_asks.wait_set.remove(user_asks)

    # -- who waits for what -------------------------------------------------------------------------------------------

    @property
    def has_unblocked(self) -> bool:
        return bool(self._unblocked)

    def for_room(self, node: SchedulerNode) -> list[_ByRequirements]:
        """Those that no node has room for, as far as is known, and that might use this one but for a blacklist."""
        partition, narrow = node.partition, self._narrow_room
        wait_sets = [self._for_room.get(partition)]
        if narrow:
            wait_sets += (narrow.get((partition, node.host, None)), narrow.get((partition, None, node.rack)))
        return [of_shape for of_shape in wait_sets if of_shape]

    def has_no_room(self, requirements: NodeRequirements) -> bool:
        """Whether others of this requirements wait for room."""
        return self._room_wait_set(requirements) is not None

    def _room_wait_set(self, requirements: NodeRequirements) -> WaitSet | None:
        if requirements.host is None and requirements.rack is None:
            wait_sets = self._for_room.get(requirements.partition)
        else:
            wait_sets = self._narrow_room.get((requirements.partition, requirements.host, requirements.rack))
        return wait_sets.get(requirements) if wait_sets is not None else None

    def has_for_queue(self, partition: str) -> bool:
        """Whether any has ever waited for a queue."""
        return partition in self._for_queue

    def for_queue(self, queue: Queue, partition: str) -> list[WaitSet]:
        queues = self._for_queue.get(partition)
        wait_sets = queues.get(queue) if queues is not None else None
        return list(wait_sets.values()) if wait_sets else []

    def held(self, leaf: LeafQueue, partition: str) -> UserLimitWaitSet | None:
        """Those that are held up by the limits of their users; None: there are none."""
        return self._held.get((leaf, partition)) if self._held else None


def _note_first(user_asks: UserAsks, group: AppPlacementAllocator) -> None:
    """The group's place in the user_asks is another: if it is the first now, so is the user_asks's in its wait_set."""
    if user_asks.first() is group:
        assert user_asks.wait_set is not None
        user_asks.wait_set.add(user_asks)


def _service_key(group: AppPlacementAllocator) -> tuple[Any, ...]:
    """The place among all groups of its partition: queues decide first, level by level."""
    return *app_of(group).leaf.place(group.requirements.partition), group_key(group), group.first_arrival
