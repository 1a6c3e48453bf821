"""The pending asks of active applications by user, and the sets in which they wait: see container_allocator.py.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from statemachines.heap import LazyHeap
from statemachines.resourcemanager.scheduler.capacity.limits import exceeds, user_limit
from statemachines.resourcemanager.scheduler.capacity.queue_applications import app_of
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, Queue
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, amounts_of
from statemachines.resourcemanager.scheduler.core.application import AppPlacementAllocator, SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.node import NodeRequirements, NodeSet, SchedulerNode, of_node
from statemachines.resourcemanager.scheduler.core.node_tracker import ClusterNodeTracker

_fifo_key: Callable[[AppPlacementAllocator], Any] = attrgetter("key")


def _fair_key(allocator: AppPlacementAllocator) -> tuple[float, Any]:
    return app_of(allocator.attempt).share_of(allocator.requirements.partition), allocator.key


def service_key(allocator: AppPlacementAllocator) -> tuple[Any, ...]:
    """The sort key among all allocators of a partition: by queue level by level, then within the leaf."""
    leaf = app_of(allocator.attempt).leaf
    key = _fair_key(allocator) if leaf.is_fair else allocator.key
    return *leaf.place(allocator.requirements.partition), key, allocator.first.arrival


UserAsksName = tuple[LeafQueue, str, NodeRequirements]
"""Leaf, user and requirements."""


def user_asks_name(allocator: AppPlacementAllocator) -> UserAsksName:
    app = app_of(allocator.attempt)
    return app.leaf, app.user, allocator.requirements


class UserAsks:
    """The asks of one user of a leaf with the same requirements, by the leaf's ordering policy, then by priority.

    Allocators of one application and priority with different requirements have the same key; among these, the earliest
    ask is served first.
    """

    __slots__ = ("allocators", "amounts", "leaf", "requirements", "user", "wait_set")

    def __init__(self, leaf: LeafQueue, user: str, requirements: NodeRequirements) -> None:
        self.leaf: LeafQueue = leaf
        self.user: str = user
        self.requirements: NodeRequirements = requirements
        self.amounts: Amounts = amounts_of(requirements.resource)
        self.allocators: LazyHeap[AppPlacementAllocator] = LazyHeap(_fair_key if leaf.is_fair else _fifo_key)
        self.wait_set: WaitSet | UserLimitWaitSet | None = None  # contains it, while it has asks

    def add(self, allocator: AppPlacementAllocator) -> None:
        """Add the allocator, or note that its position improved."""
        self.allocators.add(allocator)
        if self.wait_set is not None and self.first() is allocator:
            self.wait_set.add(self)

    def first(self) -> AppPlacementAllocator:
        allocator = self.allocators.first()
        assert allocator is not None
        return allocator

    @property
    def name(self) -> UserAsksName:
        return self.leaf, self.user, self.requirements

    @property
    def key(self) -> tuple[Any, int]:
        """The sort key among the UserAsks of the leaf and partition."""
        entry = self.allocators.least()
        assert entry is not None
        return entry[0], entry[2].first.arrival


_key: Callable[[UserAsks], Any] = attrgetter("key")


def _key_among_same(user_asks: UserAsks) -> Any:
    """The sort key among the UserAsks of the leaf with the same requirements: each application is in only one."""
    entry = user_asks.allocators.least()
    assert entry is not None
    return entry[0]


class WaitSet:
    """UserAsks that wait for the same thing. All have the same requirements, unless `is_mixed`."""

    __slots__ = ("_home", "_key", "_name", "amounts", "leaves", "queue")

    def __init__(
        self,
        home: dict[Any, WaitSet],
        name: Any,
        *,
        queue: Queue | None = None,
        amounts: Amounts = (),
        is_mixed: bool = False,
    ) -> None:
        """`home`: contains the set under `name` while the set is not empty."""
        self._home = home
        self._name = name
        self._key = _key if is_mixed else _key_among_same
        self.queue: Queue | None = queue  # the queue they wait for, if any
        self.amounts: Amounts = amounts  # what each of them needs in the queue
        self.leaves: dict[LeafQueue, LazyHeap[UserAsks]] = {}  # never empty ones

    def __bool__(self) -> bool:
        return bool(self.leaves)

    def __iter__(self) -> Iterator[UserAsks]:
        for members in self.leaves.values():
            yield from members

    def add(self, user_asks: UserAsks) -> None:
        """Add the asks, or note that their position improved."""
        members = self.leaves.get(user_asks.leaf)
        if members is None:
            if not self.leaves:
                self._home[self._name] = self
            members = self.leaves[user_asks.leaf] = LazyHeap(self._key)
        members.add(user_asks)
        user_asks.wait_set = self

    def remove(self, user_asks: UserAsks) -> None:
        members = self.leaves[user_asks.leaf]
        members.discard(user_asks)
        user_asks.wait_set = None
        if not members:
            del self.leaves[user_asks.leaf]
            if not self.leaves:
                del self._home[self._name]

    def first(self, leaf: LeafQueue) -> UserAsks | None:
        """The leaf's UserAsks to serve first."""
        members = self.leaves.get(leaf)
        return members.first() if members is not None else None


class UserLimitWaitSet:
    """The UserAsks of one leaf and partition whose users have more than the user limit.

    All users that ask for the same amounts have the same limit, so the user with the smallest share is the
    first to be within it again.
    """

    __slots__ = ("_home", "_leaf", "_members", "_partition", "_users")

    def __init__(self, home: dict[tuple[LeafQueue, str], UserLimitWaitSet], leaf: LeafQueue, partition: str) -> None:
        """`home`: contains the set while the set is not empty."""
        self._home = home
        self._leaf = leaf
        self._partition = partition
        self._users: dict[Amounts, LazyHeap[str]] = {}  # by amounts asked for, sorted by share; never empty ones
        self._members: dict[tuple[Amounts, str], dict[UserAsks, None]] = {}  # by amounts and user; never empty ones

    def _user_share(self, user: str) -> float:
        return self._leaf.user_share(user, self._partition)

    def add(self, user_asks: UserAsks) -> None:
        key = user_asks.amounts, user_asks.user
        members = self._members.get(key)
        if members is None:
            if not self._members:
                self._home[self._leaf, self._partition] = self
            members = self._members[key] = {}
            users = self._users.get(user_asks.amounts)
            if users is None:
                users = self._users[user_asks.amounts] = LazyHeap(self._user_share)
            users.add(user_asks.user)
        members[user_asks] = None
        user_asks.wait_set = self

    def remove(self, user_asks: UserAsks) -> None:
        key = user_asks.amounts, user_asks.user
        members = self._members[key]
        del members[user_asks]
        user_asks.wait_set = None
        if not members:
            del self._members[key]
            users = self._users[user_asks.amounts]
            users.discard(user_asks.user)
            if not users:
                del self._users[user_asks.amounts]
            if not self._members:
                del self._home[self._leaf, self._partition]

    def within_limit(self) -> list[UserAsks]:
        """Remove and return the UserAsks of users that are within the limit."""
        taken: list[UserAsks] = []
        for amounts, users in list(self._users.items()):
            limit = user_limit(self._leaf, self._partition, amounts)
            while (least := users.least()) is not None and not exceeds(least[0], limit):
                taken += self._take_all(amounts, least[2])
        return taken

    def within_limit_of(self, user: str) -> list[UserAsks]:
        """Remove and return the UserAsks of one user, whose usage has fallen, if they are within the limit."""
        taken: list[UserAsks] = []
        for amounts, users in list(self._users.items()):
            if user in users:
                if exceeds(self._user_share(user), user_limit(self._leaf, self._partition, amounts)):
                    users.lessened(user)
                else:
                    taken += self._take_all(amounts, user)
        return taken

    def resized(self) -> None:
        """Sort the users again: the partition's size, and with it their shares, have changed."""
        for users in self._users.values():
            for user in users:
                users.lessened(user)

    def _take_all(self, amounts: Amounts, user: str) -> list[UserAsks]:
        taken = list(self._members[amounts, user])
        for user_asks in taken:
            self.remove(user_asks)
        return taken


_WaitSets = dict[NodeRequirements, WaitSet]  # never empty ones


class QueueAsks:
    """UserAsks, each in one wait set. A pending application's asks are added when it becomes active."""

    # All fields are guarded by the scheduler's lock.
    def __init__(self, nodes: ClusterNodeTracker) -> None:
        self._nodes = nodes
        self._user_asks: dict[UserAsksName, UserAsks] = {}  # never empty ones
        self._of: dict[AppPlacementAllocator, UserAsks] = {}
        self._for_room: dict[NodeSet, _WaitSets] = {}
        self._for_queue: dict[str, dict[Queue, _WaitSets]] = {}  # by partition
        self._for_user_limit: dict[tuple[LeafQueue, str], UserLimitWaitSet] = {}  # by leaf, partition; never empty ones
        self._unblocked: dict[str, WaitSet] = {}  # by partition; never empty ones
        self._unblocked_sets: dict[str, WaitSet] = {}  # by partition, including empty ones

    # -- allocators ---------------------------------------------------------------------------------------------------

    def move_up(self, attempt: SchedulerApplicationAttempt) -> None:
        """The position of the attempt's asks may have improved."""
        for allocator in attempt.pending.values():
            user_asks = self._of.get(allocator)
            if user_asks is not None:
                user_asks.add(allocator)

    def of(self, allocator: AppPlacementAllocator) -> UserAsks:
        """The UserAsks with an allocator that has been added."""
        return self._of[allocator]

    def add(self, allocator: AppPlacementAllocator) -> None:
        if not app_of(allocator.attempt).is_active:
            return
        requirements, name = allocator.requirements, user_asks_name(allocator)
        user_asks = self._user_asks.get(name)
        if user_asks is not None:  # these asks wait for what the others wait for
            self._of[allocator] = user_asks
            user_asks.add(allocator)
            return
        user_asks = self._user_asks[name] = self._of[allocator] = UserAsks(*name)
        user_asks.add(allocator)
        # Others with these requirements wait for room: no node has any, unless one was freed just now.
        wait_set = self.for_room(requirements) if not self._nodes.freed else None
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
            del self._user_asks[user_asks.name]
            self.take_out(user_asks)

    # -- from one wait set to another ---------------------------------------------------------------------------------

    def unblock(self, user_asks: UserAsks) -> None:
        """The asks may be servable now."""
        self.take_out(user_asks)
        self.unblocked_in(user_asks.requirements.partition).add(user_asks)

    def wait_for_room(self, user_asks: UserAsks) -> None:
        self.take_out(user_asks)
        requirements = user_asks.requirements
        wait_set = self.for_room(requirements)
        if wait_set is None:
            wait_set = WaitSet(self._for_room.setdefault(requirements.node_set, {}), requirements)
        wait_set.add(user_asks)

    def wait_for_queue(self, user_asks: UserAsks, queue: Queue) -> None:
        self.take_out(user_asks)
        requirements = user_asks.requirements
        wait_sets = self._for_queue.setdefault(requirements.partition, {}).setdefault(queue, {})
        wait_set = wait_sets.get(requirements)
        if wait_set is None:
            wait_set = WaitSet(wait_sets, requirements, queue=queue, amounts=user_asks.amounts)
        wait_set.add(user_asks)

    def wait_for_user_limit(self, user_asks: UserAsks) -> None:
        self.take_out(user_asks)
        key = user_asks.leaf, user_asks.requirements.partition
        wait_set = self._for_user_limit.get(key)
        if wait_set is None:
            wait_set = UserLimitWaitSet(self._for_user_limit, *key)
        wait_set.add(user_asks)

    def take_out(self, user_asks: UserAsks) -> None:
        if user_asks.wait_set is not None:
            user_asks.wait_set.remove(user_asks)

    # -- the wait sets ------------------------------------------------------------------------------------------------

    def for_room_on(self, node: SchedulerNode) -> list[_WaitSets]:
        """The wait sets for room whose node set contains the node; a blacklist or GPU model may still exclude it."""
        return of_node(self._for_room, node)

    def for_room(self, requirements: NodeRequirements) -> WaitSet | None:
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
