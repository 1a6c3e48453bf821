"""A YARN-style central asynchronous event dispatcher for Python daemons.

Register handlers for the Enum classes of your events, post events from any thread, and each is handled on one thread,
in order. See `AsyncDispatcher`.
"""

from dispatcher.util.lazy import lazy_names

TYPE_CHECKING = False  # as in `typing`, whose import takes a while
if TYPE_CHECKING:
    from dispatcher.async_dispatcher import AsyncDispatcher
    from dispatcher.config import DispatcherConfig, JournalConfig, MetricsConfig, load_config
    from dispatcher.dispatcher_group import DispatcherGroup
    from dispatcher.errors import (
        ConfigError,
        DispatcherError,
        EventNotDeclaredError,
        EventRefusedError,
        ForkedProcessError,
        GilDisabledError,
        JournalError,
        JournalLossError,
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
    from dispatcher.view import DispatcherView, FailureRecord, QueueCounts, RunningNow, TypeNumbers, dispatchers

__all__ = [
    "AsyncDispatcher",
    "CompositeService",
    "ConfigError",
    "DispatcherConfig",
    "DispatcherError",
    "DispatcherEventHandler",
    "DispatcherGroup",
    "DispatcherView",
    "Event",
    "EventDispatcher",
    "EventHandler",
    "EventNotDeclaredError",
    "EventRefusedError",
    "FailureRecord",
    "ForkedProcessError",
    "GilDisabledError",
    "JournalConfig",
    "JournalError",
    "JournalLossError",
    "JournalWriter",
    "MailboxClosedError",
    "MailboxExecutor",
    "MailboxProcessor",
    "MailboxStateError",
    "MetricsConfig",
    "MetricsServer",
    "MultiDispatcher",
    "MultiListenerHandler",
    "QueueCounts",
    "QueueFullError",
    "RejectedExecutionError",
    "RunningNow",
    "Service",
    "ServiceState",
    "ServiceStateChangeListener",
    "ServiceStateError",
    "TaskMailbox",
    "TypeNumbers",
    "UnregisteredEventTypeError",
    "dispatchers",
    "load_config",
    "register_metrics",
    "run_until_signal",
]

# Imported on demand, so that the command handles signals before it imports all this.
_HOMES = {
    "AsyncDispatcher": "dispatcher.async_dispatcher",
    "DispatcherConfig": "dispatcher.config",
    "JournalConfig": "dispatcher.config",
    "MetricsConfig": "dispatcher.config",
    "load_config": "dispatcher.config",
    "DispatcherGroup": "dispatcher.dispatcher_group",
    "ConfigError": "dispatcher.errors",
    "DispatcherError": "dispatcher.errors",
    "EventNotDeclaredError": "dispatcher.errors",
    "EventRefusedError": "dispatcher.errors",
    "ForkedProcessError": "dispatcher.errors",
    "GilDisabledError": "dispatcher.errors",
    "JournalError": "dispatcher.errors",
    "JournalLossError": "dispatcher.errors",
    "MailboxClosedError": "dispatcher.errors",
    "MailboxStateError": "dispatcher.errors",
    "QueueFullError": "dispatcher.errors",
    "RejectedExecutionError": "dispatcher.errors",
    "ServiceStateError": "dispatcher.errors",
    "UnregisteredEventTypeError": "dispatcher.errors",
    "DispatcherEventHandler": "dispatcher.event",
    "Event": "dispatcher.event",
    "EventHandler": "dispatcher.event",
    "MultiListenerHandler": "dispatcher.event",
    "EventDispatcher": "dispatcher.event_dispatcher",
    "JournalWriter": "dispatcher.journal",
    "MailboxExecutor": "dispatcher.mailbox",
    "MailboxProcessor": "dispatcher.mailbox",
    "TaskMailbox": "dispatcher.mailbox",
    "MetricsServer": "dispatcher.metrics",
    "register_metrics": "dispatcher.metrics",
    "MultiDispatcher": "dispatcher.multi_dispatcher",
    "CompositeService": "dispatcher.service",
    "Service": "dispatcher.service",
    "ServiceState": "dispatcher.service",
    "ServiceStateChangeListener": "dispatcher.service",
    "run_until_signal": "dispatcher.signals",
    "DispatcherView": "dispatcher.view",
    "FailureRecord": "dispatcher.view",
    "QueueCounts": "dispatcher.view",
    "RunningNow": "dispatcher.view",
    "TypeNumbers": "dispatcher.view",
    "dispatchers": "dispatcher.view",
}

__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
