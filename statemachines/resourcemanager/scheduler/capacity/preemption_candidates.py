"""Which containers make room for queues that are below their guarantees and wait, after YARN's FifoCandidatesSelector.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.records.config import PreemptionConfig
from statemachines.resourcemanager.scheduler.capacity.headroom import user_room
from statemachines.resourcemanager.scheduler.capacity.ideal_shares import QueueDemand, Sums
from statemachines.resourcemanager.scheduler.capacity.queue_applications import app_of
from statemachines.resourcemanager.scheduler.capacity.queues import LeafQueue, ParentQueue, Queue, QueueTree
from statemachines.resourcemanager.scheduler.core.amounts import add, amounts_of, dominant_share
from statemachines.resourcemanager.scheduler.core.application import SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.node_tracker import ClusterNodeTracker
from statemachines.resourcemanager.scheduler.core.policy import Candidate, Reserved

_Attempts = dict[LeafQueue, list[SchedulerApplicationAttempt]]


def preemption_candidates(
    tree: QueueTree,
    config: PreemptionConfig,
    nodes: ClusterNodeTracker,
    attempts: Iterable[SchedulerApplicationAttempt],
    reserved: Iterable[Reserved],
) -> list[Candidate]:
    """The containers to preempt in this round, leaf by leaf, partition by partition."""
    by_leaf: _Attempts = {}
    for attempt in attempts:
        by_leaf.setdefault(app_of(attempt).leaf, []).append(attempt)
    reservations = list(reserved)
    found: list[Candidate] = []
    for partition, total in tree.totals.items():
        allowed = {type_: math.ceil(n * config.total_preemption_per_round) for type_, n in total.items()}
        demands: dict[LeafQueue, QueueDemand] = {}
        root = _demand(tree.root, partition, by_leaf, demands)
        root.balance(total, allowed)
        for leaf, demand in demands.items():
            limit = {type_: n * (1 + config.max_ignored_over_capacity) for type_, n in demand.guaranteed.items()}
            if _is_more(demand.used, limit, total) and any(demand.give_back.values()):
                # Some containers end by themselves before they are killed: each round takes only a part.
                factor = config.natural_termination_factor
                obtain = {type_: math.ceil(n * factor) for type_, n in demand.give_back.items() if n}
                selection = _Selection(obtain, allowed, partition, nodes, total)
                found += selection.from_leaf(leaf, by_leaf.get(leaf, []), reservations)
    return found


def _is_more(one: Mapping[str, int], other: Mapping[str, float], total: Mapping[str, int]) -> bool:
    """Whether `one` is more than `other`, by the dominant share."""
    return dominant_share(one.items(), total) > dominant_share(other.items(), total)


def _demand(queue: Queue, partition: str, by_leaf: _Attempts, demands: dict[LeafQueue, QueueDemand]) -> QueueDemand:
    """The queue's part of the partition, with its children; adds the leaves' to `demands`."""
    share, capacity = queue.share(partition), queue.share(partition).capacity
    guaranteed = {type_: n * capacity.numerator // capacity.denominator for type_, n in share.total.items()}
    demand = QueueDemand(queue.path, guaranteed, share.limit, share.used, {}, queue.config.priority)
    if isinstance(queue, ParentQueue):
        demand.children = [_demand(child, partition, by_leaf, demands) for child in queue.children]
        for child in demand.children:
            add(demand.wanted, child.wanted.items())
    elif isinstance(queue, LeafQueue):
        demand.wanted = _wanted(queue, partition, by_leaf.get(queue, []))
        demand.is_protected = queue.disables_preemption
        demands[queue] = demand
    return demand


def _wanted(leaf: LeafQueue, partition: str, attempts: list[SchedulerApplicationAttempt]) -> Sums:
    """What pending asks of active applications want, as far as their users' limits allow.

    An ask with a reservation counts as well, although its queue is charged with the reservation: otherwise nothing
    would be taken for an ask that waits while small rests on many nodes make up what it wants (YARN-5731).
    """
    by_user: dict[str, Sums] = {}
    rooms: dict[str, dict[str, int]] = {}
    for attempt in attempts:
        app = app_of(attempt)
        if not app.is_active or attempt.is_stopped:
            continue
        for (_, requirements), allocator in attempt.pending.items():
            if requirements.partition == partition:
                amounts = amounts_of(requirements.resource)
                add(by_user.setdefault(app.user, {}), [(type_, n * len(allocator)) for type_, n in amounts])
                if app.user not in rooms:
                    rooms[app.user] = user_room(leaf, app.user, partition, amounts)
    wanted: Sums = {}
    for user, amounts_wanted in by_user.items():
        add(wanted, [(type_, min(n, rooms[user].get(type_, 0))) for type_, n in amounts_wanted.items()])
    return wanted


class _Selection:
    """Chooses containers of one leaf in one partition until it has obtained enough."""

    def __init__(
        self, obtain: Sums, allowed: Sums, partition: str, nodes: ClusterNodeTracker, total: Mapping[str, int]
    ) -> None:
        """`allowed`: what may still be taken from the partition in this round; reduced by what is chosen."""
        self._obtain = obtain
        self._allowed = allowed
        self._partition = partition
        self._nodes = nodes
        self._total = total
        self._chosen: list[Candidate] = []

    def from_leaf(
        self, leaf: LeafQueue, attempts: list[SchedulerApplicationAttempt], reserved: list[Reserved]
    ) -> list[Candidate]:
        """Reservations and tasks of the application that is served last, then of the one before it, and so on.

        Masters come after all of them, and those that the leaf's share of masters covers are spared.
        """
        masters: list[Candidate] = []
        masters_have: Sums = {}
        for attempt in sorted(attempts, key=lambda each: app_of(each).key(self._partition), reverse=True):
            for owner, node in reserved:
                if owner is attempt and node.partition == self._partition and node.reserved_container is not None:
                    self._choose(attempt, node.reserved_container)
            for container in self._served_last_first(attempt):
                if container.entity == attempt.master:
                    masters.append((attempt, container))
                    add(masters_have, amounts_of(container.request.resource))
                else:
                    self._choose(attempt, container)
        share = leaf.share(self._partition).capacity * leaf.am_share
        for attempt, container in masters:
            if dominant_share(masters_have.items(), self._total) <= share:
                break
            if self._choose(attempt, container):
                add(masters_have, amounts_of(container.request.resource), -1)
        return self._chosen

    def _served_last_first(self, attempt: SchedulerApplicationAttempt) -> Iterator[RMContainer]:
        here = []
        for number, container in enumerate(attempt.live.values()):
            node = self._nodes.get(container.node)
            if node is not None and node.partition == self._partition:
                here.append((-container.request.priority, -number, container))
        here.sort(key=lambda entry: entry[:2])
        return (container for _, _, container in here)

    def _choose(self, attempt: SchedulerApplicationAttempt, container: RMContainer) -> bool:
        """Choose the container if more is needed and allowed; the first one always is, however large."""
        amounts = amounts_of(container.request.resource)
        if not any(self._obtain.get(type_, 0) > 0 for type_, _ in amounts):
            return False
        if self._chosen and any(n > self._allowed.get(type_, 0) for type_, n in amounts):
            return False
        add(self._obtain, amounts, -1)
        add(self._allowed, amounts, -1)
        self._chosen.append((attempt, container))
        return True
