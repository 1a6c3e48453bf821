"""For tests of programs built on a dispatcher: no sleeping, no races, no real time."""

from dispatcher.mailbox.manual_clock import ManualClock
from dispatcher.testing.dispatchers import DrainDispatcher, InlineDispatcher

__all__ = ["DrainDispatcher", "InlineDispatcher", "ManualClock"]
