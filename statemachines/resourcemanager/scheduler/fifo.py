"""First come, first served: one queue, in which the greater priority comes first, then the older application.

As in YARN's FIFO scheduler, an ask that no node can take waits without holding up those behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.records import ContainerRequest
from statemachines.resourcemanager.scheduler.core.amounts import add, amounts_of, dominant_share, resource_of
from statemachines.resourcemanager.scheduler.core.application import SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.base import AbstractScheduler
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.pending_asks import (
    AppPlacementAllocator,
    PendingAsk,
    PendingAsks,
    SchedulingOpportunity,
)
from statemachines.resourcemanager.scheduler.interface import QueueInfo
from statemachines.resourcemanager.submission import ApplicationSubmission

ROOT = "root"
QUEUE = "root.default"


class FifoScheduler(AbstractScheduler):
    """Takes any submission, whatever queue it names, into its one queue."""

    def __init__(self, context: RMContext, *, on_heartbeat: bool = False) -> None:
        super().__init__(context, on_heartbeat=on_heartbeat)
        self._backlog = PendingAsks()

    def _backlog_of(self, attempt: SchedulerApplicationAttempt) -> PendingAsks:
        return self._backlog

    def _rank_of(self, attempt: SchedulerApplicationAttempt) -> tuple[Any, ...]:
        return -attempt.app.priority, attempt.app.number

    def _choose(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity | None
    ) -> tuple[AppPlacementAllocator, PendingAsk] | None:
        return self._backlog.choose(node, opportunity)

    def check_submission(self, submission: ApplicationSubmission) -> str | None:
        return None

    def queue_of(self, application: str) -> str | None:
        with self._lock:
            return QUEUE if application in self._apps else None

    def check_move(self, application: str, queue: str) -> str | None:
        if queue in ("default", QUEUE):
            return None
        return f"there is no queue {queue!r}: the FIFO scheduler has {QUEUE} only"

    def move_application(self, application: str, queue: str) -> None:
        refusal = self.check_move(application, queue)
        if refusal is not None:
            raise ValueError(refusal)

    def lifetime_s(self, submission: ApplicationSubmission) -> int | None:
        return submission.lifetime_s

    def waiting(self) -> list[tuple[str, ContainerRequest]]:
        with self._lock:
            return [(group.attempt.id, ask.request) for group in self._backlog.groups() for ask in group]

    def queues(self) -> Sequence[QueueInfo]:
        with self._lock:
            total: dict[str, int] = {}
            used: dict[str, int] = {}
            containers = 0
            for node in self._nodes:
                add(total, amounts_of(node.capacity))
                containers += len(node.containers)
                for resource, _ in node.containers.values():
                    add(used, amounts_of(resource))
            applications = len(self._apps)
        root = QueueInfo(
            ROOT,
            "RUNNING",
            capacity=1.0,
            maximum_capacity=1.0,
            used_capacity=dominant_share(used.items(), total),
            used=resource_of(used),
            applications=applications,
            pending_applications=0,
            containers=containers,
            children=(QUEUE,),
        )
        return [root, root._replace(path=QUEUE, children=())]
