"""What will happen when, for a great many things to come: a heap, and no future, lock or mail for each.

Threading: handler thread only (invariant 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatcher.util.heap import TimedHeap


class Errand:
    """An actor that is to do one thing, unless it is stopped."""

    __slots__ = ("about", "stopped")

    def __init__(self, about: Any) -> None:
        self.about = about
        self.stopped = False


class Agenda(TimedHeap[Callable[[Any], None]]):
    """Calls to be made at their times; those of the same time in the order in which they were entered.

    An entry is not taken back: it is skipped if its actor has been stopped meanwhile.
    """

    __slots__ = ("_now_ms",)

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__()
        self._now_ms = now_ms

    at = TimedHeap.push
    """`at(time_ms, action, actor)`: have `action(actor)` called; a time that is over is now."""

    next_deadline_ms = TimedHeap.next_time

    def expire_due(self) -> None:
        """Make all calls whose time has come, with those that they enter for now."""
        now_ms = self._now_ms()
        while (entry := self.pop_due(now_ms)) is not None:
            entry[2](entry[3])
