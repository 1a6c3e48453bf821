"""Flink's mailbox: one thread owns the state, and other threads send it mail."""

from dispatcher.errors import MailboxClosedError, MailboxStateError, RejectedExecutionError
from dispatcher.mailbox.executor import MailboxExecutor
from dispatcher.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions
from dispatcher.mailbox.manual_clock import ManualClock
from dispatcher.mailbox.operator_timers import MailboxTimeService
from dispatcher.mailbox.processor import MailboxController, MailboxMetricsController, MailboxProcessor, Suspension
from dispatcher.mailbox.system_timers import SystemProcessingTimeService
from dispatcher.mailbox.task_mailbox import MailboxState, TaskMailbox
from dispatcher.mailbox.time_service import ProcessingTimeService

__all__ = [
    "MAX_PRIORITY",
    "MIN_PRIORITY",
    "Mail",
    "MailOptions",
    "MailboxClosedError",
    "MailboxController",
    "MailboxExecutor",
    "MailboxMetricsController",
    "MailboxProcessor",
    "MailboxState",
    "MailboxStateError",
    "MailboxTimeService",
    "ManualClock",
    "ProcessingTimeService",
    "RejectedExecutionError",
    "Suspension",
    "SystemProcessingTimeService",
    "TaskMailbox",
]
