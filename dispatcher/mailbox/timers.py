"""Processing-time timers, after Flink's: the interfaces, and real, manual and per-operator implementations of them."""

from __future__ import annotations

from dispatcher.mailbox.manual_clock import ManualClock
from dispatcher.mailbox.operator_timers import MailboxTimeService, OperatorTimeService, WrapCallback
from dispatcher.mailbox.system_timers import SystemProcessingTimeService
from dispatcher.mailbox.time_service import ProcessingTimeService, TimerCallback, TimerFuture, TimerService

__all__ = [
    "MailboxTimeService",
    "ManualClock",
    "OperatorTimeService",
    "ProcessingTimeService",
    "SystemProcessingTimeService",
    "TimerCallback",
    "TimerFuture",
    "TimerService",
    "WrapCallback",
]
