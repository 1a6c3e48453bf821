"""The capacity scheduler's tree of queues: what each queue may use of each partition, what it uses, and the limits.

Pure books: no dispatcher, no nodes, no containers. Shares are absolute, of the whole partition: the configured ones,
which are relative to the parent, multiplied down the path. A queue may use what its siblings leave, up to its maximum;
no allocation brings any resource type beyond that.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dispatcher.util.figures import counted
from statemachines.resourcemanager.records.config import PartitionCapacityConfig, QueueConfig, SchedulerConfig
from statemachines.resourcemanager.scheduler.capacity.queue_checks import ROOT, check_scheduler_queues
from statemachines.resourcemanager.scheduler.core.amounts import Amounts, add, dominant_share, maximum_allocation
from statemachines.resourcemanager.scheduler.core.users import User

if TYPE_CHECKING:
    from statemachines.resourcemanager.records.resource import MaximumAllocation

DEFAULT_PARTITION = ""
_NOTHING = PartitionCapacityConfig(capacity=0, maximum_capacity=0)
_ALL = Fraction(1)

_Order = tuple[bool, int, float, float, int]


@dataclass(slots=True, eq=False)
class Share:
    """What one queue may use, and uses, of one partition."""

    capacity: Fraction  # guaranteed share of the partition
    maximum: Fraction
    priority: int = 0  # of the queue
    index: int = 0  # of the queue, among its siblings
    guarantee: float = field(init=False)  # the capacity
    total: Mapping[str, int] = field(init=False, default_factory=dict)  # of the partition
    limit: dict[str, int] = field(init=False, default_factory=dict)  # the maximum, by type; rounded down
    used: dict[str, int] = field(init=False, default_factory=dict)  # with what is reserved
    reserved: dict[str, int] = field(init=False, default_factory=dict)
    order: _Order | None = field(init=False, default=None)  # cache of `find_order`; None: to be computed
    _used_share: float | None = field(init=False, default=0.0)  # cache; None: to be computed

    def __post_init__(self) -> None:
        self.guarantee = float(self.capacity)

    def configure(self, capacity: Fraction, maximum: Fraction, priority: int, index: int) -> None:
        """Change what is configured; what is used stays."""
        self.capacity, self.maximum, self.priority, self.index = capacity, maximum, priority, index
        self.guarantee = float(capacity)
        self.set_total(self.total)

    @property
    def used_share(self) -> float:
        share = self._used_share
        if share is None:
            share = self._used_share = dominant_share(self.used.items(), self.total)
        return share

    @property
    def utilisation(self) -> float:
        """Usage as a share of the guarantee; infinite without a guarantee."""
        return self.used_share / self.guarantee if self.guarantee else math.inf

    def find_order(self) -> _Order:
        """The sort key among siblings: those below their guarantee first, then by priority, then by utilisation.

        This is YARN's priority-utilization policy.
        """
        utilisation = self.utilisation
        order = self.order = (utilisation >= 1, -self.priority, utilisation, -self.guarantee, self.index)
        return order

    def set_total(self, total: Mapping[str, int]) -> None:
        self.total = total
        maximum = self.maximum
        self.limit = {
            type_: amount * maximum.numerator // maximum.denominator for type_, amount in total.items() if amount
        }
        self._used_share = self.order = None

    def charge(self, amounts: Amounts, sign: int = 1) -> None:
        add(self.used, amounts, sign)
        self._used_share = self.order = None

    def has_room(self, amounts: Amounts) -> bool:
        """Whether all types are within their limits once `amounts` are added."""
        used, limit = self.used, self.limit
        for type_, amount in amounts:
            if used.get(type_, 0) + amount > limit.get(type_, 0):
                return False
        # After the partition shrank, a type that is not requested may be beyond its limit.
        for type_, amount in used.items():  # noqa: SIM110 - a hot path, and `all` costs more
            if amount > limit.get(type_, 0):
                return False
        return True

    def has_room_without(self, unreserved: Amounts | None, amounts: Amounts) -> bool:
        """Where `has_room` finds none: whether there is room once `unreserved`, which is reserved here, is given up.

        The reservations of others count, unless the queue may use the whole partition. Then its nodes are its limit,
        and a reserved node takes no other container anyway. `used` counts such a node's room
        twice: what its containers have, and what the reservation waits for. None: all reservations count everywhere.
        """
        if unreserved is None:
            return False
        given_up = self.reserved if self.maximum == 1 else dict(unreserved)
        if not given_up:
            return False
        used, limit, more = self.used, self.limit, dict(amounts)
        return all(
            used.get(type_, 0) - given_up.get(type_, 0) + more.get(type_, 0) <= limit.get(type_, 0)
            for type_ in {**used, **more}
        )


class Queue:
    """The common part of parents and leaves."""

    def __init__(self, config: QueueConfig, parent: ParentQueue | None, index: int, scheduler: SchedulerConfig) -> None:
        self.parent = parent
        self.path: str = f"{parent.path}.{config.name}" if parent is not None else config.name
        self.lineage: tuple[Queue, ...] = (*(parent.lineage if parent is not None else ()), self)  # from the root
        self.applications = 0  # not ended
        self.pending = 0  # applications whose attempt may not start its master yet
        self.containers = 0
        self.shares: dict[str, Share] = {}  # by partition
        self.configure(config, index, scheduler)

    def configure(self, config: QueueConfig, index: int, scheduler: SchedulerConfig) -> None:
        """Take the configuration, or another one once the queues above have theirs. Counts and usage stay."""
        self.config = config
        self.index = index  # among its siblings
        self.maximum_applications: int | None = config.maximum_applications  # None: no limit of its own
        self.maximum_allocation: MaximumAllocation = maximum_allocation(
            _nearest("maximum_allocation_mb", self), _nearest("maximum_allocation_vcores", self)
        )
        # Whether its containers are safe from preemption for other queues, as all are where there is none.
        self.disables_preemption: bool = not scheduler.preemption.enabled or bool(_nearest("disable_preemption", self))
        for partition, share in self.shares.items():
            share.configure(*self._share_of(partition))
        for partition in (DEFAULT_PARTITION, *config.accessible_node_labels):
            self.share(partition)

    @property
    def is_running(self) -> bool:
        """Whether this queue and all queues above it are in state RUNNING."""
        return all(queue.config.state == "RUNNING" for queue in self.lineage)

    def may_use(self, partition: str) -> bool:
        return not partition or partition in self.config.accessible_node_labels

    def share(self, partition: str) -> Share:
        """The share of a partition; an empty share of one that the queue may not use."""
        share = self.shares.get(partition)
        if share is None:
            share = self.shares[partition] = self._make_share(partition)
        return share

    def _make_share(self, partition: str) -> Share:
        share = Share(*self._share_of(partition))
        if self.parent is not None:
            share.set_total(self.parent.share(partition).total)
        return share

    def _share_of(self, partition: str) -> tuple[Fraction, Fraction, int, int]:
        """The configured part of a share: capacity, maximum, priority and index."""
        if self.parent is None:
            return _ALL, _ALL, self.config.priority, 0
        config: QueueConfig | PartitionCapacityConfig = self.config
        if partition:
            config = self.config.accessible_node_labels.get(partition, _NOTHING)
        above = self.parent.share(partition)
        capacity, maximum = _fraction(config.capacity), _fraction(config.maximum_capacity)
        return above.capacity * capacity, above.maximum * maximum, self.config.priority, self.index


class ParentQueue(Queue):
    """A queue with child queues."""

    children: tuple[Queue, ...] = ()

    def configure(self, config: QueueConfig, index: int, scheduler: SchedulerConfig) -> None:
        """Take the configuration for this queue and those below it.

        Children of the same name and kind stay; others are made or dropped.
        """
        super().configure(config, index, scheduler)
        known = {child.config.name: child for child in self.children}
        children: list[Queue] = []
        for number, child in enumerate(config.queues):
            kind = ParentQueue if child.queues else LeafQueue
            queue = known.get(child.name)
            if type(queue) is kind:
                queue.configure(child, number, scheduler)
            else:
                queue = kind(child, self, number, scheduler)
            children.append(queue)
        self.children = tuple(children)


class LeafQueue(Queue):
    """A queue with applications."""

    def __init__(self, config: QueueConfig, parent: ParentQueue, index: int, scheduler: SchedulerConfig) -> None:
        self._lines: dict[str, tuple[Share, ...]] = {}  # by partition
        self.masters_used: dict[str, dict[str, int]] = {}  # by masters of active applications; by partition
        self.active = 0  # applications whose attempt may have its master
        self.users: dict[str, User] = {}
        self.active_users: int = 0
        super().__init__(config, parent, index, scheduler)

    def configure(self, config: QueueConfig, index: int, scheduler: SchedulerConfig) -> None:
        super().configure(config, index, scheduler)
        own = config.maximum_am_resource_percent
        percent = scheduler.maximum_am_resource_percent if own is None else own
        self.am_share: Fraction = _fraction(percent)  # what masters may use of its maximum
        most = config.maximum_applications
        if most is None:
            capacity: Fraction = max(share.capacity for share in self.shares.values())
            most = max(1, int(scheduler.maximum_applications * capacity))
            self.maximum_applications: int | None = most
        part = _fraction(config.minimum_user_limit_percent) * _fraction(100 * config.user_limit_factor)
        self.maximum_applications_per_user: int = max(1, int(most * min(_ALL, part)))
        self.is_fair: bool = config.ordering_policy == "fair"
        self.default_label: str = config.default_node_label or DEFAULT_PARTITION
        self.maximum_lifetime_s: int | None = _nearest("maximum_lifetime_s", self)
        self.default_lifetime_s: int | None = _nearest("default_lifetime_s", self)

    def place(self, partition: str) -> tuple[Any, ...]:
        """The sort key among all leaves, level by level; the lowest is served first."""
        shares = self._lines.get(partition) or self.lineage_shares(partition)
        if len(shares) == 2:
            return (shares[1].order or shares[1].find_order(),)
        return tuple([share.order or share.find_order() for share in shares[1:]])

    def lineage_shares(self, partition: str) -> tuple[Share, ...]:
        """The shares of the queues from the root to this one."""
        shares = self._lines.get(partition)
        if shares is None:
            shares = self._lines[partition] = tuple([queue.share(partition) for queue in self.lineage])
        return shares

    def charge(self, user: str, partition: str, amounts: Amounts, sign: int = 1) -> None:
        """Add a container (`sign` 1) or remove one (-1), here and in all queues above."""
        for share in self._lines.get(partition) or self.lineage_shares(partition):
            share.charge(amounts, sign)
        for queue in self.lineage:
            queue.containers += sign
        self.users[user].charge(partition, amounts, sign)

    def charge_reservation(self, user: str, partition: str, amounts: Amounts, sign: int) -> None:
        """What has been charged (`sign` 1), or is about to be discharged (-1), is a reservation."""
        for share in self.lineage_shares(partition):
            add(share.reserved, amounts, sign)
        self.users[user].charge_reservation(partition, amounts, sign)

    def user_share(self, user: str, partition: str, unreserved: Amounts = ()) -> float:
        """The dominant share of the partition that the user's containers here have; not counting `unreserved`."""
        used = self.users[user].used.get(partition)
        if not used:
            return 0.0
        if unreserved:
            used = used.copy()
            add(used, unreserved, -1)
        return dominant_share(used.items(), self.share(partition).total)

    def enter(self, user: str) -> None:
        self.users.setdefault(user, User()).applications += 1
        for queue in self.lineage:
            queue.applications += 1

    def leave(self, user: str) -> None:
        """Remove an application of `user`, which no longer has containers or asks."""
        entry = self.users[user]
        entry.applications -= 1
        if not entry.applications:
            assert not entry.asks  # otherwise `active_users` would count the user for ever
            assert not entry.pending
            del self.users[user]
        for queue in self.lineage:
            queue.applications -= 1

    def add_asks(self, user: str, count: int) -> bool:
        """`count` more pending asks of active applications; returns whether the user ceased to be active."""
        entry = self.users[user]
        was_active = entry.asks > 0
        entry.asks += count
        is_active = entry.asks > 0
        self.active_users += is_active - was_active
        return was_active and not is_active

    def add_pending(self, count: int) -> None:
        for queue in self.lineage:
            queue.pending += count

    def lifetime_s(self, asked_s: int | None) -> int | None:
        """The lifetime of an application that requests `asked_s`."""
        maximum_s = self.maximum_lifetime_s
        wanted_s = self.default_lifetime_s if asked_s is None else asked_s
        if wanted_s is None or maximum_s is None:
            return maximum_s if wanted_s is None else wanted_s
        return min(wanted_s, maximum_s)


class QueueTree:
    """All queues, and the size of each partition."""

    def __init__(self, config: SchedulerConfig) -> None:
        check_scheduler_queues(config)
        self.root: ParentQueue = ParentQueue(_root_of(config), None, 0, config)
        self.totals: dict[str, dict[str, int]] = {}  # by partition
        self._note(config)

    def configure(self, config: SchedulerConfig) -> None:
        """Take another valid configuration, to which `why_kept` has no objection."""
        self.root.configure(_root_of(config), 0, config)
        self._note(config)

    def _note(self, config: SchedulerConfig) -> None:
        self.maximum_allocation: MaximumAllocation = maximum_allocation(
            config.maximum_allocation_mb, config.maximum_allocation_vcores
        )
        self._by_path = {queue.path: queue for queue in _walk(self.root)}
        self.leaves: dict[str, LeafQueue] = {
            queue.config.name: queue for queue in self._by_path.values() if isinstance(queue, LeafQueue)
        }

    def why_kept(self, config: SchedulerConfig) -> str | None:
        """Why a queue must stay that this configuration removes, or turns from leaf to parent or back; or None."""
        leaves = dict(_kinds(config.queues, ROOT))
        for queue in self._by_path.values():
            is_leaf = isinstance(queue, LeafQueue)
            if queue is self.root or leaves.get(queue.path) is is_leaf:
                continue
            what = "removed" if queue.path not in leaves else "given children" if is_leaf else "left without children"
            if queue.applications:
                held = counted(queue.applications, "application")
                return f"queue {queue.path} has {held} and cannot be {what}: stop it, and move or end them first"
        return None

    def queues(self) -> Iterator[Queue]:
        """Parents before children."""
        return iter(self._by_path.values())

    def find(self, name: str) -> Queue | None:
        """A queue by its path, which may leave out the root, or a leaf by its name."""
        found = self._by_path.get(name) or self.leaves.get(name)
        return self._by_path.get(f"{ROOT}.{name}") if found is None and "." in name else found

    def leaf(self, name: str) -> LeafQueue | None:
        """A leaf by its path or its name."""
        queue = self.find(name)
        return queue if isinstance(queue, LeafQueue) else None

    def grow(self, partition: str, amounts: Amounts, sign: int = 1) -> None:
        """Add to the partition's size, or with `sign` -1 subtract from it."""
        total = self.totals.setdefault(partition, {})
        add(total, amounts, sign)
        for queue in self._by_path.values():
            queue.share(partition).set_total(total)


def _root_of(config: SchedulerConfig) -> QueueConfig:
    return QueueConfig(
        name=ROOT,
        queues=config.queues,
        acl_submit_applications=config.acl_submit_applications,
        acl_administer_queue=config.acl_administer_queue,
        maximum_allocation_mb=config.maximum_allocation_mb,
        maximum_allocation_vcores=config.maximum_allocation_vcores,
    )


def _kinds(queues: Iterable[QueueConfig], above: str) -> Iterator[tuple[str, bool]]:
    """The path of each queue, and whether it is a leaf."""
    for queue in queues:
        path = f"{above}.{queue.name}"
        yield path, not queue.queues
        yield from _kinds(queue.queues, path)


def _walk(queue: Queue) -> Iterator[Queue]:
    yield queue
    if isinstance(queue, ParentQueue):
        for child in queue.children:
            yield from _walk(child)


def _fraction(percent: float) -> Fraction:
    """The exact decimal value: 33.3 as a float is slightly off."""
    return Fraction(str(percent)) / 100


def _nearest(key: str, below: Queue) -> int | None:
    """The setting of the queue, or of the nearest queue above it that has one."""
    for queue in reversed(below.lineage):
        value: int | None = getattr(queue.config, key)
        if value is not None:
            return value
    return None
