"""Flink's mailbox: one thread owns the state, and everybody else sends it mail."""

from dispatcher.mailbox.executor import ExecutorView, MailboxExecutor
from dispatcher.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions
from dispatcher.mailbox.processor import (
    DefaultAction,
    MailboxController,
    MailboxProcessor,
    Suspension,
)
from dispatcher.mailbox.task_mailbox import MailboxState, TaskMailbox
from dispatcher.mailbox.timers import (
    MailboxTimeService,
    ManualClock,
    ProcessingTimeService,
    SystemProcessingTimeService,
)

__all__ = [
    "MAX_PRIORITY",
    "MIN_PRIORITY",
    "DefaultAction",
    "ExecutorView",
    "Mail",
    "MailOptions",
    "MailboxController",
    "MailboxExecutor",
    "MailboxProcessor",
    "MailboxState",
    "MailboxTimeService",
    "ManualClock",
    "ProcessingTimeService",
    "Suspension",
    "SystemProcessingTimeService",
    "TaskMailbox",
]
