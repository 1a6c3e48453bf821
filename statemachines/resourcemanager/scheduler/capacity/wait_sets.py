"""QueueAsks, and the wait_sets in which they wait for the same thing.

The limits let all asks of one user of a leaf with the same requirements pass, or none, and they fit together.
Those that wait for the same thing lie in one wait set, so that who brings what they wait for finds the first of them
without looking at the others.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from operator import attrgetter
from typing import Any, cast

from dispatcher.util.heap import LazyHeap
from statemachines.resourcemanager.scheduler.capacity.limits import user_limit
from statemachines.resourcemanager.scheduler.capacity.queue_applications import QueueApplication
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, Queue
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, amounts_of
from statemachines.resourcemanager.scheduler.core.pending_asks import AppPlacementAllocator
from statemachines.resourcemanager.scheduler.core.requirements import NodeRequirements

_fifo_key: Callable[[AppPlacementAllocator], Any] = attrgetter("key")


def _fair_key(group: AppPlacementAllocator) -> tuple[float, Any]:
    return cast(QueueApplication, group.attempt.app).share_of(group.requirements.partition), group.key


def group_key(group: AppPlacementAllocator) -> Any:
    """The place among the groups of its leaf and requirements: by the leaf's policy, then by priority.

    Those of one application and priority, for several by_requirements, have the same: of these the older comes first.
    """
    return _fair_key(group) if cast(QueueApplication, group.attempt.app).leaf.is_fair else group.key


class UserAsks:
    """Asks of one user of a leaf for one requirements."""

    __slots__ = ("amounts", "groups", "leaf", "requirements", "user", "wait_set")

    def __init__(self, leaf: LeafQueue, user: str, requirements: NodeRequirements) -> None:
        self.leaf = leaf
        self.user = user
        self.requirements = requirements
        self.amounts = amounts_of(requirements.resource)
        self.groups: LazyHeap[AppPlacementAllocator] = LazyHeap(_fair_key if leaf.is_fair else _fifo_key)
        self.wait_set: WaitSet | UserLimitWaitSet | None = None  # where it lies; it has a group then

    def first(self) -> AppPlacementAllocator:
        """Who is served first."""
        group = self.groups.first()
        assert group is not None
        return group

    @property
    def key(self) -> tuple[Any, int]:
        """The place among the members of its leaf and partition: that of its first group."""
        entry = self.groups.least()
        assert entry is not None
        return entry[0], entry[2].first_arrival


_any_key: Callable[[UserAsks], Any] = attrgetter("key")


def _key_in_requirements(user_asks: UserAsks) -> Any:
    """The place among the members of its leaf for the same requirements: no two have groups of the same application."""
    entry = user_asks.groups.least()
    assert entry is not None
    return entry[0]


class WaitSet:
    """QueueAsks that wait for the same thing. Those for room, or for a queue, are all of one requirements."""

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
        """`home`: it lies there under `name` while there is something in it; `is_mixed`: of several requirements."""
        self._home = home
        self._name = name
        self._key = _any_key if is_mixed else _key_in_requirements
        self.queue = queue  # whose maximum they wait for, if they do
        self.amounts = amounts  # what each of them needs there
        self._leaves: dict[LeafQueue, LazyHeap[UserAsks]] = {}  # none of them empty

    def __bool__(self) -> bool:
        return bool(self._leaves)

    def __iter__(self) -> Iterator[UserAsks]:
        for members in self._leaves.values():
            yield from members

    @property
    def leaves(self) -> Collection[LeafQueue]:
        return self._leaves

    def add(self, user_asks: UserAsks) -> None:
        """Put it here, or, if it is here, note that it comes earlier than before."""
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
        """The first user_asks of the leaf."""
        members = self._leaves.get(leaf)
        return members.first() if members is not None else None


class UserLimitWaitSet:
    """The members of one leaf and partition that wait for their users to be below their limit.

    The limit is the same for all users who want the same amounts; so those who have least are below it first.
    """

    __slots__ = ("_home", "_leaf", "_partition", "_user_asks", "_users")

    def __init__(self, home: dict[tuple[LeafQueue, str], UserLimitWaitSet], leaf: LeafQueue, partition: str) -> None:
        """`home`: it lies there while there is something in it."""
        self._home = home
        self._leaf = leaf
        self._partition = partition
        self._users: dict[Amounts, LazyHeap[str]] = {}  # who wants so much, by what they have; none of them empty
        self._user_asks: dict[tuple[Amounts, str], dict[UserAsks, None]] = {}  # of each of these; none of them empty

    def _has(self, user: str) -> float:
        return self._leaf.user_share(user, self._partition)

    def add(self, user_asks: UserAsks) -> None:
        key = user_asks.amounts, user_asks.user
        members = self._user_asks.get(key)
        if members is None:
            if not self._user_asks:
                self._home[self._leaf, self._partition] = self
            members = self._user_asks[key] = {}
            users = self._users.get(user_asks.amounts)
            if users is None:
                users = self._users[user_asks.amounts] = LazyHeap(self._has)
            users.add(user_asks.user)
        members[user_asks] = None
        user_asks.wait_set = self

    def remove(self, user_asks: UserAsks) -> None:
        key = user_asks.amounts, user_asks.user
        members = self._user_asks[key]
        del members[user_asks]
        user_asks.wait_set = None
        if not members:
            del self._user_asks[key]
            users = self._users[user_asks.amounts]
            users.discard(user_asks.user)
            if not users:
                del self._users[user_asks.amounts]
            if not self._user_asks:
                del self._home[self._leaf, self._partition]

    def below_limit(self) -> list[UserAsks]:
        """Take out those whose users are below their limit."""
        members: list[UserAsks] = []
        for amounts, users in list(self._users.items()):
            limit = user_limit(self._leaf, self._partition, amounts)
            while (least := users.least()) is not None and least[0] < limit:
                members += self._take_all(amounts, least[2])
        return members

    def below_limit_of(self, user: str) -> list[UserAsks]:
        """The same of one user, who has less than before."""
        members: list[UserAsks] = []
        for amounts, users in list(self._users.items()):
            if user in users:
                if self._has(user) < user_limit(self._leaf, self._partition, amounts):
                    members += self._take_all(amounts, user)
                else:
                    users.lessened(user)
        return members

    def resized(self) -> None:
        """The partition has another size: what users have are other shares of it."""
        for users in self._users.values():
            for user in users:
                users.lessened(user)

    def _take_all(self, amounts: Amounts, user: str) -> list[UserAsks]:
        members = list(self._user_asks[amounts, user])
        for user_asks in members:
            self.remove(user_asks)
        return members
