"""First come, first served, after YARN's FifoScheduler: one queue, sorted by priority, then by age of the application.

An ask that fits on no node stays pending without blocking those behind it.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from bisect import bisect_left, insort_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from statemachines.resourcemanager.records.config import SchedulerConfig
from statemachines.resourcemanager.records.resource import MaximumAllocation, Resource
from statemachines.resourcemanager.scheduler.core.amounts import (
    Amounts,
    add,
    amounts_of,
    maximum_allocation,
    resource_of,
    share_of,
)
from statemachines.resourcemanager.scheduler.core.application import (
    AppPlacementAllocator,
    PendingAsk,
    SchedulerApplication,
    SchedulerApplicationAttempt,
    SchedulingOpportunity,
)
from statemachines.resourcemanager.scheduler.core.books import SchedulerContext
from statemachines.resourcemanager.scheduler.core.node import NodeRequirements, NodeSet, SchedulerNode, of_node
from statemachines.resourcemanager.scheduler.core.node_tracker import ClusterNodeTracker
from statemachines.resourcemanager.scheduler.core.policy import Assignment, SchedulingPolicy
from statemachines.resourcemanager.scheduler.core.users import User, pending_amounts, sum_of, user_info
from statemachines.resourcemanager.scheduler.queue_info import PartitionInfo, QueueInfo, QueueUserInfo
from statemachines.resourcemanager.scheduler.resource_scheduler import ResourceScheduler

ROOT = "root"
QUEUE = "root.default"

_key = attrgetter("key")


class _Candidates:
    """The pending asks for one node set."""

    __slots__ = ("by_requirements", "least_memory_mb", "least_vcores_milli")

    def __init__(self) -> None:
        self.by_requirements: dict[NodeRequirements, list[AppPlacementAllocator]] = {}  # sorted by key; never empty
        self.least_memory_mb = self.least_vcores_milli = 0  # over all requirements

    def add(self, requirements: NodeRequirements, allocators: list[AppPlacementAllocator]) -> None:
        is_first = not self.by_requirements
        self.by_requirements[requirements] = allocators
        if is_first or requirements.memory_mb < self.least_memory_mb:
            self.least_memory_mb = requirements.memory_mb
        if is_first or requirements.vcores_milli < self.least_vcores_milli:
            self.least_vcores_milli = requirements.vcores_milli

    def remove(self, requirements: NodeRequirements) -> None:
        others = self.by_requirements
        del others[requirements]
        if not others:
            return
        if requirements.memory_mb == self.least_memory_mb:
            self.least_memory_mb = min([other.memory_mb for other in others])
        if requirements.vcores_milli == self.least_vcores_milli:
            self.least_vcores_milli = min([other.vcores_milli for other in others])


class PendingAsks:
    """Allocators by node set and requirements, sorted by key."""

    # All fields are guarded by the scheduler's lock.
    def __init__(self) -> None:
        self._by_node_set: dict[NodeSet, _Candidates] = {}  # never empty ones

    def add(self, allocator: AppPlacementAllocator) -> None:
        requirements = allocator.requirements
        candidates = self._by_node_set.get(requirements.node_set)
        if candidates is None:
            candidates = self._by_node_set[requirements.node_set] = _Candidates()
        allocators = candidates.by_requirements.get(requirements)
        if allocators is None:
            candidates.add(requirements, [allocator])
        else:
            insort_right(allocators, allocator, key=_key)

    def remove(self, allocator: AppPlacementAllocator) -> None:
        requirements = allocator.requirements
        candidates = self._by_node_set[requirements.node_set]
        allocators = candidates.by_requirements[requirements]
        if len(allocators) > 1:
            del allocators[allocators.index(allocator, bisect_left(allocators, allocator.key, key=_key))]
            return
        candidates.remove(requirements)
        if not candidates.by_requirements:
            del self._by_node_set[requirements.node_set]

    def choose(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity | None = None
    ) -> tuple[AppPlacementAllocator, PendingAsk] | None:
        """The first ask that fits on the node and is not waiting for a node it prefers."""
        best: AppPlacementAllocator | None = None
        for allocators in self._fitting(node):
            for allocator in allocators:
                if best is not None and not allocator.precedes(best):
                    break
                if opportunity is not None and allocator.choose(node, opportunity) is None:
                    continue
                best = allocator
                break
        if best is None:
            return None
        ask = best.choose(node, opportunity)
        assert ask is not None  # checked above; without an opportunity, an allocator always has an ask
        return best, ask

    def _fitting(self, node: SchedulerNode) -> list[list[AppPlacementAllocator]]:
        """The allocators whose asks fit on the node, by requirements."""
        memory_mb, vcores_milli = node.free_memory_mb, node.free_vcores_milli
        fitting = []
        for candidates in of_node(self._by_node_set, node):
            if memory_mb < candidates.least_memory_mb or vcores_milli < candidates.least_vcores_milli:
                continue
            for requirements, allocators in candidates.by_requirements.items():
                if (
                    requirements.memory_mb <= memory_mb
                    and requirements.vcores_milli <= vcores_milli
                    and (requirements.is_plain or requirements.fits_further(node))
                ):
                    fitting.append(allocators)
        return fitting


class FifoScheduler(ResourceScheduler):
    """Accepts every submission into its one queue, whichever queue the submission names."""

    def __init__(self, context: SchedulerContext, *, on_heartbeat: bool = False) -> None:
        nodes = ClusterNodeTracker(is_searched=not on_heartbeat)
        super().__init__(context, nodes, FifoPolicy(context.config.scheduler, nodes), on_heartbeat=on_heartbeat)


class FifoPolicy(SchedulingPolicy):
    """One queue, without limits."""

    # All fields are guarded by the scheduler's lock.
    def __init__(self, config: SchedulerConfig, nodes: ClusterNodeTracker) -> None:
        self._config = config  # its access control lists are the queues'
        self.pending: PendingAsks = PendingAsks()
        self.allocates_on_arrival = nodes.is_searched
        self._maximum = maximum_allocation(config.maximum_allocation_mb, config.maximum_allocation_vcores)
        self._users: dict[str, User] = {}  # those with applications
        self._total: dict[str, int] = {}  # of all nodes
        self._free: dict[str, dict[str, int]] = {}  # by partition; negative after a cut of the capacity

    def maximum_allocation(self, queue: str) -> MaximumAllocation:
        return self._maximum

    def headroom(self, attempt: SchedulerApplicationAttempt) -> Mapping[str, int]:
        free: dict[str, int] = {}
        for partition in attempt.asked_partitions():
            add(free, [item for item in self._free.get(partition, {}).items() if item[1] > 0])
        return free

    def choose(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity
    ) -> tuple[AppPlacementAllocator, PendingAsk] | None:
        return self.pending.choose(node, opportunity)

    def assign_containers(self, freed: Sequence[SchedulerNode]) -> Iterator[Assignment]:
        choose = self.pending.choose
        for node in freed:
            while (chosen := choose(node)) is not None:
                yield *chosen, node

    def in_order(self, attempts: Iterable[SchedulerApplicationAttempt]) -> list[AppPlacementAllocator]:
        allocators = [allocator for attempt in attempts for allocator in attempt.pending.values()]
        return sorted(allocators, key=lambda allocator: (allocator.key, allocator.first.arrival))

    # -- usage --------------------------------------------------------------------------------------------------------

    def pending_changed(self, attempt: SchedulerApplicationAttempt, requirements: NodeRequirements, delta: int) -> None:
        self._users[attempt.app.user].add_pending(requirements, delta)

    def charge(self, attempt: SchedulerApplicationAttempt, partition: str, resource: Resource) -> None:
        amounts = amounts_of(resource)
        self._users[attempt.app.user].charge(partition, amounts, 1)
        free = self._free.get(partition)
        add(free if free is not None else self._free.setdefault(partition, {}), amounts, -1)

    def discharge(self, attempt: SchedulerApplicationAttempt, partition: str, resource: Resource) -> None:
        amounts = amounts_of(resource)
        self._users[attempt.app.user].charge(partition, amounts, -1)
        free = self._free.get(partition)
        add(free if free is not None else self._free.setdefault(partition, {}), amounts, 1)

    def capacity_changed(self, partition: str, capacity: Resource, sign: int) -> None:
        amounts = amounts_of(capacity)
        add(self._total, amounts, sign)
        add(self._free.setdefault(partition, {}), amounts, sign)

    def add_app(self, app: SchedulerApplication, is_recovering: bool) -> str | None:
        app.queue = QUEUE
        self._users.setdefault(app.user, User()).applications += 1
        return None

    def remove_app(self, app: SchedulerApplication) -> None:
        user = self._users[app.user]
        user.applications -= 1
        if not user.applications:
            del self._users[app.user]

    def add_attempt(self, attempt: SchedulerApplicationAttempt) -> None:
        self._users[attempt.app.user].charge_master("", _masters(attempt), 1)

    def remove_attempt(self, attempt: SchedulerApplicationAttempt) -> None:
        self._users[attempt.app.user].charge_master("", _masters(attempt), -1)

    # -- queues -------------------------------------------------------------------------------------------------------

    def check_move(self, application: str, app: SchedulerApplication | None, queue: str) -> str | None:
        if queue in ("default", QUEUE):
            return None
        return f"queue {queue!r} does not exist: the FIFO scheduler has only {QUEUE}"

    def queue_paths(self) -> list[str]:
        return [ROOT, QUEUE]

    def queue_info(self, path: str) -> QueueInfo | None:
        return self._info(path) if path in (ROOT, QUEUE) else None

    def usage_shares(self, attempt: SchedulerApplicationAttempt, used: Amounts) -> tuple[float, float]:
        share = share_of(used, self._total)
        return share, share

    def _info(self, path: str) -> QueueInfo:
        """FIFO has no limits, so each limit shown is the whole cluster."""
        users, total = self._users, resource_of(self._total)
        used = sum_of(user.used for user in users.values())
        share = share_of(used.items(), self._total)
        pending = resource_of(pending_amounts(users.values()))
        am_used = resource_of(sum_of(user.masters for user in users.values()))
        partition = PartitionInfo(
            partition="",
            capacity=100.0,
            maximum_capacity=100.0,
            used_capacity=100 * share,
            absolute_capacity=100.0,
            absolute_maximum_capacity=100.0,
            absolute_used_capacity=100 * share,
            guaranteed=total,
            maximum=total,
            used=resource_of(used),
            pending=pending,
        )
        is_leaf = path == QUEUE
        if is_leaf:
            partition = partition._replace(am_limit=total, am_used=am_used, user_am_limit=total)
        return QueueInfo(
            path,
            "RUNNING",
            capacity=1.0,
            maximum_capacity=1.0,
            used_capacity=share,
            used=resource_of(used),
            applications=sum(user.applications for user in users.values()),
            pending_applications=0,
            containers=sum(user.containers for user in users.values()),
            children=() if is_leaf else (QUEUE,),
            partitions=(partition,),
            users=tuple(_user_info(name, user, total) for name, user in users.items()) if is_leaf else (),
            pending=pending,
            acl_submit_applications=None if is_leaf else self._config.acl_submit_applications,
            acl_administer_queue=None if is_leaf else self._config.acl_administer_queue,
            pending_containers=sum(user.pending_containers for user in users.values()),
            maximum_allocation=self._maximum,
        )


def _masters(attempt: SchedulerApplicationAttempt) -> Amounts:
    submission = attempt.app.submission
    return () if submission.unmanaged_am else amounts_of(submission.am_resource)


def _user_info(name: str, user: User, total: Resource) -> QueueUserInfo:
    """All applications of a user are active, and the user is active while it has pending asks."""
    info = user_info(name, user, total, total)
    return info._replace(
        active_applications=user.applications, pending_applications=0, is_active=user.pending_containers > 0
    )
