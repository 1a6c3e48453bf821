"""Flink's mailbox: one thread owns the state, and everybody else sends it mail."""

from dispatcher.mailbox.executor import ExecutorView, MailboxExecutor
from dispatcher.mailbox.latency import MailboxMetricsController
from dispatcher.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, ActionExecutor, Mail, MailOptions
from dispatcher.mailbox.processor import (
    DefaultAction,
    IdleTimer,
    MailboxController,
    MailboxProcessor,
    PeriodTimer,
    Suspension,
)
from dispatcher.mailbox.task_mailbox import MailboxState, TaskMailbox
from dispatcher.mailbox.timers import (
    MailboxTimeService,
    ManualClock,
    OperatorTimeService,
    ProcessingTimeService,
    SystemProcessingTimeService,
    TimerCallback,
    TimerFuture,
    TimerService,
)

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
