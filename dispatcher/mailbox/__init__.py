"""Flink's mailbox: one thread owns the state, and other threads send it mail."""

from dispatcher.mailbox.executor import ExecutorView, MailboxExecutor
from dispatcher.mailbox.latency import MailboxMetricsController
from dispatcher.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, ActionExecutor, Mail, MailOptions
from dispatcher.mailbox.manual_clock import ManualClock
from dispatcher.mailbox.operator_timers import MailboxTimeService, OperatorTimeService
from dispatcher.mailbox.processor import (
    DefaultAction,
    IdleTimer,
    MailboxController,
    MailboxProcessor,
    PeriodTimer,
    Suspension,
)
from dispatcher.mailbox.system_timers import SystemProcessingTimeService
from dispatcher.mailbox.task_mailbox import MailboxState, TaskMailbox
from dispatcher.mailbox.time_service import ProcessingTimeService, TimerCallback, TimerFuture, TimerService

__all__ = [
    "MAX_PRIORITY",
    "MIN_PRIORITY",
    "ActionExecutor",
    "DefaultAction",
    "ExecutorView",
    "IdleTimer",
    "Mail",
    "MailOptions",
    "MailboxController",
    "MailboxExecutor",
    "MailboxMetricsController",
    "MailboxProcessor",
    "MailboxState",
    "MailboxTimeService",
    "ManualClock",
    "OperatorTimeService",
    "PeriodTimer",
    "ProcessingTimeService",
    "Suspension",
    "SystemProcessingTimeService",
    "TaskMailbox",
    "TimerCallback",
    "TimerFuture",
    "TimerService",
]
