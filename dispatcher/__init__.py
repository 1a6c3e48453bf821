"""A YARN-style central asynchronous event dispatcher for Python daemons.

Register handlers for the Enum classes of your events, post events from any thread, and each is handled on one thread,
in order. See `AsyncDispatcher`.
"""

from dispatcher.util.lazy import lazy_names

TYPE_CHECKING = False  # as in `typing`, whose import takes a while
if TYPE_CHECKING:
    from dispatcher.async_dispatcher import AsyncDispatcher
    from dispatcher.config import ConfigModel, DispatcherConfig, JournalConfig, MetricsConfig, load_config
    from dispatcher.dead_letters import DeadLetter, DeadLetters, DeadLetterType
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
        QueueFullError,
        ServiceStateError,
        UnregisteredEventTypeError,
    )
    from dispatcher.event import Answered, Event, EventHandler, HasType, MultiListenerHandler
    from dispatcher.groups import DispatcherGroup, EventDispatcher, MultiDispatcher
    from dispatcher.interface import Dispatcher, ScheduledEvent
    from dispatcher.journal import JournalWriter, PartitionedJournal
    from dispatcher.metrics import MetricsServer, register_metrics
    from dispatcher.retry import Retry
    from dispatcher.scopes import Scope
    from dispatcher.service import CompositeService, Service, ServiceState, ServiceStateChangeListener
    from dispatcher.stats import DispatcherStats
    from dispatcher.supervision.health import HealthAnswer, health, register_check
    from dispatcher.supervision.signals import StopSignals, run_until_signal
    from dispatcher.view import DispatcherView, dispatchers

__all__ = [
    "Answered",
    "AskError",
    "AsyncDispatcher",
    "CompositeService",
    "ConfigError",
    "ConfigModel",
    "DeadLetter",
    "DeadLetterType",
    "DeadLetters",
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
    "MetricsConfig",
    "MetricsServer",
    "MultiDispatcher",
    "MultiListenerHandler",
    "PartitionedJournal",
    "QueueFullError",
    "Retry",
    "ScheduledEvent",
    "Scope",
    "Service",
    "ServiceState",
    "ServiceStateChangeListener",
    "ServiceStateError",
    "StopSignals",
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
_MOVED = (
    *("MailboxClosedError", "MailboxExecutor", "MailboxProcessor", "MailboxStateError", "RejectedExecutionError"),
    "TaskMailbox",
)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("central-dispatcher")
    if name in _MOVED:
        import warnings

        from dispatcher import mailbox

        warnings.warn(f"import {name} from dispatcher.mailbox, not from dispatcher", DeprecationWarning, stacklevel=2)
        return getattr(mailbox, name)
    return _find(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
