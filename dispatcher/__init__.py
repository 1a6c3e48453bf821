"""A YARN-style central asynchronous event dispatcher for Python daemons.

Register handlers for the Enum classes of your events, post events from any thread, and each is handled on one thread,
in order. See `AsyncDispatcher`.
"""

from dispatcher.util.lazy import lazy_names

TYPE_CHECKING = False  # as in `typing`, whose import takes a while
if TYPE_CHECKING:
    from dispatcher.async_dispatcher import AsyncDispatcher
    from dispatcher.config import DispatcherConfig, JournalConfig, MetricsConfig, load_config
    from dispatcher.dead_letters import DeadLetter
    from dispatcher.errors import (
        AskError,
        ConfigError,
        DeadlockError,
        DispatcherError,
        EventDiscardedError,
        EventNotDeclaredError,
        EventRefusedError,
        ForkedProcessError,
        InvalidTypeError,
        InvalidValueError,
        JournalError,
        JournalLossError,
        MailboxClosedError,
        MailboxStateError,
        QueueFullError,
        RejectedExecutionError,
        ServiceStateError,
        UnregisteredEventTypeError,
    )
    from dispatcher.event import Event, EventHandler, HasType, MultiListenerHandler
    from dispatcher.groups import DispatcherGroup, EventDispatcher, MultiDispatcher
    from dispatcher.interface import Dispatcher
    from dispatcher.journal import JournalWriter, PartitionedJournal
    from dispatcher.mailbox import MailboxExecutor, MailboxProcessor, TaskMailbox
    from dispatcher.metrics import MetricsServer, register_metrics
    from dispatcher.retry import Retry
    from dispatcher.service import CompositeService, Service, ServiceState, ServiceStateChangeListener
    from dispatcher.stats import DispatcherStats
    from dispatcher.supervision.health import HealthAnswer, health, register_check
    from dispatcher.supervision.signals import StopSignals, run_until_signal
    from dispatcher.view import DispatcherView, dispatchers

__all__ = [
    "AskError",
    "AsyncDispatcher",
    "CompositeService",
    "ConfigError",
    "DeadLetter",
    "DeadlockError",
    "Dispatcher",
    "DispatcherConfig",
    "DispatcherError",
    "DispatcherGroup",
    "DispatcherStats",
    "DispatcherView",
    "Event",
    "EventDiscardedError",
    "EventDispatcher",
    "EventHandler",
    "EventNotDeclaredError",
    "EventRefusedError",
    "ForkedProcessError",
    "HasType",
    "HealthAnswer",
    "InvalidTypeError",
    "InvalidValueError",
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
    "PartitionedJournal",
    "QueueFullError",
    "RejectedExecutionError",
    "Retry",
    "Service",
    "ServiceState",
    "ServiceStateChangeListener",
    "ServiceStateError",
    "StopSignals",
    "TaskMailbox",
    "UnregisteredEventTypeError",
    "dispatchers",
    "health",
    "load_config",
    "register_check",
    "register_metrics",
    "run_until_signal",
]

# Each of the imports above happens when its name is first used, so that the command handles signals before it imports
# all this.
_find = lazy_names(__name__)


def __getattr__(name: str) -> object:
    if name != "__version__":
        return _find(name)
    from importlib.metadata import version

    return version("central-dispatcher")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
