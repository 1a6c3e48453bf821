"""The pending asks of active applications in all queues, by what they wait for: see container_allocator.py.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from statemachines.resourcemanager.scheduler.capacity.queue_applications import app_of
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, Queue
from statemachines.resourcemanager.scheduler.capacity.wait_sets import UserAsks, UserLimitWaitSet, WaitSet
from statemachines.resourcemanager.scheduler.core.application import AppPlacementAllocator, SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.node_tracker import ClusterNodeTracker
from statemachines.resourcemanager.scheduler.core.requirements import NodeRequirements, NodeSet, of_node

_WaitSets = dict[NodeRequirements, WaitSet]  # never empty ones


class QueueAsks:
    """UserAsks, each in one wait set. A pending application's asks are added when it becomes active."""

    # All fields are guarded by the scheduler's lock.
    def __init__(self, nodes: ClusterNodeTracker) -> None:
        self._nodes = nodes
        self._user_asks: dict[tuple[LeafQueue, str, NodeRequirements], UserAsks] = {}  # never empty ones
        self._of: dict[AppPlacementAllocator, UserAsks] = {}
        self._for_room: dict[NodeSet, _WaitSets] = {}
        self._for_queue: dict[str, dict[Queue, _WaitSets]] = {}  # by partition
        self._for_user_limit: dict[tuple[LeafQueue, str], UserLimitWaitSet] = {}  # by leaf, partition; never empty ones
        self._unblocked: dict[str, WaitSet] = {}  # by partition; never empty ones
        self._unblocked_sets: dict[str, WaitSet] = {}  # by partition, including empty ones

    # -- allocators ---------------------------------------------------------------------------------------------------

    def enter(self, attempt: SchedulerApplicationAttempt) -> None:
        """Add the asks of an attempt whose application has become active."""
        for allocator in attempt.pending.values():
            self.add(allocator)

    def move_up(self, attempt: SchedulerApplicationAttempt) -> None:
        """The position of the attempt's asks may have improved."""
        for allocator in attempt.pending.values():
            user_asks = self._of.get(allocator)
            if user_asks is not None:
                user_asks.add(allocator)

    def add(self, allocator: AppPlacementAllocator) -> None:
        app = app_of(allocator.attempt)
        if not app.is_active:
            return
        requirements = allocator.requirements
        key = app.leaf, app.user, requirements
        user_asks = self._user_asks.get(key)
        if user_asks is not None:  # these asks wait for what the others wait for
            self._of[allocator] = user_asks
            user_asks.add(allocator)
            return
        user_asks = self._user_asks[key] = self._of[allocator] = UserAsks(*key)
        user_asks.add(allocator)
        # Others with these requirements wait for room: no node has any, unless one was freed just now.
        wait_set = self._room_wait_set(requirements) if not self._nodes.freed else None
        if wait_set is not None:
            wait_set.add(user_asks)
        else:
            self.unblock(user_asks)

    def remove(self, allocator: AppPlacementAllocator) -> None:
        user_asks = self._of.pop(allocator, None)
        if user_asks is None:
            return
        user_asks.allocators.discard(allocator)
        if not user_asks.allocators:
            del self._user_asks[user_asks.leaf, user_asks.user, user_asks.requirements]
            self._take_out(user_asks)

    # -- from one wait set to another ---------------------------------------------------------------------------------

    def unblock(self, user_asks: UserAsks) -> None:
        """The asks may be servable now."""
        self._take_out(user_asks)
        self.unblocked_in(user_asks.requirements.partition).add(user_asks)

    def wait_for_room(self, user_asks: UserAsks) -> None:
        self._take_out(user_asks)
        requirements = user_asks.requirements
        wait_set = self._room_wait_set(requirements)
        if wait_set is None:
            wait_set = WaitSet(self._for_room.setdefault(requirements.node_set, {}), requirements)
        wait_set.add(user_asks)

    def wait_for_queue(self, user_asks: UserAsks, queue: Queue) -> None:
        self._take_out(user_asks)
        requirements = user_asks.requirements
        wait_sets = self._for_queue.setdefault(requirements.partition, {}).setdefault(queue, {})
        wait_set = wait_sets.get(requirements)
        if wait_set is None:
            wait_set = WaitSet(wait_sets, requirements, queue=queue, amounts=user_asks.amounts)
        wait_set.add(user_asks)

    def wait_for_user_limit(self, user_asks: UserAsks) -> None:
        self._take_out(user_asks)
        key = user_asks.leaf, user_asks.requirements.partition
        wait_set = self._for_user_limit.get(key)
        if wait_set is None:
            wait_set = UserLimitWaitSet(self._for_user_limit, *key)
        wait_set.add(user_asks)

    def _take_out(self, user_asks: UserAsks) -> None:
        if user_asks.wait_set is not None:
            user_asks.wait_set.remove(user_asks)

    # -- the wait sets ------------------------------------------------------------------------------------------------

    def for_room_on(self, node: SchedulerNode) -> list[_WaitSets]:
        """The wait sets for room whose node set contains the node; a blacklist or GPU model may still exclude it."""
        return of_node(self._for_room, node)

    def has_for_room(self, requirements: NodeRequirements) -> bool:
        """Whether other asks with these requirements wait for room."""
        return self._room_wait_set(requirements) is not None

    def _room_wait_set(self, requirements: NodeRequirements) -> WaitSet | None:
        wait_sets = self._for_room.get(requirements.node_set)
        return wait_sets.get(requirements) if wait_sets is not None else None

    def has_for_queue(self, partition: str) -> bool:
        """Whether any asks have ever waited for a queue."""
        return partition in self._for_queue

    def for_queue(self, queue: Queue, partition: str) -> list[WaitSet]:
        queues = self._for_queue.get(partition)
        wait_sets = queues.get(queue) if queues is not None else None
        return list(wait_sets.values()) if wait_sets else []

    def for_user_limit(self, leaf: LeafQueue, partition: str) -> UserLimitWaitSet | None:
        return self._for_user_limit.get((leaf, partition)) if self._for_user_limit else None

    @property
    def has_unblocked(self) -> bool:
        return bool(self._unblocked)

    def unblocked_in(self, partition: str) -> WaitSet:
        wait_set = self._unblocked_sets.get(partition)
        if wait_set is None:
            wait_set = self._unblocked_sets[partition] = WaitSet(self._unblocked, partition, is_mixed=True)
        return wait_set

    def unblocked_partitions(self) -> list[str]:
        return [name for name, wait_set in self._unblocked_sets.items() if wait_set] if self._unblocked else []
