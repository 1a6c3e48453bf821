"""When the scheduler looks for containers to preempt, after YARN's SchedulingMonitor. Handler thread only."""

from __future__ import annotations

from dispatcher.service import Service
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.scheduler import SchedulerEvent, SchedulerEventType


class SchedulingMonitor(Service):
    """Posts a round of preemption at most each `monitoring_interval_ms`, and none while the scheduler is settled.

    So virtual time, which jumps from one deadline to the next, can end.
    """

    def __init__(self, context: RMContext) -> None:
        super().__init__("SchedulingMonitor")
        self._context = context
        self._interval_ms = context.config.scheduler.preemption.monitoring_interval_ms
        self._last_ms = context.steady_ms()  # the last round, or the start

    def next_deadline_ms(self) -> int | None:
        """The time of the next round; None: not before something happens."""
        if self._context.scheduler.is_settled:
            return None
        return max(self._last_ms + self._interval_ms, self._context.steady_ms())

    def expire_due(self) -> None:
        """Post a round if it is due."""
        deadline_ms, now_ms = self.next_deadline_ms(), self._context.steady_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            self._last_ms = now_ms
            self._context.post(SchedulerEvent(SchedulerEventType.EDIT_SCHEDULE, "root"))
