"""For tests of programs built on a dispatcher: no sleeping, no races, no real time."""

from dispatcher.util.lazy import lazy_names

TYPE_CHECKING = False  # as in `typing`, whose import takes a while
if TYPE_CHECKING:
    from dispatcher.mailbox.manual_clock import ManualClock
    from dispatcher.testing.dispatchers import DrainDispatcher, InlineDispatcher

__all__ = ["DrainDispatcher", "InlineDispatcher", "ManualClock"]

__getattr__ = lazy_names(__name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
