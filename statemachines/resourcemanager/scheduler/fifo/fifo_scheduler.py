"""First come, first served: one queue, sorted by priority, then by age of the application.

As in YARN's FIFO scheduler, an ask that fits on no node stays pending without blocking those behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.scheduler.core.amounts import add, amounts_of, dominant_share, resource_of
from statemachines.resourcemanager.scheduler.core.application import (
    AppPlacementAllocator,
    PendingAsk,
    SchedulerApplication,
    SchedulerApplicationAttempt,
    SchedulingOpportunity,
)
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.node_tracker import ClusterNodeTracker
from statemachines.resourcemanager.scheduler.core.policy import Assignment, SchedulingPolicy
from statemachines.resourcemanager.scheduler.fifo.pending_asks import PendingAsks
from statemachines.resourcemanager.scheduler.queue_info import QueueInfo
from statemachines.resourcemanager.scheduler.resource_scheduler import ResourceScheduler
from statemachines.resourcemanager.submission import ApplicationSubmission

ROOT = "root"
QUEUE = "root.default"


class FifoScheduler(ResourceScheduler):
    """Accepts every submission into its one queue, whichever queue the submission names."""

    def __init__(self, context: RMContext, *, on_heartbeat: bool = False) -> None:
        nodes = ClusterNodeTracker(is_searched=not on_heartbeat)
        super().__init__(context, nodes, FifoPolicy(nodes), on_heartbeat=on_heartbeat)


class FifoPolicy(SchedulingPolicy):
    """One queue, without limits."""

    # All fields are guarded by the scheduler's lock.
    def __init__(self, nodes: ClusterNodeTracker) -> None:
        self.pending: PendingAsks = PendingAsks()
        self.allocates_on_arrival = nodes.is_searched
        self._nodes = nodes
        self._applications = 0  # not ended

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
        return sorted(allocators, key=lambda allocator: (allocator.key, allocator.first_arrival))

    def add_app(self, app: SchedulerApplication, is_recovering: bool) -> str | None:
        app.queue = QUEUE
        self._applications += 1
        return None

    def remove_app(self, app: SchedulerApplication) -> None:
        self._applications -= 1

    def check_submission(self, submission: ApplicationSubmission) -> str | None:
        return None

    def check_move(self, application: str, app: SchedulerApplication | None, queue: str) -> str | None:
        if queue in ("default", QUEUE):
            return None
        return f"queue {queue!r} does not exist: the FIFO scheduler has only {QUEUE}"

    def lifetime_s(self, submission: ApplicationSubmission) -> int | None:
        return submission.lifetime_s

    def queues(self) -> Sequence[QueueInfo]:
        total: dict[str, int] = {}
        used: dict[str, int] = {}
        containers = 0
        for node in self._nodes:
            add(total, amounts_of(node.capacity))
            containers += len(node.containers)
            for resource, _ in node.containers.values():
                add(used, amounts_of(resource))
        root = QueueInfo(
            ROOT,
            "RUNNING",
            capacity=1.0,
            maximum_capacity=1.0,
            used_capacity=dominant_share(used.items(), total),
            used=resource_of(used),
            applications=self._applications,
            pending_applications=0,
            containers=containers,
            children=(QUEUE,),
        )
        return [root, root._replace(path=QUEUE, children=())]
