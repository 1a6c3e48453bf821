"""A FIFO scheduler that reserves nodes for large asks."""

from __future__ import annotations

from statemachines.resourcemanager import FifoScheduler
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.scheduler.core.application import AppPlacementAllocator, SchedulingOpportunity
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode


class Reserving(FifoScheduler):
    """First come, first served; large asks do not starve."""

    def __init__(self, context: RMContext, *, on_heartbeat: bool = False) -> None:
        super().__init__(context, on_heartbeat=on_heartbeat)
        self._policy.choose_to_reserve = self._choose_to_reserve  # type: ignore[method-assign]

    def _choose_to_reserve(
        self, node: SchedulerNode, opportunity: SchedulingOpportunity
    ) -> AppPlacementAllocator | None:
        for allocator in self._policy.in_order(self._books.attempts.values()):
            requirements = allocator.requirements
            if requirements.fits(node) or not requirements.could_fit(node):
                continue
            if allocator.reservations < len(allocator) and allocator.choose(node, opportunity) is not None:
                return allocator
        return None
