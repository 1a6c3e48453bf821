"""The asks of one user, and the sets in which they wait: see container_allocator.py.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from operator import attrgetter
from typing import Any

from dispatcher.util.heap import LazyHeap
from statemachines.resourcemanager.scheduler.capacity.limits import user_limit
from statemachines.resourcemanager.scheduler.capacity.queue_applications import app_of
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, Queue
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, amounts_of
from statemachines.resourcemanager.scheduler.core.application import AppPlacementAllocator
from statemachines.resourcemanager.scheduler.core.requirements import NodeRequirements

_fifo_key: Callable[[AppPlacementAllocator], Any] = attrgetter("key")


def _fair_key(allocator: AppPlacementAllocator) -> tuple[float, Any]:
    return app_of(allocator.attempt).share_of(allocator.requirements.partition), allocator.key


def service_key(allocator: AppPlacementAllocator) -> tuple[Any, ...]:
    """The sort key among all allocators of a partition: by queue level by level, then within the leaf."""
    leaf = app_of(allocator.attempt).leaf
    key = _fair_key(allocator) if leaf.is_fair else allocator.key
    return *leaf.place(allocator.requirements.partition), key, allocator.first_arrival


class UserAsks:
    """The asks of one user of a leaf with the same requirements, by the leaf's ordering policy, then by priority.

    Allocators of one application and priority with different requirements have the same key; among these, the earliest
    ask is served first.
    """

    __slots__ = ("allocators", "amounts", "leaf", "requirements", "user", "wait_set")

    def __init__(self, leaf: LeafQueue, user: str, requirements: NodeRequirements) -> None:
        self.leaf = leaf
        self.user = user
        self.requirements = requirements
        self.amounts = amounts_of(requirements.resource)
        self.allocators: LazyHeap[AppPlacementAllocator] = LazyHeap(_fair_key if leaf.is_fair else _fifo_key)
        self.wait_set: WaitSet | UserLimitWaitSet | None = None  # contains it, while it has asks

    def add(self, allocator: AppPlacementAllocator) -> None:
        """Add the allocator, or note that its position improved."""
        self.allocators.add(allocator)
        if self.wait_set is not None and self.first() is allocator:
            self.wait_set.add(self)

    def first(self) -> AppPlacementAllocator:
        """The allocator to serve first."""
        allocator = self.allocators.first()
        assert allocator is not None
        return allocator

    @property
    def key(self) -> tuple[Any, int]:
        """The sort key among the UserAsks of the leaf and partition."""
        entry = self.allocators.least()
        assert entry is not None
        return entry[0], entry[2].first_arrival


_key: Callable[[UserAsks], Any] = attrgetter("key")


def _key_among_same(user_asks: UserAsks) -> Any:
    """The sort key among the UserAsks of the leaf with the same requirements: each application is in only one."""
    entry = user_asks.allocators.least()
    assert entry is not None
    return entry[0]


class WaitSet:
    """UserAsks that wait for the same thing. All have the same requirements, unless `is_mixed`."""

    __slots__ = ("_home", "_key", "_leaves", "_name", "amounts", "queue")

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
        self.queue = queue  # the queue they wait for, if any
        self.amounts = amounts  # what each of them needs in the queue
        self._leaves: dict[LeafQueue, LazyHeap[UserAsks]] = {}  # never empty ones

    def __bool__(self) -> bool:
        return bool(self._leaves)

    def __iter__(self) -> Iterator[UserAsks]:
        for members in self._leaves.values():
            yield from members

    @property
    def leaves(self) -> Collection[LeafQueue]:
        return self._leaves

    def add(self, user_asks: UserAsks) -> None:
        """Add the asks, or note that their position improved."""
        members = self._leaves.get(user_asks.leaf)
        if members is None:
            if not self._leaves:
                self._home[self._name] = self
            members = self._leaves[user_asks.leaf] = LazyHeap(self._key)
        members.add(user_asks)
        user_asks.wait_set = self

    def remove(self, user_asks: UserAsks) -> None:
        members = self._leaves[user_asks.leaf]
        members.discard(user_asks)
        user_asks.wait_set = None
        if not members:
            del self._leaves[user_asks.leaf]
            if not self._leaves:
                del self._home[self._name]

    def first(self, leaf: LeafQueue) -> UserAsks | None:
        """The leaf's UserAsks to serve first."""
        members = self._leaves.get(leaf)
        return members.first() if members is not None else None


class UserLimitWaitSet:
    """The UserAsks of one leaf and partition whose users have reached the user limit.

    All users that ask for the same amounts have the same limit, so the user with the smallest share falls below it
    first.
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

    def below_limit(self) -> list[UserAsks]:
        """Remove and return the UserAsks of users below the limit."""
        taken: list[UserAsks] = []
        for amounts, users in list(self._users.items()):
            limit = user_limit(self._leaf, self._partition, amounts)
            while (least := users.least()) is not None and least[0] < limit:
                taken += self._take_all(amounts, least[2])
        return taken

    def below_limit_of(self, user: str) -> list[UserAsks]:
        """The same for one user, whose usage has fallen."""
        taken: list[UserAsks] = []
        for amounts, users in list(self._users.items()):
            if user in users:
                if self._user_share(user) < user_limit(self._leaf, self._partition, amounts):
                    taken += self._take_all(amounts, user)
                else:
                    users.lessened(user)
        return taken

    def resized(self) -> None:
        """Sort the users anew: the partition's size, and with it their shares, have changed."""
        for users in self._users.values():
            for user in users:
                users.lessened(user)

    def _take_all(self, amounts: Amounts, user: str) -> list[UserAsks]:
        taken = list(self._members[amounts, user])
        for user_asks in taken:
            self.remove(user_asks)
        return taken
