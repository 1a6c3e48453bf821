"""The scheduler's view of applications: their attempts, and the attempts' pending asks.

As in YARN's AppSchedulingInfo, an attempt has one AppPlacementAllocator per scheduler request key, here the priority
and the requirements. The asks of one allocator differ only in the node that they prefer: a node fits all or none.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

from statemachines.resourcemanager.events.records import ContainerRequest
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.records.ids import container_prefix
from statemachines.resourcemanager.records.submission import ApplicationSubmission
from statemachines.resourcemanager.scheduler.core.node import NodeRequirements, SchedulerNode

Rank = tuple[int, int]
"""An application's position among all; the lowest is served first."""
SchedulerRequestKey = tuple[int, NodeRequirements]
"""Priority and requirements."""


class PendingAsk(NamedTuple):
    """A request without its container yet."""

    arrival: int  # unique; greater is later
    request: ContainerRequest
    rack: str | None  # the preferred rack, or the rack of the preferred host
    since_ms: int = 0  # when it was made, Unix ms


class SchedulingOpportunity(NamedTuple):
    """One heartbeat, and the number of heartbeats that an ask lets pass before it gives up its preferred nodes."""

    number: int  # of the heartbeat: each counts as missed once at most, however many containers the node gets
    node_locality_delay: int  # missed opportunities before an ask accepts the rack of its preferred host
    off_switch_delay: int  # missed opportunities before an ask accepts any node


class SchedulerApplication:
    """An application that has not ended."""

    __slots__ = ("attempt", "id", "number", "priority", "queue", "submission", "user")

    def __init__(self, id: str, submission: ApplicationSubmission, number: int) -> None:
        self.id: str = id
        self.submission: ApplicationSubmission = submission  # as it was submitted
        self.number: int = number  # in the order of submission
        self.priority: int = submission.priority  # greater is more urgent; may change
        self.queue: str = submission.queue  # changes when the application is moved
        self.user: str = submission.user
        self.attempt: SchedulerApplicationAttempt | None = None  # the latest

    @property
    def rank(self) -> Rank:
        return -self.priority, self.number


@dataclass(slots=True, eq=False, repr=False)
class SchedulerApplicationAttempt:
    """An attempt with its containers and its pending asks."""

    id: str
    app: SchedulerApplication
    epoch: InitVar[int]
    default_label: str  # partition of asks that do not name one
    prefix: str = field(init=False)  # of its containers' ids
    next_number: int = 1  # of the next container
    live: dict[str, RMContainer] = field(default_factory=dict)  # not ended
    new: list[RMContainer] = field(default_factory=list)  # containers that the master has not pulled
    reservations: dict[str, RMContainer] = field(default_factory=dict)  # reserved containers, by id
    master: str | None = None  # the master's container, once allocated
    blacklist: frozenset[str] = frozenset()  # hosts
    preempted: dict[str, None] = field(default_factory=dict)  # containers with notice that the master has not pulled
    is_stopped: bool = False  # it has ended, and its containers wait for the next attempt
    rank: Rank = field(init=False)  # sorts its allocators
    pending: dict[SchedulerRequestKey, AppPlacementAllocator] = field(default_factory=dict)  # never empty ones
    pending_count: int = 0  # asks in `pending`

    def __post_init__(self, epoch: int) -> None:
        self.prefix = container_prefix(self.id, epoch)
        self.rank = self.app.rank

    def asked_partitions(self) -> list[str]:
        """The partitions of its pending asks; without any, its default partition."""
        if not self.pending:
            return [self.default_label]
        return list(dict.fromkeys([requirements.partition for _, requirements in self.pending]))

    def next_container_id(self) -> str:
        number = self.next_number
        self.next_number = number + 1
        return f"{self.prefix}{number:06d}"


class AppPlacementAllocator:
    """The pending asks of one attempt under one scheduler request key; never empty while in `attempt.pending`.

    An ask is node-local on its preferred host, rack-local in its rack and off-switch elsewhere.
    """

    __slots__ = (
        "_by_location",
        "_last_missed",
        "_local",
        "_off_switch",
        "attempt",
        "key",
        "missed_opportunities",
        "priority",
        "requirements",
        "reservations",
    )

    def __init__(self, attempt: SchedulerApplicationAttempt, priority: int, requirements: NodeRequirements) -> None:
        self.attempt: SchedulerApplicationAttempt = attempt
        self.priority: int = priority
        self.requirements: NodeRequirements = requirements
        self.key: tuple[int, int, int] = (*attempt.rank, priority)  # sorts allocators
        self.reservations: int = 0  # nodes reserved for it
        self.missed_opportunities: int = 0  # by asks with a preference
        self._last_missed = -1  # number of the last missed opportunity
        # Sorted by arrival. A plain dict would step over all entries deleted from its head at every look-up.
        self._off_switch: OrderedDict[int, PendingAsk] = OrderedDict()  # without a preference
        self._local: OrderedDict[int, PendingAsk] = OrderedDict()  # with a preference
        self._by_location: dict[tuple[str, str], OrderedDict[int, PendingAsk]] = {}  # those in `_local`

    def __len__(self) -> int:
        return len(self._off_switch) + len(self._local)

    def __iter__(self) -> Iterator[PendingAsk]:
        """In order of arrival."""
        return iter(sorted((*self._off_switch.values(), *self._local.values())))

    @property
    def first(self) -> PendingAsk:
        """The ask that arrived first."""
        if self._off_switch and self._local:
            return min(next(iter(self._off_switch.values())), next(iter(self._local.values())))
        return next(iter((self._off_switch or self._local).values()))

    def precedes(self, other: AppPlacementAllocator) -> bool:
        """Whether its asks are served first: by rank and priority, then in order of arrival."""
        return self.key < other.key or (self.key == other.key and self.first.arrival < other.first.arrival)

    def add(self, ask: PendingAsk) -> None:
        if not ask.request.relax_locality or (ask.request.host is None and ask.rack is None):
            self._off_switch[ask.arrival] = ask
            return
        self._local[ask.arrival] = ask
        for location in _locations(ask):
            asks = self._by_location.get(location)
            if asks is None:
                asks = self._by_location[location] = OrderedDict()
            asks[ask.arrival] = ask

    def place(self, ask: PendingAsk, node: SchedulerNode) -> None:
        """Remove the ask, which gets a container on this node."""
        if node.host == ask.request.host or node.rack == ask.rack:
            self.missed_opportunities = 0
        if self._off_switch.pop(ask.arrival, None) is not None:
            return
        del self._local[ask.arrival]
        for location in _locations(ask):
            asks = self._by_location[location]
            del asks[ask.arrival]
            if not asks:
                del self._by_location[location]

    def choose(self, node: SchedulerNode, opportunity: SchedulingOpportunity | None = None) -> PendingAsk | None:
        """The ask to serve on this node, which meets the requirements: one that prefers the node, else the first.

        With an `opportunity`, asks that prefer another node wait for the locality delay; without one, they do not. An
        opportunity that none of them takes is counted as missed.
        """
        ask = self.find(node, opportunity)
        if ask is None and opportunity is not None and self._last_missed != opportunity.number:
            self._last_missed = opportunity.number
            self.missed_opportunities += 1
        return ask

    def find(self, node: SchedulerNode, opportunity: SchedulingOpportunity | None = None) -> PendingAsk | None:
        """Return the ask that `choose` would return, without counting a missed opportunity."""
        if not self._local:
            return next(iter(self._off_switch.values()))
        by_location = self._by_location
        local = by_location.get(("host", node.host)) or by_location.get(("rack", node.rack))
        if local is None and (opportunity is None or self.missed_opportunities >= opportunity.node_locality_delay):
            local = by_location.get(("rack of host", node.rack))
        if local is not None:
            return next(iter(local.values()))
        if opportunity is None:
            return self.first
        if self._off_switch:
            return next(iter(self._off_switch.values()))
        if self.missed_opportunities >= opportunity.off_switch_delay:
            return next(iter(self._local.values()))
        return None

    def hosts(self) -> list[str]:
        """The hosts that its asks prefer or require."""
        hosts = {host for kind, host in self._by_location if kind == "host"}
        if self.requirements.host is not None:
            hosts.add(self.requirements.host)
        return sorted(hosts)


def _locations(ask: PendingAsk) -> Iterator[tuple[str, str]]:
    if ask.request.host is not None:
        yield "host", ask.request.host
        if ask.rack is not None:
            yield "rack of host", ask.rack
    elif ask.rack is not None:
        yield "rack", ask.rack
