"""For tests of programs built on a dispatcher: no sleeping, no races, no real time."""

from dispatcher.testing.dispatchers import DrainDispatcher, InlineDispatcher, ManualClock

__all__ = ["DrainDispatcher", "InlineDispatcher", "ManualClock"]
