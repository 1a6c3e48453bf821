"""A FIFO scheduler that reserves nodes for large asks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from statemachines.resourcemanager.scheduler.core import node_tracker
from statemachines.resourcemanager.scheduler.fifo import FifoPolicy

from ..inner import ResourceScheduler, RMContext, SchedulerNode


class ReservingPolicy(FifoPolicy):
    """First come, first served; large asks do not starve."""

    attempts: Collection[Any] = ()

    def choose_to_reserve(self, node: SchedulerNode, opportunity: Any) -> Any:
        for allocator in self.in_order(self.attempts):
            requirements = allocator.requirements
            if requirements.fits(node) or not requirements.could_fit(node):
                continue
            if allocator.reservations < len(allocator) and allocator.choose(node, opportunity) is not None:
                return allocator
        return None


class Reserving(ResourceScheduler):
    """The scheduler of a ReservingPolicy."""

    def __init__(self, context: RMContext, *, on_heartbeat: bool = False) -> None:
        nodes = node_tracker.ClusterNodeTracker(is_searched=not on_heartbeat)
        policy = ReservingPolicy(context.config.scheduler, nodes)
        super().__init__(context, nodes, policy, on_heartbeat=on_heartbeat)
        policy.attempts = self._books.attempts.values()
