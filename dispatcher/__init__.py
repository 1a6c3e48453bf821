"""A YARN-style central asynchronous event dispatcher for Python daemons.

Register handlers for the Enum classes of your events, post events from any thread, and each is handled on one thread,
in order. See `AsyncDispatcher`.
"""

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.config import DispatcherConfig, JournalConfig, MetricsConfig, load_config
from dispatcher.dispatcher_group import DispatcherGroup
from dispatcher.errors import (
    ConfigError,
    DispatcherError,
    EventNotDeclaredError,
    ForkedProcessError,
    JournalError,
    MailboxClosedError,
    MailboxStateError,
    QueueFullError,
    RejectedExecutionError,
    ServiceStateError,
    UnregisteredEventTypeError,
)
from dispatcher.event import DispatcherEventHandler, Event, EventHandler, MultiListenerHandler
from dispatcher.event_dispatcher import EventDispatcher
from dispatcher.journal import JournalWriter
from dispatcher.mailbox import MailboxExecutor, MailboxProcessor, TaskMailbox
from dispatcher.metrics import MetricsServer, register_metrics
from dispatcher.multi_dispatcher import MultiDispatcher
from dispatcher.service import CompositeService, Service, ServiceState, ServiceStateChangeListener
from dispatcher.signals import run_until_signal

__all__ = [
    "AsyncDispatcher",
    "CompositeService",
    "ConfigError",
    "DispatcherConfig",
    "DispatcherError",
    "DispatcherEventHandler",
    "DispatcherGroup",
    "Event",
    "EventDispatcher",
    "EventHandler",
    "EventNotDeclaredError",
    "ForkedProcessError",
    "JournalConfig",
    "JournalError",
    "JournalWriter",
    "MailboxClosedError",
    "MailboxExecutor",
    "MailboxProcessor",
    "MailboxStateError",
    "MetricsConfig",
    "MetricsServer",
    "MultiDispatcher",
    "MultiListenerHandler",
    "QueueFullError",
    "RejectedExecutionError",
    "Service",
    "ServiceState",
    "ServiceStateChangeListener",
    "ServiceStateError",
    "TaskMailbox",
    "UnregisteredEventTypeError",
    "load_config",
    "register_metrics",
    "run_until_signal",
]
