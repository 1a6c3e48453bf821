"""Claims, and the lots in which they wait for the same thing.

Asks of one user of a leaf for one shape make a claim: the limits let all of them pass, or none, and they fit together.
Claims that wait for the same thing lie in one lot, so that who brings what they wait for finds the first of them
without looking at the others.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from operator import attrgetter
from typing import Any, cast

from dispatcher.util.heap import LazyHeap
from statemachines.resourcemanager.scheduler.capacity.limits import user_limit
from statemachines.resourcemanager.scheduler.capacity.queue_apps import QueueApplication
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, Queue
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, amounts_of
from statemachines.resourcemanager.scheduler.core.backlog import AskGroup
from statemachines.resourcemanager.scheduler.core.shapes import Shape

_fifo_key: Callable[[AskGroup], Any] = attrgetter("key")


def _fair_key(group: AskGroup) -> tuple[float, Any]:
    return cast(QueueApplication, group.attempt.app).share_of(group.shape.partition), group.key


def group_key(group: AskGroup) -> Any:
    """The place among the groups of its leaf and shape: by the leaf's policy, then by priority.

    Those of one application and priority, for several shapes, have the same: of these the older comes first.
    """
    return _fair_key(group) if cast(QueueApplication, group.attempt.app).leaf.is_fair else group.key


class Claim:
    """Asks of one user of a leaf for one shape."""

    __slots__ = ("amounts", "groups", "leaf", "lot", "shape", "user")

    def __init__(self, leaf: LeafQueue, user: str, shape: Shape) -> None:
        self.leaf = leaf
        self.user = user
        self.shape = shape
        self.amounts = amounts_of(shape.resource)
        self.groups: LazyHeap[AskGroup] = LazyHeap(_fair_key if leaf.is_fair else _fifo_key)
        self.lot: Lot | HeldUsers | None = None  # where it lies; it has a group then

    def first(self) -> AskGroup:
        """Who is served first."""
        group = self.groups.first()
        assert group is not None
        return group

    @property
    def key(self) -> tuple[Any, int]:
        """The place among the claims of its leaf and partition: that of its first group."""
        entry = self.groups.least()
        assert entry is not None
        return entry[0], entry[2].first_arrival


_any_key: Callable[[Claim], Any] = attrgetter("key")


def _key_in_shape(claim: Claim) -> Any:
    """The place among the claims of its leaf for the same shape: no two have groups of the same application."""
    entry = claim.groups.least()
    assert entry is not None
    return entry[0]


class Lot:
    """Claims that wait for the same thing. Those for room, or for a queue, are all of one shape."""

    __slots__ = ("_home", "_key", "_leaves", "_name", "amounts", "queue")

    def __init__(
        self,
        home: dict[Any, Lot],
        name: Any,
        *,
        queue: Queue | None = None,
        amounts: Amounts = (),
        is_mixed: bool = False,
    ) -> None:
        """`home`: it lies there under `name` while there is something in it; `is_mixed`: claims of several shapes."""
        self._home = home
        self._name = name
        self._key = _any_key if is_mixed else _key_in_shape
        self.queue = queue  # whose maximum they wait for, if they do
        self.amounts = amounts  # what each of them needs there
        self._leaves: dict[LeafQueue, LazyHeap[Claim]] = {}  # none of them empty

    def __bool__(self) -> bool:
        return bool(self._leaves)

    def __iter__(self) -> Iterator[Claim]:
        for claims in self._leaves.values():
            yield from claims

    @property
    def leaves(self) -> Collection[LeafQueue]:
        return self._leaves

    def add(self, claim: Claim) -> None:
        """Put it here, or, if it is here, note that it comes earlier than before."""
        claims = self._leaves.get(claim.leaf)
        if claims is None:
            if not self._leaves:
                self._home[self._name] = self
            claims = self._leaves[claim.leaf] = LazyHeap(self._key)
        claims.add(claim)
        claim.lot = self

    def remove(self, claim: Claim) -> None:
        claims = self._leaves[claim.leaf]
        claims.discard(claim)
        claim.lot = None
        if not claims:
            del self._leaves[claim.leaf]
            if not self._leaves:
                del self._home[self._name]

    def first(self, leaf: LeafQueue) -> Claim | None:
        """The first claim of the leaf."""
        claims = self._leaves.get(leaf)
        return claims.first() if claims is not None else None


class HeldUsers:
    """The claims of one leaf and partition that wait for their users to be below their limit.

    The limit is the same for all users who want the same amounts; so those who have least are below it first.
    """

    __slots__ = ("_claims", "_home", "_leaf", "_partition", "_users")

    def __init__(self, home: dict[tuple[LeafQueue, str], HeldUsers], leaf: LeafQueue, partition: str) -> None:
        """`home`: it lies there while there is something in it."""
        self._home = home
        self._leaf = leaf
        self._partition = partition
        self._users: dict[Amounts, LazyHeap[str]] = {}  # who wants so much, by what they have; none of them empty
        self._claims: dict[tuple[Amounts, str], dict[Claim, None]] = {}  # of each of these; none of them empty

    def _has(self, user: str) -> float:
        return self._leaf.user_share(user, self._partition)

    def add(self, claim: Claim) -> None:
        key = claim.amounts, claim.user
        claims = self._claims.get(key)
        if claims is None:
            if not self._claims:
                self._home[self._leaf, self._partition] = self
            claims = self._claims[key] = {}
            users = self._users.get(claim.amounts)
            if users is None:
                users = self._users[claim.amounts] = LazyHeap(self._has)
            users.add(claim.user)
        claims[claim] = None
        claim.lot = self

    def remove(self, claim: Claim) -> None:
        key = claim.amounts, claim.user
        claims = self._claims[key]
        del claims[claim]
        claim.lot = None
        if not claims:
            del self._claims[key]
            users = self._users[claim.amounts]
            users.discard(claim.user)
            if not users:
                del self._users[claim.amounts]
            if not self._claims:
                del self._home[self._leaf, self._partition]

    def below_limit(self) -> list[Claim]:
        """Take out those whose users are below their limit."""
        claims: list[Claim] = []
        for amounts, users in list(self._users.items()):
            limit = user_limit(self._leaf, self._partition, amounts)
            while (least := users.least()) is not None and least[0] < limit:
                claims += self._take_all(amounts, least[2])
        return claims

    def below_limit_of(self, user: str) -> list[Claim]:
        """The same of one user, who has less than before."""
        claims: list[Claim] = []
        for amounts, users in list(self._users.items()):
            if user in users:
                if self._has(user) < user_limit(self._leaf, self._partition, amounts):
                    claims += self._take_all(amounts, user)
                else:
                    users.lessened(user)
        return claims

    def resized(self) -> None:
        """The partition has another size: what users have are other shares of it."""
        for users in self._users.values():
            for user in users:
                users.lessened(user)

    def _take_all(self, amounts: Amounts, user: str) -> list[Claim]:
        claims = list(self._claims[amounts, user])
        for claim in claims:
            self.remove(claim)
        return claims
